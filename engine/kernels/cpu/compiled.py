"""How kernels are compiled: for one thread or for several, and never for two callers at a time."""

import threading
from collections import abc
from typing import Any

import torch
from numba import njit
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor

# The order of a sum is the machine's own, and products are fused into it. What is no number stays none: a request whose
# logits are not finite has to be told.
FAST = ("reassoc", "contract", "arcp", "nsz")
Function = abc.Callable[..., Any]
# Division by zero is what it is in the hardware: a check for it would keep a loop from becoming vector code.
_OPTIONS: dict[str, Any] = {"fastmath": set(FAST), "error_model": "numpy"}

# Some of numba's ways to use several threads end the process when two callers meet in them.
_one_at_a_time = threading.Lock()


def part(function: Function) -> Any:
    """A function that kernels call, in numba's language."""
    return njit(**_OPTIONS)(function)


def inlined(function: Function) -> Any:
    """The same, for what is so small that a loop over it should be one piece of code."""
    return njit(**_OPTIONS, inline="always")(function)


def vector_code(function: Function) -> Any:
    """A function that kernels call and that writes LLVM's language; it sees which arguments are constants."""
    return intrinsic(prefer_literal=True)(function)


class Compiled:
    """A kernel, compiled for each kind of arguments when they first come.

    With one thread there is no region to enter, which costs more than a small step's work.
    """

    def __init__(self, function: Function) -> None:
        self._serial: Function = part(function)
        self._parallel: Function = njit(**_OPTIONS, parallel=True)(function)

    def __call__(self, *arguments: Any) -> None:
        if torch.get_num_threads() == 1:
            self._serial(*arguments)
            return
        with _one_at_a_time:
            self._parallel(*arguments)


def elements(tensor: Tensor) -> NDArray[Any]:
    """The same memory for a kernel: bfloat16 as uint16, float32 as it is."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy()
    return tensor.numpy()
