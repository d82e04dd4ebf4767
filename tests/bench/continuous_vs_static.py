"""Continuous batching against static batching, on the same scheduler, runner and weights.

Two mixes of requests with 16-token prompts: 63 that generate 30 tokens with one of 800, and 15 of 20 with one of 1,000.
A batch is one mix; eight batches' worth of requests are queued at t = 0. Continuous: every request is handed over at
once. Static: the members of the next batch are handed over when the whole batch before is done. Rows that finish
leave the static batch's computation; with --padded they stay until the batch ends, as naive serving does it. A
latency runs from t = 0 to the request's own last token. Each repetition alternates the two sides on the same prompts.
"""

import math
import random
import statistics
import time
from collections import abc
from dataclasses import dataclass

import torch

from engine.core.config import SchedulerConfig
from engine.core.events import TokensEmitted
from engine.core.scheduler import Scheduler
from engine.core.types import Nanos, PathNode, Request, SamplingParams
from engine.model.loader import LoadedModel, load_model
from engine.plugins import load_preemption_policy, load_scheduling_policy
from engine.runner.model_runner import ModelRunner
from tests.bench.report import Report, arguments

PROMPT_TOKENS = 16
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Mix:
    """One batch: `num_short` requests of `short_tokens` and one of `long_tokens`."""

    name: str
    num_short: int
    short_tokens: int
    long_tokens: int

    def output_lengths(self, rng: random.Random) -> list[int]:
        lengths = [self.short_tokens] * self.num_short + [self.long_tokens]
        rng.shuffle(lengths)
        return lengths


MIXES = (Mix("63_1", 63, 30, 800), Mix("15_1", 15, 20, 1000))


@dataclass(frozen=True, slots=True)
class Job:
    """A request and the tokens that count: with padding a row computes more of them than its request wants."""

    request: Request
    wanted_tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds until each request's last wanted token, and until all were done."""

    latencies_s: dict[str, float]
    wall_s: float


def make_jobs(mix: Mix, num_batches: int, seed: int, vocabulary_size: int, *, padded: bool) -> list[list[Job]]:
    """The same seed gives the same prompts and order on both sides."""
    rng = random.Random(seed)
    batches = []
    for batch in range(num_batches):
        jobs = []
        for index, wanted in enumerate(mix.output_lengths(rng)):
            prompt = tuple(rng.randrange(1000, vocabulary_size) for _ in range(PROMPT_TOKENS))
            request = Request(
                generation_id=f"{mix.name}-{batch}-{index}",
                path=(PathNode("bench", 1.0),),
                prompt_token_ids=prompt,
                max_output_tokens=mix.long_tokens if padded else wanted,
                arrived_at=Nanos(0),
                sampling=SamplingParams(temperature=0.0),
            )
            jobs.append(Job(request, wanted))
        batches.append(jobs)
    return batches


def serve(runner: ModelRunner, config: SchedulerConfig, waves: abc.Sequence[list[Job]]) -> Outcome:
    """Serve wave after wave; a wave is handed over whole when everything before it is done."""
    scheduler = Scheduler(config, load_scheduling_policy("fcfs", {}), load_preemption_policy("latest_arrival", {}))
    started = time.monotonic_ns()

    def now() -> Nanos:
        return Nanos(time.monotonic_ns() - started)

    remaining = {job.request.generation_id: job.wanted_tokens for wave in waves for job in wave}
    latencies_s: dict[str, float] = {}
    for wave in waves:
        for job in wave:
            scheduler.add(job.request, now())
        while (plan := scheduler.plan(now())) is not None:
            output = runner.execute(plan)
            for event in scheduler.commit(output, now()):
                if not isinstance(event, TokensEmitted):
                    continue
                generation_id = event.key.generation_id
                remaining[generation_id] -= len(event.token_ids)
                if remaining[generation_id] <= 0:
                    latencies_s.setdefault(generation_id, now() / 1e9)
    return Outcome(latencies_s, now() / 1e9)


def percentile(values: abc.Sequence[float], share: float) -> float:
    """Nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def summarize(mix: Mix, batches: list[list[Job]], outcome: Outcome) -> dict[str, float]:
    jobs = [job for batch in batches for job in batch]
    short = [outcome.latencies_s[job.request.generation_id] for job in jobs if job.wanted_tokens == mix.short_tokens]
    return {
        "tokens_per_second": sum(job.wanted_tokens for job in jobs) / outcome.wall_s,
        "short_mean_latency_s": statistics.mean(short),
        "short_p95_latency_s": percentile(short, 0.95),
    }


def bench_config(mix: Mix) -> SchedulerConfig:
    """As many rows as the mix has requests, and room for the longest request in each of them."""
    num_rows = mix.num_short + 1
    max_model_len = PROMPT_TOKENS + mix.long_tokens
    return SchedulerConfig(
        max_num_seqs=num_rows,
        max_num_batched_tokens=256,
        block_size=BLOCK_SIZE,
        num_device_blocks=num_rows * -(-max_model_len // BLOCK_SIZE),
        max_model_len=max_model_len,
    )


def compare(model: LoadedModel, mix: Mix, num_batches: int, seed: int, *, padded: bool) -> dict[str, float]:
    """One repetition of one mix on both sides. Odd seeds run static first, so that drift favours neither side."""
    config = bench_config(mix)
    runner = ModelRunner(model, config)
    vocabulary_size = model.info.vocabulary_size
    continuous_jobs = make_jobs(mix, num_batches, seed, vocabulary_size, padded=False)
    static_jobs = make_jobs(mix, num_batches, seed, vocabulary_size, padded=padded)
    sides = {
        "continuous": lambda: summarize(
            mix, continuous_jobs, serve(runner, config, [[job for batch in continuous_jobs for job in batch]])
        ),
        "static": lambda: summarize(mix, static_jobs, serve(runner, config, static_jobs)),
    }
    order = ("static", "continuous") if seed % 2 else ("continuous", "static")
    results = {side: sides[side]() for side in order}
    fast, slow = results["continuous"], results["static"]
    metrics = {f"{side}_{key}_{mix.name}": value for side, result in results.items() for key, value in result.items()}
    metrics[f"throughput_ratio_{mix.name}"] = fast["tokens_per_second"] / slow["tokens_per_second"]
    metrics[f"short_p95_latency_ratio_{mix.name}"] = slow["short_p95_latency_s"] / fast["short_p95_latency_s"]
    return metrics


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--padded", action="store_true", help="static rows stay until their batch ends")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    num_batches, repetitions = (2, 1) if args.quick else (8, args.repetitions)
    model = load_model(None, dtype="bfloat16")
    report = Report(
        "continuous_vs_static",
        {
            "model": model.info.name,
            "dtype": model.info.dtype,
            "threads": args.threads,
            "padded": args.padded,
            "batches": num_batches,
            "prompt_tokens": PROMPT_TOKENS,
        },
    )
    warm_up = Mix("warm_up", 7, 8, 16)
    compare(model, warm_up, 1, 0, padded=False)
    for repetition in range(repetitions):
        for mix in MIXES:
            report.add(**compare(model, mix, num_batches, repetition, padded=args.padded))
            metrics = report.samples[f"continuous_tokens_per_second_{mix.name}"]
            if mix is MIXES[0]:
                report.add(tokens_per_second=metrics[-1])
    report.publish(args.json)


if __name__ == "__main__":
    main()
