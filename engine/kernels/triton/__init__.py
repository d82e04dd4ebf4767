"""The layer stack's operations as Triton kernels, for CUDA. `reference` specifies them, as it does all others.

Nothing here imports Triton but the modules that define kernels, and `ops` imports those only where they run: an engine
without a GPU needs no Triton. Kernels read keys and values where they lie, block by block, and never a slot behind a
sequence's last key, so that nothing has to be cleared.
"""

import os
from functools import cache
from importlib.util import find_spec

INTERPRETER_VARIABLE = "TRITON_INTERPRET"


@cache
def runs_on(device_type: str) -> bool:
    """Whether the kernels run on devices of this type ("cpu", "cuda"). Decided once in a process.

    On a CPU they do in Triton's interpreter, if TRITON_INTERPRET is 1: thousands of times slower, to look into them.
    """
    if device_type == "cpu":
        return os.environ.get(INTERPRETER_VARIABLE) == "1" and find_spec("triton") is not None
    return device_type == "cuda" and find_spec("triton") is not None
