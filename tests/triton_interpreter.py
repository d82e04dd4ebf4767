"""Triton, imported so that its kernels can run on a CPU, in its interpreter, in this process and no other.

Triton asks once, when it is imported, so this has to come before anything that imports it, as torch and transformers
may do. What is defined later is interpreted only inside `interpreting`. The engine's own choice is not touched.
"""

import os
import sys
from collections import abc
from contextlib import contextmanager
from importlib.util import find_spec

INTERPRETER_VARIABLE = "TRITON_INTERPRET"
_imported: set[str] = set()


def import_triton() -> bool:
    """True if Triton is there, and imported as it has to be. Raises ImportError if it was imported otherwise."""
    if find_spec("triton") is None:
        return False
    if not _imported:
        if "triton" in sys.modules and os.environ.get(INTERPRETER_VARIABLE) != "1":
            raise ImportError("Triton was imported without its interpreter before")
        with interpreting():
            import triton.experimental.gluon  # noqa: F401  which Triton imports by itself later, and asks the same
        _imported.add("triton")
    return True


@contextmanager
def interpreting() -> abc.Iterator[None]:
    """Kernels that are defined inside are interpreted."""
    before = os.environ.get(INTERPRETER_VARIABLE)
    os.environ[INTERPRETER_VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[INTERPRETER_VARIABLE]
