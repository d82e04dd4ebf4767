"""What steps took and held, by bucket, since the engine began. Three increments a step, whatever it holds.

Knows no metric by name: `engine.server.metrics` does. Written on the engine thread; what it tells is a copy.
"""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass

from engine.core.plan import StepPlan

NS_PER_S = 1e9
MEASURED_STEPS = 256

# Upper bounds, inclusive. A step takes half a millisecond on a large device and seconds on a small one.
STEP_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
STEP_SEQUENCES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
STEP_TOKENS = (1.0, 4.0, 16.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)


@dataclass(frozen=True, slots=True)
class Buckets:
    """How many values were at most each of `bounds` and above the one before; the last count is of those above all."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Histogram:
    """Values by bucket."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def told(self) -> Buckets:
        """As of now."""
        return Buckets(self._bounds, tuple(self._counts), self._total)


@dataclass(frozen=True, slots=True)
class StepBuckets:
    """Seconds, sequences and tokens of the steps so far."""

    seconds: Buckets
    sequences: Buckets
    tokens: Buckets


class StepFigures:
    """Of steps that computed something: those that only begin copies are none."""

    def __init__(self) -> None:
        self.num_steps = 0
        self._last_ns: deque[int] = deque(maxlen=MEASURED_STEPS)
        self._seconds, self._sequences, self._tokens = (
            Histogram(STEP_S),
            Histogram(STEP_SEQUENCES),
            Histogram(STEP_TOKENS),
        )

    @property
    def mean_step_ms(self) -> float:
        """Of the last steps; 0 before the first one."""
        return sum(self._last_ns) / len(self._last_ns) / 1e6 if self._last_ns else 0.0

    def add(self, plan: StepPlan, step_ns: int) -> None:
        """The step of `plan` took `step_ns`."""
        self.num_steps += 1
        self._last_ns.append(step_ns)
        self._seconds.add(step_ns / NS_PER_S)
        self._sequences.add(len(plan.rows))
        self._tokens.add(sum(plan.num_tokens))

    def told(self) -> StepBuckets:
        """As of now."""
        return StepBuckets(self._seconds.told(), self._sequences.told(), self._tokens.told())
