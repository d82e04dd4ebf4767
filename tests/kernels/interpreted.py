"""The Triton kernels as they run in Triton's interpreter, in this process and no other."""

import pytest

from tests.triton_interpreter import import_triton, interpreting

if not import_triton():
    pytest.skip("there is no Triton for this kind of machine", allow_module_level=True)
with interpreting():
    from engine.kernels.triton import attention, cache, elementwise, sampling

__all__ = ["attention", "cache", "elementwise", "sampling"]
