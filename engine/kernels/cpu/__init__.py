"""What of a layer is no matrix product, for processors: compiled by numba when it is first called, for the machine it
runs on, so that nobody needs a compiler. bfloat16 comes in and goes out as its 16 bits; between, all is float32."""

from engine.kernels.cpu.attention import PagedChunks, attend
from engine.kernels.cpu.draw import draw
from engine.kernels.cpu.elementwise import add_rms_norm, silu_mul

__all__ = ["PagedChunks", "add_rms_norm", "attend", "draw", "silu_mul"]
