"""A grid of steps on the live runner, and the cost line through them.

Shapes: prompts by chunk and start, decodes by rows and context, both together, copies. Each is repeated and its median
taken; the line is least squares over relative errors with no coefficient below 0, the same fit that the engine corrects
its own prices with. What the scheduler itself takes is not in it.
"""

import statistics
import time
from collections import abc
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from engine.core.config import SchedulerConfig
from engine.core.costs import Prices, StepCosts
from engine.core.plan import RowStart, StepPlan
from engine.core.types import BlockId, SamplingParams, SequenceKey
from engine.server.backend import Backend
from engine.sim.cost_lines import CostLine

if TYPE_CHECKING:  # it imports torch
    from engine.runner.model_runner import ModelRunner

REPETITIONS = 5
MIN_REPETITIONS = 2
CHUNK_SHARES = (1, 4, 16)  # of the token budget
CONTEXTS = (16, 256, 1024, 4096)
ROW_SHARES = (1, 2, 4, 16)  # of the rows, and one row

OnProgress = abc.Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class Shape:
    """One step of the grid: decodes of `context` tokens each, and a chunk of `chunk` tokens from `start` on."""

    num_decodes: int = 0
    context: int = 0
    start: int = 0
    chunk: int = 0

    def __str__(self) -> str:
        parts = [f"{self.num_decodes} decodes of {self.context:,}"] if self.num_decodes else []
        if self.chunk:
            parts.append(f"chunk of {self.chunk:,} from {self.start:,}")
        return " + ".join(parts)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a shape took, and what the line says of it."""

    shape: Shape
    step_ns: float
    fitted_ns: float = 0.0

    @property
    def residual(self) -> float:
        """Relative: 0.1 says that the line is a tenth too slow."""
        return self.fitted_ns / self.step_ns - 1


@dataclass(frozen=True, slots=True)
class Profile:
    """The line, and the measurements that it was fitted to."""

    line: CostLine
    measurements: tuple[Measurement, ...]


def _nobody(done: int, total: int) -> None:
    """No progress is shown."""


def profile_line(backend: Backend) -> CostLine:
    """The cost line of a loaded model on this machine."""
    return profile(backend).line


def profile(backend: Backend, *, budget_s: float = 60.0, on_progress: OnProgress = _nobody) -> Profile:
    """Measure the grid in about `budget_s` seconds, small shapes first; later ones are left out when it is used up."""
    import numpy as np

    from engine.calibration import NUM_COUNTS, fit, step_counts

    runner = cast("ModelRunner", backend.runner)
    shapes = sorted(
        grid(backend.config), key=lambda shape: shape.chunk + shape.num_decodes * (1 + shape.context // 256)
    )
    deadline = time.perf_counter() + budget_s
    rows, times = [], []
    measured: list[Measurement] = []
    for index, shape in enumerate(shapes):
        if time.perf_counter() > deadline and len(measured) > NUM_COUNTS:
            break
        plan = make_plan(backend.config, shape)
        step_ns = _measure(runner, plan, deadline)
        rows.append(step_counts(plan) / step_ns)
        times.append(step_ns)
        measured.append(Measurement(shape, step_ns))
        on_progress(index + 1, len(shapes))
    relative = np.array(rows)
    coefficients = fit(relative.T @ relative, relative.sum(0))
    prices = _prices(backend, StepCosts(*coefficients.tolist()))
    fitted = (relative @ coefficients * np.array(times)).tolist()
    line = CostLine(f"{backend.model.name} {backend.model.dtype}", prices)
    return Profile(line, tuple(replace(each, fitted_ns=ns) for each, ns in zip(measured, fitted, strict=True)))


def grid(config: SchedulerConfig) -> list[Shape]:
    """Shapes that fit the engine's limits and its pool."""
    longest = config.max_request_tokens - 1  # a token is sampled behind what is computed
    rows = sorted({1, *(max(1, config.max_num_seqs // share) for share in ROW_SHARES)})
    contexts = [context for context in CONTEXTS if context <= longest]
    chunks = sorted({config.max_num_batched_tokens // share for share in CHUNK_SHARES})
    decodes = [Shape(num_rows, context) for num_rows in rows for context in contexts]
    prompts = [Shape(start=start, chunk=chunk) for start in (0, *contexts[1:]) for chunk in chunks]
    mixed = [
        Shape(num_rows, context, 0, chunk - num_rows)
        for num_rows in rows[:-1]
        for context in contexts[1:2]
        for chunk in chunks
        if num_rows < config.max_num_seqs
    ]
    return [shape for shape in (*decodes, *prompts, *mixed) if _fits(config, shape)]


def make_plan(config: SchedulerConfig, shape: Shape) -> StepPlan:
    """The plan of a shape, which starts its rows anew; blocks are shared out from the first."""
    starts = [_row(config, row, shape.context) for row in range(shape.num_decodes)]
    rows, begins, lengths = (
        [*range(shape.num_decodes)],
        [shape.context - 1] * shape.num_decodes,
        [1] * shape.num_decodes,
    )
    if shape.chunk:
        starts.append(_row(config, shape.num_decodes, shape.start + shape.chunk))
        rows.append(shape.num_decodes)
        begins.append(shape.start)
        lengths.append(shape.chunk)
    columns = tuple(rows), tuple(begins), tuple(lengths), (True,) * len(rows)
    return StepPlan(0, (), tuple(starts), (), *columns)


def _fits(config: SchedulerConfig, shape: Shape) -> bool:
    blocks = [-(-shape.context // config.block_size)] * shape.num_decodes
    blocks.append(-(-(shape.start + shape.chunk) // config.block_size))
    num_tokens = shape.num_decodes + shape.chunk
    is_chunk = shape.chunk == 0 or (shape.chunk > 1 and shape.start + shape.chunk < config.max_request_tokens)
    return num_tokens <= config.max_num_batched_tokens and is_chunk and sum(blocks) <= config.num_device_blocks


def _row(config: SchedulerConfig, row: int, num_tokens: int) -> RowStart:
    num_blocks = -(-num_tokens // config.block_size)
    begin = min(row * num_blocks, config.num_device_blocks - num_blocks)
    block_ids = tuple(BlockId(begin + index) for index in range(num_blocks))
    return RowStart(row, SequenceKey("", row), (0,) * num_tokens, num_tokens, block_ids, SamplingParams())


def _measure(runner: "ModelRunner", plan: StepPlan, deadline: float) -> float:
    runner.execute(plan)  # the first time of a shape may be another
    again = replace(plan, started=())
    elapsed: list[int] = []
    while len(elapsed) < MIN_REPETITIONS or (len(elapsed) < REPETITIONS and time.perf_counter() < deadline):
        began = time.perf_counter_ns()
        runner.execute(again)
        elapsed.append(time.perf_counter_ns() - began)
    return statistics.median(elapsed)


def _prices(backend: Backend, step: StepCosts) -> Prices:
    """The line's steps, and copies as they were measured when the model was loaded."""
    if backend.calibrator is None:
        return Prices(step, are_measured=True)
    measured = backend.calibrator.prices
    return replace(measured, step=replace(step, copied_block_ns=measured.step.copied_block_ns))
