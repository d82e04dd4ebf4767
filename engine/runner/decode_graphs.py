"""Steps that decode only, recorded once for each of a ladder of sizes, so that a step is one launch.

A recording reads its inputs where they were when it was made: `StepColumns` puts those of one size there again.
"""

from collections import abc
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from engine.model.forward_batch import ForwardBatch

Forward = abc.Callable[[ForwardBatch], Tensor]
Action = abc.Callable[[], object]

_STRIDES = ((64, 8), (256, 16))  # up to this size, steps of that
_LAST_STRIDE = 32


class Recorder(Protocol):
    def record(self, compute: Action) -> Action:
        """What computes again, from the same addresses to the same addresses."""


class CudaRecorder:
    """CUDA graphs that share one pool of memory: only one of them runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, compute: Action) -> Action:
        # Once outside: kernels are compiled, and libraries take what they keep, where nothing is recorded.
        warming = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # torch
        warming.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(warming):
            compute()
        torch.cuda.current_stream(self._device).wait_stream(warming)
        graph = torch.cuda.CUDAGraph()
        # Whatever the thread that copies blocks does meanwhile is no part of it.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            compute()
        return graph.replay


class CallRecorder:
    """Computes anew each time: what a graph does, on devices that have none."""

    def record(self, compute: Action) -> Action:
        compute()
        return compute


class DecodeGraphs:
    """`sizes` ascend. A step of another number of tokens is padded to the next one, or not recorded."""

    def __init__(self, forward: Forward, recorder: Recorder, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self._forward = forward
        self._recorder = recorder
        self._replays: dict[int, Action] = {}
        self._logits = torch.empty(0)  # of all recordings: one for each would take gigabytes

    def record(self, batch_of: abc.Callable[[int], ForwardBatch]) -> None:
        """Every size has its recording; `batch_of` gives it padding only. The largest first: the others need less."""
        for size in reversed(self.sizes):
            batch = batch_of(size)
            if not self._replays:
                self._logits = torch.empty_like(self._forward(batch))
            self._replays[size] = self._recorder.record(partial(self._compute, size, batch))

    def run(self, size: int, batch: ForwardBatch) -> Tensor | None:
        """The logits of `batch`, which is padded to `size`, until the next call; None if that has no recording."""
        replay = self._replays.get(size)
        if replay is None:
            return None
        replay()
        return self._logits[: len(batch.sampled_index)]

    def _compute(self, size: int, batch: ForwardBatch) -> None:
        self._logits[:size] = self._forward(batch)


def ladder(max_num_seqs: int) -> tuple[int, ...]:
    """1, 2, 4, 8, 16, 24 and so on, ending with `max_num_seqs`: padding is less than a half, later than a tenth."""
    sizes, size = [1, 2, 4], 4
    while size < max_num_seqs:
        stride = next((stride for limit, stride in _STRIDES if size < limit), _LAST_STRIDE)
        size = (size // stride + 1) * stride
        sizes.append(size)
    return tuple(sorted({min(size, max_num_seqs) for size in sizes}))
