"""Measures a runner before its first request: steps of a few shapes, and copies of blocks in both directions.

It invents the input: only the shape of a step decides how long it takes. Shapes come in the order of what they tell,
so that a slow device that runs out of time still has the base of its prices.
"""

import statistics
import threading
import time
from collections import abc
from dataclasses import replace

import numpy as np

from engine.calibration import NUM_COUNTS, Calibrator, CopyTiming, Start, Vector, step_counts
from engine.core.config import SchedulerConfig
from engine.core.costs import Prices
from engine.core.plan import BlockCopy, CopyDirection, RowStart, StepPlan
from engine.core.types import BlockId, CopyId, HostBlockId, SamplingParams, SequenceKey
from engine.runner.model_runner import ModelRunner

BUDGET_S = 1.0
REPETITIONS = 3  # of each shape, fewer of a long one; the one that was least disturbed counts
SHAPE_S = 0.1
LONG_CONTEXT = 1024
MAX_COPIED_BLOCKS = 64
COPY_TIMEOUT_S = 10.0  # a link that takes longer for a few blocks is broken

Measured = tuple[Vector, float]


def measure(runner: ModelRunner, config: SchedulerConfig, budget_s: float = BUDGET_S) -> Calibrator:
    """Prices for `runner`, which has computed nothing but its warm-up. Takes about `budget_s`; leaves nothing behind
    but garbage in blocks that nobody owns yet."""
    plans = tuple(shapes(config))
    # Memory that nobody has written is read as one page, from the nearest cache.
    num_blocks = 1 + max((block for plan in plans for row in plan.started for block in row.block_ids), default=-1)
    runner.kv_cache.blocks[:num_blocks].zero_()
    deadline = time.perf_counter() + budget_s
    out_ns, in_ns, launch_ns = _measure_copies(runner, config)
    measured: list[Measured] = []
    for plan in plans:
        # The first shapes are short, and without them there is nothing to go by.
        if len(measured) >= 4 and time.perf_counter() > deadline:
            break
        measured.append(_measure_step(runner, plan, deadline))
    if config.num_host_blocks and measured:
        measured.append(_measure_beside_copy(runner, config, measured[0][1] / out_ns))
    counts = np.array([counts for counts, _ in measured]).reshape(-1, NUM_COUNTS)
    step_ns = np.array([ns for _, ns in measured])
    return Calibrator(Start(counts, step_ns, out_ns, in_ns, launch_ns))


