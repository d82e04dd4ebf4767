"""What steps and copies take on this machine: measured at the start, corrected by every step and copy after it.

A step's time is a linear function of six counts (`StepCosts`). The coefficients are those of least squares over
relative errors, none below 0: of the measurements at the start, which cover all six and are never forgotten, and of the
steps since, whose weight halves every 256 steps. So what live traffic shows wins, and what it does not show keeps
its value.
"""

from collections import abc
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from engine.core.costs import Prices, StepCosts, num_chunk_keys
from engine.core.plan import CopyDirection, StepPlan
from engine.core.types import Nanos

FORGETTING = 0.5 ** (1 / 256)
START_WEIGHT = 2.0  # steps that each measurement of the start counts for
MAX_SURPRISE = 4.0  # a step that took longer than so many times what was expected was disturbed, and counts for so much
MAX_DRIFT = 8.0  # furthest that a price moves from its value at the start, as a factor
NOTABLE_CHANGE = 0.1
INTERVAL_NS = 1_000_000_000

NUM_COUNTS = 6

# Steps by whose price a change is judged, in the counts of `step_counts`: decodes, few and many, a prompt's first chunk
# and a late one, a step beside which a block is copied. A coefficient alone may wander without consequence.
TYPICAL_STEPS = np.array(
    (
        (1.0, 0.0, 0.0, 1.0, 256.0, 0.0),
        (1.0, 0.0, 0.0, 16.0, 16_384.0, 0.0),
        (1.0, 256.0, 32_896.0, 0.0, 0.0, 0.0),
        (1.0, 256.0, 557_184.0, 0.0, 0.0, 0.0),
        (1.0, 0.0, 0.0, 1.0, 256.0, 16.0),
    )
)

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CopyTiming:
    """What the link took for one copy, `elapsed_ns` for all of its blocks together."""

    direction: CopyDirection
    num_blocks: int
    elapsed_ns: int


@dataclass(frozen=True, slots=True)
class Start:
    """What was measured before the first request.

    counts  [n, 6] of each step · step_ns  [n] what it took · copy_*_ns  as in `Prices`
    """

    counts: Vector
    step_ns: Vector
    copy_out_block_ns: float
    copy_in_block_ns: float
    copy_launch_ns: float


def step_counts(plan: StepPlan) -> Vector:
    """[6]: what each coefficient of `StepCosts` is multiplied by. A chunk of one token counts as a decode, so does a
    draft."""
    num_rows = plan.num_tokens.count(1) + sum(map(bool, plan.num_drafts))  # of decodes, those with drafts last
    lengths, starts = plan.num_tokens[num_rows:], plan.starts[num_rows:]
    prefill_keys = sum(map(num_chunk_keys, starts, lengths))
    num_decodes = sum(plan.num_tokens[:num_rows])
    if num_decodes == num_rows:  # without drafts, as in most steps: each token sees those before it, and itself
        decode_keys = sum(plan.starts[:num_rows]) + num_rows
    else:
        decode_keys = sum(map(num_chunk_keys, plan.starts[:num_rows], plan.num_tokens[:num_rows]))
    num_copied = sum(len(copy.device_block_ids) for copy in plan.copies)
    return np.array((1.0, sum(lengths), prefill_keys, num_decodes, decode_keys, num_copied))


def fit(matrix: Vector, target: Vector) -> Vector:
    """[6]: the solution of the normal equations that has no entry below 0; the most negative one is left out first."""
    scale = np.sqrt(np.diag(matrix))
    scale[scale == 0] = 1.0
    matrix, target = matrix / np.outer(scale, scale), target / scale
    solution = np.zeros(len(target))
    kept = list(range(len(target)))
    while kept:
        found = np.linalg.lstsq(matrix[np.ix_(kept, kept)], target[kept], rcond=None)[0]
        if found.min() >= 0:
            solution[kept] = found
            break
        kept.pop(int(found.argmin()))
    coefficients: Vector = solution / scale
    return coefficients


class Calibrator:
    """`prices` are what the scheduler is to reckon with now. Engine thread only."""

    def __init__(self, start: Start) -> None:
        relative = start.counts / start.step_ns[:, None]
        self._known = START_WEIGHT * relative.T @ relative
        self._known_target = START_WEIGHT * relative.sum(0)
        self._seen, self._seen_target = np.zeros((NUM_COUNTS, NUM_COUNTS)), np.zeros(NUM_COUNTS)
        self._start = self._coefficients = fit(self._known, self._known_target)
        self._highest = np.where(self._start > 0, self._start * MAX_DRIFT, np.inf)
        self._out = _CopyPrice(start.copy_out_block_ns)
        self._in = _CopyPrice(start.copy_in_block_ns)
        self._launch_ns = start.copy_launch_ns
        self._checked_at: Nanos | None = None
        self.prices = self._current_prices()

    def observe_step(self, plan: StepPlan, elapsed_ns: int) -> None:
        """The step took that long."""
        counts = step_counts(plan)
        expected_ns = max(1.0, float(counts @ self._coefficients))
        relative = counts / min(max(elapsed_ns, expected_ns / MAX_SURPRISE), expected_ns * MAX_SURPRISE)
        self._seen *= FORGETTING
        self._seen += relative[:, None] * relative
        self._seen_target *= FORGETTING
        self._seen_target += relative

    def observe_copies(self, timings: abc.Iterable[CopyTiming]) -> None:
        """These copies have ended."""
        for timing in timings:
            (self._out if timing.direction is CopyDirection.OUT else self._in).observe(timing)

    def due(self, now: Nanos) -> Prices | None:
        """New prices, if the price of a typical step or copy has changed by a tenth; at most once a second."""
        if self._checked_at is not None and now - self._checked_at < INTERVAL_NS:
            return None
        self._checked_at = now
        found = fit(self._known + self._seen, self._known_target + self._seen_target)
        self._coefficients = np.clip(found, self._start / MAX_DRIFT, self._highest)
        prices = self._current_prices()
        if not _differs(prices, self.prices):
            return None
        self.prices = prices
        return prices

    def _current_prices(self) -> Prices:
        step = StepCosts(*self._coefficients.tolist())
        return Prices(step, self._out.block_ns, self._in.block_ns, self._launch_ns, are_measured=True)


class _CopyPrice:
    """Nanoseconds per block in one direction."""

    def __init__(self, start_ns: float) -> None:
        self._start_ns = start_ns
        self._elapsed_ns = self._num_blocks = 0.0

    @property
    def block_ns(self) -> float:
        seen_ns = (self._elapsed_ns + START_WEIGHT * self._start_ns) / (self._num_blocks + START_WEIGHT)
        return min(max(seen_ns, self._start_ns / MAX_DRIFT), self._start_ns * MAX_DRIFT)

    def observe(self, timing: CopyTiming) -> None:
        self._elapsed_ns = self._elapsed_ns * FORGETTING + timing.elapsed_ns
        self._num_blocks = self._num_blocks * FORGETTING + timing.num_blocks


def _differs(prices: Prices, told: Prices) -> bool:
    now, before = _judged(prices), _judged(told)
    return bool((np.abs(now - before) > NOTABLE_CHANGE * before).any())


def _judged(prices: Prices) -> Vector:
    step_ns = TYPICAL_STEPS @ np.array(astuple(prices.step))
    return np.append(step_ns, (prices.copy_out_block_ns, prices.copy_in_block_ns))
