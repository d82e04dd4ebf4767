"""What batch-invariant steps cost: the same prompts and outputs with and without them, on the same weights.

Prompts are computed in chunks, then all rows decode together, greedily and with top-p. The two kinds of steps alternate
within a repetition. Rates are tokens a second of the runner alone, without the scheduler.
"""

import random
import time
from dataclasses import dataclass

import torch

from engine import machine
from engine.core.config import SchedulerConfig
from engine.core.plan import RowStart, StepPlan
from engine.core.types import BlockId, SamplingParams, SequenceKey
from engine.model.loader import LoadedModel, load_model
from engine.runner.model_runner import ModelRunner
from tests.bench.report import Report, arguments

BLOCK_SIZE = 16
SAMPLINGS = {"greedy": SamplingParams(temperature=0.0), "top_p": SamplingParams(temperature=1.0, top_p=0.9, seed=1)}


@dataclass(frozen=True, slots=True)
class Work:
    """`num_rows` prompts of `prompt_tokens`, in chunks of `chunk_tokens`, then `output_tokens` of each row."""

    num_rows: int
    prompt_tokens: int
    output_tokens: int
    chunk_tokens: int = 256

    @property
    def blocks_per_row(self) -> int:
        return -(-(self.prompt_tokens + self.output_tokens) // BLOCK_SIZE)


class Bench:
    """One runner, and steps built by hand."""

    def __init__(self, model: LoadedModel, work: Work, *, batch_invariant: bool) -> None:
        config = SchedulerConfig(
            max_num_seqs=work.num_rows,
            max_num_batched_tokens=max(work.num_rows, work.chunk_tokens),
            block_size=BLOCK_SIZE,
            num_device_blocks=work.num_rows * work.blocks_per_row,
            max_model_len=model.config.context_tokens,
        )
        self._work = work
        self._vocabulary_size = model.config.vocabulary_size
        self._runner = ModelRunner(model, config, batch_invariant=batch_invariant)
        self._runner.warm_up()
        self._step_id = 1

    def measure(self, seed: int, sampling: SamplingParams) -> tuple[float, float]:
        """Prompt tokens a second, and output tokens a second."""
        work, rng = self._work, random.Random(seed)
        started = tuple(self._start(row, rng, sampling) for row in range(work.num_rows))
        began = time.perf_counter()
        for start in started:
            for first in range(0, work.prompt_tokens, work.chunk_tokens):
                count = min(work.chunk_tokens, work.prompt_tokens - first)
                self._step((start,) if first == 0 else (), (start.row,), first, count)
        prompted = time.perf_counter()
        rows = tuple(range(work.num_rows))
        for index in range(work.output_tokens):
            self._step((), rows, work.prompt_tokens + index, 1)
        ended = time.perf_counter()
        return (
            work.num_rows * work.prompt_tokens / (prompted - began),
            work.num_rows * work.output_tokens / (ended - prompted),
        )

    def _start(self, row: int, rng: random.Random, sampling: SamplingParams) -> RowStart:
        first = row * self._work.blocks_per_row
        block_ids = tuple(BlockId(block) for block in range(first, first + self._work.blocks_per_row))
        prompt = tuple(rng.randrange(1000, self._vocabulary_size) for _ in range(self._work.prompt_tokens))
        return RowStart(row, SequenceKey(f"bench-{row}", 0), prompt, len(prompt), block_ids, sampling)

    def _step(self, started: tuple[RowStart, ...], rows: tuple[int, ...], first: int, count: int) -> None:
        samples = first + count >= self._work.prompt_tokens
        same = len(rows)
        plan = StepPlan(self._step_id, (), started, (), rows, (first,) * same, (count,) * same, (samples,) * same)
        self._runner.execute(plan)
        self._step_id += 1


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=machine.num_cores())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = load_model(None, dtype=args.dtype, device="cpu")
    work = Work(4, 64, 8) if args.quick else Work(32, 512, 64)
    sides = {"plain": False, "invariant": True}
    benches = {side: Bench(model, work, batch_invariant=invariant) for side, invariant in sides.items()}
    report = Report("batch_invariance", {"model": model.info.name, "dtype": args.dtype, "threads": args.threads})
    for seed in range(1 if args.quick else 3):
        for name, sampling in SAMPLINGS.items():
            rates = {side: bench.measure(seed, sampling) for side, bench in benches.items()}
            for side, (prompt, output) in rates.items():
                report.add(**{f"{side}_prompt_tokens_per_s": prompt, f"{side}_{name}_tokens_per_s": output})
            slower = [
                1 - invariant / plain for invariant, plain in zip(rates["invariant"], rates["plain"], strict=True)
            ]
            report.add(prompt_cost=slower[0], **{f"{name}_cost": slower[1]})
    report.publish(args.json)


if __name__ == "__main__":
    main()