def shapes(config: SchedulerConfig) -> abc.Iterator[StepPlan]:
    """Plans that each start their rows anew, as many as fit the pool."""
    longest = config.max_request_tokens - 1  # a token is sampled behind what is computed
    context = max(1, min(LONG_CONTEXT, longest // 2))
    chunk = min(config.max_num_batched_tokens, longest - context)
    many = max(1, config.max_num_seqs // 4)
    if longest:
        yield decodes(config, 1, min(16, longest))
        yield from prefill(config, 0, chunk // 4)
        yield decodes(config, many, min(16, longest))
        yield decodes(config, 1, context)
        yield decodes(config, min(8, config.max_num_seqs), context)
        yield from prefill(config, context, chunk // 4)
        yield from prefill(config, 0, chunk // 16)
        yield from prefill(config, 0, chunk)


def prefill(config: SchedulerConfig, start: int, num_tokens: int) -> abc.Iterator[StepPlan]:
    """A chunk [start, start + num_tokens) of one prompt; none if it would be a decode."""
    if num_tokens > 1:
        row = _row(config, 0, start + num_tokens, BlockId(0))
        yield StepPlan(0, (), (row,), (), (0,), (start,), (num_tokens,), (True,))


def decodes(config: SchedulerConfig, num_rows: int, context: int) -> StepPlan:
    """A token for each of `num_rows`, whose keys lie in different blocks as far as the pool goes."""
    blocks_per_row = -(-context // config.block_size)
    last_begin = config.num_device_blocks - blocks_per_row
    begins = (min(row * blocks_per_row, last_begin) for row in range(num_rows))
    rows = tuple(_row(config, row, context, BlockId(begin)) for row, begin in enumerate(begins))
    columns = tuple(range(num_rows)), (context - 1,) * num_rows, (1,) * num_rows, (True,) * num_rows
    return StepPlan(0, (), rows, (), *columns)


def _row(config: SchedulerConfig, row: int, num_tokens: int, begin: BlockId) -> RowStart:
    block_ids = tuple(BlockId(begin + index) for index in range(-(-num_tokens // config.block_size)))
    return RowStart(row, SequenceKey("", row), (0,) * num_tokens, num_tokens, block_ids, SamplingParams())


def _measure_step(runner: ModelRunner, plan: StepPlan, deadline: float) -> Measured:
    until = min(deadline, time.perf_counter() + SHAPE_S)
    again = replace(plan, started=())
    elapsed = [_elapsed_ns(runner, plan), _elapsed_ns(runner, again)]  # the first time may take longer
    while len(elapsed) < REPETITIONS and time.perf_counter() < until:
        elapsed.append(_elapsed_ns(runner, again))
    return step_counts(plan), min(elapsed)


def _elapsed_ns(runner: ModelRunner, plan: StepPlan) -> int:
    started_at = time.perf_counter_ns()
    runner.execute(plan)
    return time.perf_counter_ns() - started_at


def _measure_copies(runner: ModelRunner, config: SchedulerConfig) -> tuple[float, float, float]:
    """(nanoseconds per block out, in, nanoseconds per copy); what `Prices` says where there is no host pool."""
    if not config.num_host_blocks:
        prices = Prices()
        return prices.copy_out_block_ns, prices.copy_in_block_ns, prices.copy_launch_ns
    by_direction = {}
    launches = []
    for direction in CopyDirection:
        _copy(runner, _block_copy(config, direction, MAX_COPIED_BLOCKS))  # host memory is made when it is first used
        timings = [_copy(runner, _block_copy(config, direction, MAX_COPIED_BLOCKS))[0] for _ in range(REPETITIONS)]
        by_direction[direction] = statistics.median(timing.elapsed_ns / timing.num_blocks for timing in timings)
        for _ in range(REPETITIONS):
            timing, until_told_ns = _copy(runner, _block_copy(config, direction, 1))
            launches.append(max(0, until_told_ns - by_direction[direction] * timing.num_blocks))
    return by_direction[CopyDirection.OUT], by_direction[CopyDirection.IN], statistics.median(launches)


def _measure_beside_copy(runner: ModelRunner, config: SchedulerConfig, num_blocks: float) -> Measured:
    """The shortest step, beside a copy of about its length."""
    copy = _block_copy(config, CopyDirection.OUT, max(1, int(num_blocks)))
    plan = replace(next(shapes(config)), copies=(copy,))
    elapsed = []
    for _ in range(REPETITIONS):
        with _Completion(runner) as completion:
            elapsed.append(_elapsed_ns(runner, plan))
            completion.wait()
    return step_counts(plan), min(elapsed)


def _block_copy(config: SchedulerConfig, direction: CopyDirection, num_blocks: int) -> BlockCopy:
    num_blocks = min(num_blocks, MAX_COPIED_BLOCKS, config.num_device_blocks, config.num_host_blocks)
    ids = range(num_blocks)
    return BlockCopy(CopyId(0), direction, tuple(map(BlockId, ids)), tuple(map(HostBlockId, ids)))


def _copy(runner: ModelRunner, copy: BlockCopy) -> tuple[CopyTiming, int]:
    """What the link took, and the nanoseconds from the plan until the thread of the steps could know."""
    with _Completion(runner) as completion:
        started_at = time.perf_counter_ns()
        runner.execute(StepPlan(0, copies=(copy,)))
        completion.wait()
        until_told_ns = time.perf_counter_ns() - started_at
    return completion.timings[-1], until_told_ns


class _Completion:
    """Waits for the only copy that is under way, and takes what it left."""

    def __init__(self, runner: ModelRunner) -> None:
        self.timings: tuple[CopyTiming, ...] = ()
        self._runner = runner
        self._event = threading.Event()

    def __enter__(self) -> "_Completion":
        self._runner.wake_on_completion(self._event.set)
        return self

    def wait(self) -> None:
        if not self._event.wait(COPY_TIMEOUT_S):
            raise TimeoutError(f"a copy between the pools took more than {COPY_TIMEOUT_S:.0f} s")

    def __exit__(self, *_: object) -> None:
        self._runner.take_completed()
        self.timings = self._runner.take_copy_timings()
