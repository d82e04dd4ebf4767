"""Twice as much demand for KV blocks as there are, against admission that reserves whole requests in the same pool.

The live engine with the real model. Requests of 32-96/32-224 tokens come in evenly for a while, as many as need half
of the pool; then so many at once that all unfinished ones would, each at its full length, need twice the pool. The
pressure ends when they would fit the pool again; the even stream goes on for some seconds after that. Both sides get
the same requests at the same times, whatever became of those before (open loop). Throughput is that of the output
tokens while the pressure lasts; the time per output token of a request runs from its first token to its last one,
pauses included.
`recovery_s` is when, after the end of the pressure, the rate over a second was back at 90 % of the one before it.
"""

import itertools
import random
from collections import abc
from dataclasses import dataclass

from engine.core.config import AdmissionReserve
from tests.bench.live_engine import NANOS_PER_S, Call, Job, LiveEngine, Run, percentile
from tests.bench.report import Report, arguments
from tests.bench.step_table import step_table

POOL_TOKENS = 4_096
PROMPTS, OUTPUTS = (32, 96), (32, 224)
DEMAND = 2.0  # over the pool
TENANTS = ("a", "b")
AFTER_S = 8.0
RATE_S = 1.0
MIN_CALLS = 300


@dataclass(frozen=True, slots=True)
class Load:
    """Requests a second of the even stream, when the pressure begins, and the seed of the lengths."""

    per_s: float
    begins_s: float
    seed: int
    demand: float = DEMAND

    def jobs(self) -> abc.Iterator[Job]:
        """Without end."""
        rng = random.Random(self.seed)
        has_begun = False
        for index in itertools.count():
            at_s = index / self.per_s
            if at_s >= self.begins_s and not has_begun:
                has_begun = True
                yield from self._burst(rng)
            yield self._job(rng, at_s, index)

    def _burst(self, rng: random.Random) -> list[Job]:
        demand = self.demand - 0.5  # the rest is the even stream's
        burst: list[Job] = []
        while sum(job.prompt + job.output for job in burst) < demand * POOL_TOKENS:
            burst.append(self._job(rng, self.begins_s, len(burst)))
        return burst

    def _job(self, rng: random.Random, at_s: float, index: int) -> Job:
        return Job(at_s, TENANTS[index % len(TENANTS)], rng.randint(*PROMPTS), rng.randint(*OUTPUTS))


