"""Work of several threads without a region to enter: each takes the next items of a phase, and waits for its end.

A phase is two counters, of items taken and of items done. Nothing depends on how many threads take part or when they
come: one that comes late finds phases that are over, and one alone does everything. So nothing can wait for a thread
that never came, and a step of hundreds of phases costs one call. Who waits spins, because the next phase is a few
microseconds away, and gives its core away where others want it. What a thread took and failed at is never done: it
leaves word, and nobody waits any more.
"""

import os
from collections import abc
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numpy.typing import NDArray

from engine.kernels.cpu.compiled import part, vector_code

COUNTERS_PER_PHASE = 16  # int64: two cache lines, so that no phase slows another
_DONE_BYTES = 64
_FAILED = 1  # of the first phase's counters: not 0 once a thread has failed
_FAILED_BYTES = 8 * _FAILED
_PHASE_BYTES = 8 * COUNTERS_PER_PHASE
_SPINS = 512  # tens of microseconds, before another thread may have the core

INT64 = ir.IntType(64)
Generated = tuple[Any, abc.Callable[..., Any]]


def counters(num_phases: int) -> NDArray[np.int64]:
    """[phases, 16], of which nothing is taken."""
    return np.zeros((num_phases, COUNTERS_PER_PHASE), np.int64)


def run_together(num_threads: int, kernel: abc.Callable[..., None], phases: NDArray[np.int64], *arguments: Any) -> None:
    """All phases of `kernel` are over and no thread is in it any more; the caller's is one of them. It must let
    Python's other threads run.

    Where it fails in one of them, that error is raised once all have left it; what they wrote is worth nothing.
    """
    if num_threads == 1:
        kernel(phases, *arguments)
        return
    jobs: list[_Job] = []
    try:
        helpers = _helpers(num_threads - 1)
        for _ in range(num_threads - 1):
            jobs.append(job := _Job(kernel, phases, arguments))
            helpers.put(job)
        _take_part(kernel, phases, *arguments)
    finally:
        errors = [job.end() for job in jobs]
    for error in filter(None, errors):
        raise error


class _Job:
    """A helper's part in a kernel. It begins once, or never: whoever has the first lock decides which.

    Two locks and a queue: each step makes several of them, and the library's futures do more than is needed.
    """

    __slots__ = ("_arguments", "_ended", "_error", "_first")

    def __init__(self, kernel: abc.Callable[..., None], phases: NDArray[np.int64], arguments: tuple[Any, ...]) -> None:
        self._arguments = kernel, phases, *arguments
        self._first, self._ended = Lock(), Lock()
        self._ended.acquire()
        self._error: BaseException | None = None

    def begin(self) -> None:
        """Takes part, unless it has ended."""
        if not self._first.acquire(blocking=False):
            return
        try:
            _take_part(*self._arguments)
        except BaseException as error:  # noqa: BLE001  the caller's thread raises it
            self._error = error
        finally:
            self._arguments = ()  # a helper that waits for the next one keeps nothing alive
            self._ended.release()

    def end(self) -> BaseException | None:
        """It is over, or will never begin: there is nothing to do any more. What it failed at."""
        if self._first.acquire(blocking=False):
            self._arguments = ()
        else:
            self._ended.acquire()
        return self._error


def _take_part(kernel: abc.Callable[..., None], phases: NDArray[np.int64], *arguments: Any) -> None:
    try:
        kernel(phases, *arguments)
    except BaseException:
        phases[0, _FAILED] = 1
        raise


_jobs: "SimpleQueue[_Job]" = SimpleQueue()
_hiring = Lock()
_hired: list[Thread] = []


def _helpers(num_threads: int) -> "SimpleQueue[_Job]":
    """From where at least so many threads take what they have to do, until the process ends."""
    with _hiring:
        while len(_hired) < num_threads:
            _hired.append(Thread(target=_serve, args=(_jobs,), name=f"compute_{len(_hired)}", daemon=True))
            _hired[-1].start()
    return _jobs


def _serve(jobs: "SimpleQueue[_Job]") -> None:
    while True:
        jobs.get().begin()


@vector_code
def _add(_context: Any, address: Any, amount: Any) -> Generated:
    """The int64 at `address` as it was before `amount` was added."""

    def generate(_: Any, builder: ir.IRBuilder, _signature: Any, args: abc.Sequence[Any]) -> Any:
        pointer = builder.inttoptr(args[0], INT64.as_pointer())
        return builder.atomic_rmw("add", pointer, args[1], "acq_rel")

    return types.int64(types.intp, types.int64), generate


@vector_code
def _read(_context: Any, address: Any) -> Generated:
    """The int64 at `address`, and with it all that was written before it was."""

    def generate(_: Any, builder: ir.IRBuilder, _signature: Any, args: abc.Sequence[Any]) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], INT64.as_pointer()), "acquire", 8)

    return types.int64(types.intp), generate


@vector_code
def _rest(_context: Any) -> Generated:
    """Tells the core that its thread waits, where it has a word for that."""

    def generate(context: Any, builder: ir.IRBuilder, _signature: Any, _args: abc.Sequence[Any]) -> Any:
        if "x86_64" in context.codegen().magic_tuple()[0]:
            signature = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, signature, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


@vector_code
def _yield_core(_context: Any) -> Generated:
    """Another thread that wants the core has it first."""

    def generate(context: Any, builder: ir.IRBuilder, _signature: Any, _args: abc.Sequence[Any]) -> Any:
        if os.name == "posix":
            signature = ir.FunctionType(ir.IntType(32), [])
            builder.call(cgutils.get_or_insert_function(builder.module, signature, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate


@part
def take(phases: Any, phase: int, num_items: int) -> Any:
    """The first of `num_items` that the caller has to do, as far as there are any."""
    return _add(phases.ctypes.data + _PHASE_BYTES * phase, num_items)


@part
def done(phases: Any, phase: int, num_items: int) -> None:
    """`num_items` are done, and what they wrote is seen by whoever waits."""
    _add(phases.ctypes.data + _PHASE_BYTES * phase + _DONE_BYTES, num_items)


@part
def wait(phases: Any, phase: int, num_items: int) -> None:
    """All of the phase's items are done, or a thread has failed and the kernel only has to come to its end."""
    address, num_spins = phases.ctypes.data + _PHASE_BYTES * phase + _DONE_BYTES, 0
    while _read(address) < num_items:
        num_spins += 1
        if num_spins % _SPINS == 0:
            if _read(phases.ctypes.data + _FAILED_BYTES) != 0:
                return
            _yield_core()
        else:
            _rest()
