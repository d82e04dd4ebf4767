"""The layers for processors: compiled by numba when they are first called on a machine, for the one they run on, so
that nobody needs a compiler. bfloat16 comes in and goes out as its 16 bits; between, all is float32."""

from engine.kernels.cpu.attention import PagedChunks, attend
from engine.kernels.cpu.draw import draw
from engine.kernels.cpu.elementwise import add_rms_norm, silu_mul
from engine.kernels.cpu.layer_stack import HeadShape, LayerStack, LayerWeights
from engine.kernels.cpu.linear import largest_products
from engine.kernels.cpu.logits import finite_rows, likeliest

__all__ = [
    "HeadShape",
    "LayerStack",
    "LayerWeights",
    "PagedChunks",
    "add_rms_norm",
    "attend",
    "draw",
    "finite_rows",
    "largest_products",
    "likeliest",
    "silu_mul",
]
