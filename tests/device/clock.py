"""How long the device takes. On a CPU the same calls are timed by the wall, so that they can be tried anywhere."""

import itertools
import statistics
import time
from collections import abc

import torch

_SHORTEST_MS = 1e-6  # a clock may stand still


class Clock:
    """`median_ms` of work that is repeated, after it was done once untimed."""

    def __init__(self, device: torch.device, num_repetitions: int) -> None:
        self._device = device
        self._num_repetitions = num_repetitions

    def median_ms(self, work: abc.Callable[[], object]) -> float:
        """Of the device's own time, between events."""
        work()
        if self._device.type != "cuda":
            return statistics.median(self._wall_ms(work) for _ in range(self._num_repetitions))
        events = [torch.cuda.Event(enable_timing=True) for _ in range(self._num_repetitions + 1)]
        events[0].record()
        for event in events[1:]:
            work()
            event.record()
        events[-1].synchronize()
        return max(_SHORTEST_MS, statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(events)))

    def median_wall_ms(self, work: abc.Callable[[], object]) -> float:
        """Of the caller's time, the device's work included."""
        work()
        return statistics.median(self._wall_ms(work) for _ in range(self._num_repetitions))

    def _wall_ms(self, work: abc.Callable[[], object]) -> float:
        self._finish()
        started_at = time.perf_counter()
        work()
        self._finish()
        return max(_SHORTEST_MS, 1e3 * (time.perf_counter() - started_at))

    def _finish(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