class Pressure:
    """Follows the demand of a run, so that it ends some time after the pressure has."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.ended_ns: int | None = None
        self.peak = 0.0

    def is_over(self, run: Run) -> bool:
        open_calls = [call for call in run.calls if call.ended_ns is None]
        demand = sum(call.job.prompt + call.job.output for call in open_calls) / POOL_TOKENS
        self.peak = max(self.peak, demand)
        if self.ended_ns is None and self.peak > 1.2 and demand <= 1.0:
            self.ended_ns = run.began_ns + round(run.elapsed_s * NANOS_PER_S)
        return self.ended_ns is not None and run.elapsed_s > (self.ended_ns - run.began_ns) / NANOS_PER_S + AFTER_S


@dataclass(frozen=True, slots=True)
class Side:
    """One run, with the moments between which the pressure lasted."""

    run: Run
    load: Load
    ended_ns: int
    peak: float

    @property
    def begun_ns(self) -> int:
        return self.run.began_ns + round(self.load.begins_s * NANOS_PER_S)

    def tokens(self, begin_ns: float, end_ns: float) -> int:
        return sum(begin_ns < at <= end_ns for call in self.run.calls for at in call.token_ns)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens(self.begun_ns, self.ended_ns) / (self.ended_ns - self.begun_ns) * NANOS_PER_S

    @property
    def recovery_s(self) -> float:
        """Infinite if the rate did not come back while it was watched."""
        since_ns = self.run.began_ns + self.load.begins_s / 2 * NANOS_PER_S  # the batch has filled by then
        before = self.tokens(since_ns, self.begun_ns) / (self.begun_ns - since_ns) * NANOS_PER_S
        for tenth in range(round(AFTER_S * 10)):
            at_ns = self.ended_ns + tenth * 1e8
            if self.tokens(at_ns - RATE_S * NANOS_PER_S, at_ns) / RATE_S >= 0.9 * before:
                return tenth / 10
        return float("inf")

    def complete(self) -> list[Call]:
        return [call for call in self.run.calls if call.is_complete]


def serve(engine: LiveEngine, load: Load, reserve: AdmissionReserve, policy: str) -> Side:
    pressure = Pressure(load)
    run = engine.serve(
        load.jobs(), pressure.is_over, policy=policy, waits_for=TENANTS, seed=load.seed, admission_reserve=reserve
    )
    assert pressure.ended_ns is not None
    return Side(run, load, pressure.ended_ns, pressure.peak)


def capacity(engine: LiveEngine, policy: str) -> float:
    """Requests a second that the engine can serve when the pool is half full, in order to send half as many."""
    jobs = Load(1.0, 0.0, 0)._burst(random.Random(0))[: POOL_TOKENS // 2 // 192]
    run = engine.serve(jobs, lambda run: bool(run.left) and not any(run.left.values()), policy=policy)
    return len(jobs) / run.seconds


def preemptions(side: Side) -> dict[str, float]:
    counts = [call.usage.num_preemptions for call in side.complete() if call.usage is not None]
    assert side.run.stats is not None
    tenants = side.run.stats.tenants
    recomputed = sum(tenant.num_recomputed_tokens for tenant in tenants)
    computed = recomputed + sum(tenant.num_prefill_tokens + tenant.num_output_tokens for tenant in tenants)
    return {
        "preempted_share": sum(count > 0 for count in counts) / len(counts),
        "max_preemptions_per_request": max(counts),
        "recomputed_token_share": recomputed / computed,
        "num_swaps": side.run.stats.num_swaps,
        "num_pauses": side.run.stats.num_pauses,
        "paused_share": sum(call.num_pauses > 0 for call in side.complete()) / len(counts),
    }


def compare(ours: Side, no_evict: Side) -> dict[str, float]:
    """One repetition."""
    return {
        "throughput_over_no_evict": ours.tokens_per_s / no_evict.tokens_per_s,
        "recovery_s": ours.recovery_s,
        "recovery_no_evict_s": no_evict.recovery_s,
        "tokens_per_s": ours.tokens_per_s,
        "tokens_per_s_no_evict": no_evict.tokens_per_s,
        "pressure_s": (ours.ended_ns - ours.begun_ns) / NANOS_PER_S,
        "pressure_no_evict_s": (no_evict.ended_ns - no_evict.begun_ns) / NANOS_PER_S,
        "peak_demand": ours.peak,
        "ttft_p50_over_no_evict": percentile([call.ttft_s for call in ours.complete()], 0.5)
        / percentile([call.ttft_s for call in no_evict.complete()], 0.5),
    } | preemptions(ours)


def pooled_tpot(sides: abc.Iterable[Side]) -> list[float]:
    return [call.tpot_s for side in sides for call in side.complete()]


def explain(side: Side) -> None:
    print(step_table([s for s in side.run.busy_steps() if side.begun_ns < s.ended_ns <= side.ended_ns]))
    slowest = sorted(side.complete(), key=lambda call: -call.tpot_s)[:5]
    for call in slowest:
        gaps = [b - a for a, b in zip(call.token_ns, call.token_ns[1:], strict=False)]
        print(
            f"due {call.job.at_s:5.1f} s {call.job.prompt}/{call.job.output} tpot {call.tpot_s * 1e3:.0f} ms,"
            f" largest gap {max(gaps) / 1e9:.2f} s,"
            f" {call.usage.num_preemptions} preemptions, {call.num_pauses} pauses in all"
        )


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--steps", action="store_true", help="also print what the steps held")
    parser.add_argument("--policy", default="fair")
    args = parser.parse_args()
    engine = LiveEngine(num_device_blocks=POOL_TOKENS // 16, block_size=16, max_num_seqs=64)
    per_s = capacity(engine, args.policy) / 2
    begins_s = 6.0 if args.quick else 10.0
    demand = 1.6 if args.quick else DEMAND
    ours: list[Side] = []
    no_evict: list[Side] = []
    report_rows = []
    for repetition in range(1 if args.quick else 3):
        load = Load(per_s, begins_s, repetition, demand)
        sides = [(ours, AdmissionReserve.GROWTH), (no_evict, AdmissionReserve.WHOLE)]
        for served, reserve in sides[:: -1 if repetition % 2 else 1]:
            served.append(serve(engine, load, reserve, args.policy))
            if args.steps:
                print(reserve)
                explain(served[-1])
        report_rows.append(compare(ours[-1], no_evict[-1]))
    tpot, tpot_no_evict = pooled_tpot(ours), pooled_tpot(no_evict)
    report = Report(
        "kv_pressure",
        engine.describe()
        | {
            "prompt": PROMPTS,
            "output": OUTPUTS,
            "demand_over_pool": demand,
            "policy": args.policy,
            "load": "open loop",
            "stream_requests_per_s": per_s,
            "num_requests": len(tpot),
            "p99_is_maximum": len(tpot) < MIN_CALLS,
            "client_late_p99_ms": max(side.run.late_ms() for side in [*ours, *no_evict]),
        },
    )
    share = 0.99 if len(tpot) >= MIN_CALLS else 1.0
    report.add(
        tpot_p99_over_no_evict=percentile(tpot, share) / percentile(tpot_no_evict, share),
        tpot_p50_over_no_evict=percentile(tpot, 0.5) / percentile(tpot_no_evict, 0.5),
        tpot_p99_ms=percentile(tpot, share) * 1e3,
    )
    for row in report_rows:
        report.add(**row)
    report.publish(args.json)


if __name__ == "__main__":
    main()
