"""How kernels are compiled: for the processor that they run on, and once per machine."""

import os
from collections import abc
from types import FunctionType
from typing import Any

import torch
from numba import njit
from numba.core.ccallback import CFunc
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor

from engine.kernels.cpu.disk_cache import DiskCache, cache_folder

# The order of a sum is the machine's own, and products are fused into it. What is no number stays none: a request whose
# logits are not finite has to be told.
FAST = ("reassoc", "contract", "arcp", "nsz")
Function = abc.Callable[..., Any]
# Division by zero is what it is in the hardware: a check for it would keep a loop from becoming vector code.
_OPTIONS: dict[str, Any] = {"fastmath": set(FAST), "error_model": "numpy"}
_EXACT: dict[str, Any] = {"error_model": "numpy"}

# Nobody calls it from outside: a third of its code would be for that.
_INNER: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def part(function: Function) -> Any:
    """A function that kernels call, in numba's language."""
    return njit(**_OPTIONS, **_INNER)(function)


def inlined(function: Function) -> Any:
    """The same, for what is so small that a loop over it should be one piece of code."""
    return njit(**_OPTIONS, **_INNER, inline="always")(function)


def exact_part(function: Function) -> Any:
    """As `part`, for kernels whose every operation is rounded as it stands there."""
    return njit(**_EXACT, **_INNER)(function)


def vector_code(function: Function) -> Any:
    """A function that kernels call and that writes LLVM's language; it sees which arguments are constants."""
    return intrinsic(prefer_literal=True)(function)


def unlocked(function: Function, *constants: object) -> Any:
    """A kernel that lets other threads of Python run, and so may run on several of them at a time; it is found on disk
    where a process before this one compiled it. `constants` are those that its closure holds."""
    return _kept(function, constants, _OPTIONS)


def exact(function: Function, *constants: object) -> Any:
    """As `unlocked`, but each operation is rounded as it stands there."""
    return _kept(function, constants, _EXACT)


def _kept(function: Function, constants: tuple[object, ...], options: dict[str, Any]) -> Any:
    named = _named(function, *constants)
    dispatcher = njit(**options, nogil=True)(named)
    dispatcher._cache = _disk_cache(named)  # as `cache=True` would
    return dispatcher


def address_of(signature: Any, function: Function, *constants: object) -> int:
    """Where a function with C's calling convention is, which kernels call by its address: compiled once for all of
    them, and not again as a part of each."""
    named = _named(function, *constants)
    compiled: Any = CFunc(named, (signature.args, signature.return_type), locals={}, options=_OPTIONS)
    compiled._cache = _disk_cache(named)
    compiled.compile()
    return int(compiled.address)


def _named(function: Function, *constants: object) -> Function:
    """The same under a name that says what is constant in it: symbols are made of names, and those of two forms,
    compiled in two processes, must not be the same in a third."""
    name = "_".join((function.__qualname__, *map(str, constants)))
    named = FunctionType(function.__code__, function.__globals__, name, function.__defaults__, function.__closure__)
    named.__qualname__, named.__module__ = name, function.__module__
    return named


def _disk_cache(named: Function) -> DiskCache:
    return DiskCache(f"{named.__module__}.{named.__qualname__}", cache_folder(os.environ))


def elements(tensor: Tensor) -> NDArray[Any]:
    """The same memory for a kernel: bfloat16 as uint16, float32 as it is."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy()
    return tensor.numpy()
