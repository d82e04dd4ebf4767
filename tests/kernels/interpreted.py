"""Imports the Triton kernels so that they run on a CPU, in Triton's interpreter, in this process and no other.

Whether a kernel is interpreted is decided when it is defined, and for Triton's own ones when it is imported: import
this module before anything that imports Triton. The engine's own choice is not touched: it computes as on any CPU.
"""

import os
import sys
from importlib.util import find_spec

import pytest

from engine.kernels.triton import INTERPRETER_VARIABLE

if find_spec("triton") is None:
    pytest.skip("there is no Triton for this kind of machine", allow_module_level=True)
_before = os.environ.get(INTERPRETER_VARIABLE)
if _before != "1" and "triton" in sys.modules:
    raise ImportError("Triton was imported without its interpreter before")
os.environ[INTERPRETER_VARIABLE] = "1"
try:
    import triton.experimental.gluon  # noqa: F401  which Triton imports by itself later, and asks the same question

    from engine.kernels.triton import attention, cache, elementwise, sampling
finally:
    if _before is None:
        del os.environ[INTERPRETER_VARIABLE]

__all__ = ["attention", "cache", "elementwise", "sampling"]
