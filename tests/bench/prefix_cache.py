"""What it gives that prompts which begin alike are computed once: on the live engine, with the default model.

W5: 32 requests that all come at once, each with 512 tokens in common and 32 of its own, and 32 tokens of output; with
the cache and without it, one after the other. `throughput_ratio` is how much sooner the last one has ended with it,
`hit_rate` the part of the prompts' tokens that were found. The time to the first token of a prompt whose 512 tokens are
in the cache is held against that of one that has only the 32 of its own; they come one at a time, in turn. Every run
has other tokens, and a cache that is empty.
"""

import random
from dataclasses import replace
from statistics import median

from tests.bench.live_engine import Job, LiveEngine, Run
from tests.bench.report import Report, arguments

TENANT = "a"
NUM_REQUESTS, COMMON, OWN, OUTPUT = 32, 512, 32, 32
NUM_PAIRS = 12
WARM_S = 4.0  # until the first prompt, whose beginning all others share, is surely computed
GAP_S = 0.5
POOL_TOKENS = 32_768


def beginning(engine: LiveEngine, seed: int) -> tuple[int, ...]:
    """The tokens that the prompts of one run have in common."""
    rng = random.Random(f"beginning {seed}")
    return tuple(rng.randrange(1000, engine.backend.model.vocabulary_size) for _ in range(COMMON))


def serve_burst(engine: LiveEngine, num_requests: int, seed: int, *, caches: bool) -> Run:
    """W5, to the end of its last request."""
    jobs = [Job(0.0, TENANT, COMMON + OWN, OUTPUT, beginning=beginning(engine, seed))] * num_requests
    return engine.serve(
        jobs,
        lambda run: len(run.calls) == num_requests and not run.left[TENANT],
        seed=seed,
        enable_prefix_caching=caches,
    )


def serve_pairs(engine: LiveEngine, num_pairs: int, seed: int) -> tuple[list[float], list[float]]:
    """Times to the first token, in seconds: of prompts that are found but for their end, and of such ends alone."""
    warm = Job(0.0, TENANT, COMMON + OWN, 1, beginning=beginning(engine, seed))
    hits = [replace(warm, at_s=WARM_S + 2 * GAP_S * n) for n in range(num_pairs)]
    alone = [Job(job.at_s + GAP_S, TENANT, OWN, 1) for job in hits]
    jobs = [warm, *[job for pair in zip(hits, alone, strict=True) for job in pair]]
    run = engine.serve(
        jobs, lambda run: len(run.calls) == len(jobs) and not run.left[TENANT], seed=seed, enable_prefix_caching=True
    )
    calls = run.calls[1:]
    for call in calls[::2]:
        if call.usage is None or call.usage.num_cached_prompt_tokens != COMMON:
            raise RuntimeError(f"{call.generation_id} was to be found in the cache: {call.usage}")
    return [call.ttft_s for call in calls[::2]], [call.ttft_s for call in calls[1::2]]


def hit_rate(run: Run) -> float:
    """The part of all prompt tokens that was found."""
    stats = run.tenant(TENANT)
    return stats.num_found_tokens / (stats.num_found_tokens + stats.num_prefill_tokens)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    repetitions, num_requests, num_pairs = (1, 8, 3) if args.quick else (args.repetitions, NUM_REQUESTS, NUM_PAIRS)
    engine = LiveEngine(num_device_blocks=POOL_TOKENS // 16, block_size=16)
    report = Report(
        "prefix_cache",
        engine.describe() | {"requests": num_requests, "common": COMMON, "own": OWN, "output": OUTPUT},
    )
    serve_burst(engine, 4, 99, caches=False)  # warms up
    for number in range(repetitions):
        with_cache = serve_burst(engine, num_requests, number, caches=True)
        without = serve_burst(engine, num_requests, number, caches=False)
        hits, alone = serve_pairs(engine, num_pairs, number)
        report.add(
            throughput_ratio=without.seconds / with_cache.seconds,
            hit_ttft_over_unique_only=median(hits) / median(alone),
            hit_rate=hit_rate(with_cache),
            wall_s=with_cache.seconds,
            wall_without_s=without.seconds,
            hit_ttft_ms=median(hits) * 1e3,
            unique_only_ttft_ms=median(alone) * 1e3,
        )
    report.publish(args.json)


if __name__ == "__main__":
    main()
