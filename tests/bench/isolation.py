"""A tenant with one short request a second, beside one that floods the engine: the live engine with the real model.

B sends a request of 32/16 tokens each second, A 24 of 1,024/256 at once; the pool holds 8,192 tokens. A round is A and
B together until A is done, then B alone, then A alone, in an order that changes. All latencies run from the moment when
a request was due, and B's requests are served to their end although A has ended. `aggressor_throughput_kept` is A's
service a second beside B, over A's alone times (1 - B's share of the service of both), where a prompt token counts 1
and an output token 2; `..._by_time` takes B's share of the engine's time by the measured prices instead.

A full run takes rounds until B has sent 300 requests beside A, and one with `fcfs`: about 20 minutes on two cores, of
which a round is seven. --rounds N ends it earlier, --no-fcfs saves the last round.
"""

import itertools
from collections import abc
from dataclasses import dataclass, field

from tests.bench.live_engine import Job, LiveEngine, Run, merge, percentile
from tests.bench.report import Report, arguments
from tests.bench.step_table import step_table

POOL_TOKENS = 8_192
SHORT = (32, 16)
SOLO_S = 60.0
MIN_CALLS = 300
MIN_FCFS_CALLS = 60


@dataclass(frozen=True, slots=True)
class Flood:
    """What A sends at once, and the seconds after which it is looked at even if it is not done."""

    num_requests: int = 24
    prompt: int = 1_024
    output: int = 256
    window_s: float = float("inf")

    def jobs(self) -> list[Job]:
        return [Job(0.0, "a", self.prompt, self.output)] * self.num_requests

    def is_over(self, run: Run) -> bool:
        return run.elapsed_s > self.window_s or (bool(run.left) and not run.left["a"])


@dataclass(slots=True)
class Rounds:
    """What was measured under one policy, pooled."""

    beside: list[Run] = field(default_factory=list)
    alone: list[Run] = field(default_factory=list)

    def calls(self) -> list:
        return [call for run in self.beside for call in run.of("b")]


def each_second() -> abc.Iterator[Job]:
    """B's requests, without end."""
    return (Job(0.5 + second, "b", *SHORT) for second in itertools.count())


def serve_round(engine: LiveEngine, policy: str, flood: Flood, seed: int, rounds: Rounds) -> None:
    """A and B together, and A alone; which comes first changes."""
    sides = [(rounds.beside, lambda: merge(flood.jobs(), each_second())), (rounds.alone, flood.jobs)]
    for runs, jobs in sides[:: -1 if seed % 2 else 1]:
        runs.append(engine.serve(jobs(), flood.is_over, policy=policy, waits_for=("b",), seed=seed))


def serve_solo(engine: LiveEngine, seconds: float, seed: int) -> Run:
    return engine.serve(each_second(), lambda run: run.elapsed_s > seconds, waits_for=("b",), seed=seed)


def throughput_kept(rounds: Rounds, engine: LiveEngine) -> dict[str, list[float]]:
    """Per round."""
    kept: dict[str, list[float]] = {"aggressor_throughput_kept": [], "aggressor_throughput_kept_by_time": []}
    for beside, alone in zip(rounds.beside, rounds.alone, strict=True):
        rate = beside.work("a") / beside.seconds
        rate_alone = alone.work("a") / alone.seconds
        share = beside.work("b") / (beside.work("a") + beside.work("b"))
        kept["aggressor_throughput_kept"].append(rate / rate_alone / (1 - share))
        kept["aggressor_throughput_kept_by_time"].append(rate / rate_alone / (1 - time_share(beside, engine)))
    return kept


def time_share(run: Run, engine: LiveEngine) -> float:
    """The part of the engine's time that B's chunks and decodes added to its steps."""
    costs, stats = engine.backend.calibrator.prices.step, run.tenant("b")
    num_requests = stats.num_prefill_tokens / SHORT[0]
    keys = stats.num_output_tokens * (SHORT[0] + SHORT[1] / 2)
    return (num_requests * costs.chunk_ns(0, SHORT[0]) + costs.decodes_ns(stats.num_output_tokens, keys)) / (
        run.over_ns - run.began_ns
    )


def summarize(rounds: Rounds, solo: abc.Sequence[Run]) -> dict[str, float]:
    """The figures of one policy that are pooled over its rounds."""
    calls, solo_calls = rounds.calls(), [call for run in solo for call in run.of("b")]
    ttft, solo_ttft = [c.ttft_s for c in calls], [c.ttft_s for c in solo_calls]
    solo_p99 = percentile(solo_ttft, 0.99)
    step_p99_s = percentile([step.ms for run in rounds.beside for step in run.busy_steps()], 0.99) / 1e3
    return {
        "ttft_p99_over_line": percentile(ttft, 0.99) / max(1.5 * solo_p99, solo_p99 + 2 * step_p99_s),
        "ttft_p50_over_solo": percentile(ttft, 0.5) / percentile(solo_ttft, 0.5),
        "ttft_p99_over_solo": percentile(ttft, 0.99) / solo_p99,
        "e2e_p99_over_solo": percentile([c.e2e_s for c in calls], 0.99)
        / percentile([c.e2e_s for c in solo_calls], 0.99),
        "step_p99_ms": step_p99_s * 1e3,
        "ttft_p50_ms": percentile(ttft, 0.5) * 1e3,
        "ttft_p99_ms": percentile(ttft, 0.99) * 1e3,
        "ttft_max_ms": max(ttft) * 1e3,
        "solo_ttft_p50_ms": percentile(solo_ttft, 0.5) * 1e3,
        "solo_ttft_p99_ms": solo_p99 * 1e3,
        "num_requests": len(calls),
    }


def add_policy(report: Report, engine: LiveEngine, rounds: Rounds, solo: abc.Sequence[Run], suffix: str = "") -> None:
    figures = summarize(rounds, solo)
    if suffix:
        del figures["step_p99_ms"], figures["solo_ttft_p50_ms"], figures["solo_ttft_p99_ms"]
    report.add(**{key + suffix: value for key, value in figures.items()})
    for key, values in throughput_kept(rounds, engine).items():
        for value in values:
            report.add(**{key + suffix: value})
    for runs, name in ((rounds.beside, "beside"), (rounds.alone, "alone")):
        for run in runs:
            report.add(**{f"aggressor_seconds_{name}{suffix}": run.seconds})


def explain(run: Run) -> None:
    """Where B's slowest first tokens were spent: the steps between due and token, and the run's steps by kind."""
    print(step_table(run.busy_steps()))
    for call in sorted(run.of("b"), key=lambda call: -call.ttft_s)[:8]:
        held = [s for s in run.steps if s.ended_ns > call.due_ns and s.began_ns < call.token_ns[0]]
        shown = ", ".join(f"{s.num_decodes}d+{s.num_chunk_tokens}p/{s.num_chunks}:{s.ms:.0f}ms" for s in held[:12])
        print(f"due {call.job.at_s:6.1f} s  ttft {call.ttft_s * 1e3:6.0f} ms  pauses {call.num_pauses}  {shown}")


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, help="end after so many rounds, however few requests B has sent")
    parser.add_argument("--steps", action="store_true", help="also print what the steps held, and B's slowest ones")
    parser.add_argument("--no-fcfs", action="store_true", help="leave the other policy out")
    args = parser.parse_args()
    engine = LiveEngine(num_device_blocks=POOL_TOKENS // 16, block_size=16)
    flood = Flood(window_s=25.0) if args.quick else Flood()
    solo_s = 15.0 if args.quick else SOLO_S
    max_rounds = args.rounds or (1 if args.quick else 99)
    fair, fcfs, solo = Rounds(), Rounds(), [serve_solo(engine, 5.0, 99)]
    solo.clear()  # that was the warm-up
    for number in range(max_rounds):
        if len(fair.calls()) >= MIN_CALLS:
            break
        if number % 2:
            solo.append(serve_solo(engine, solo_s, number))
        serve_round(engine, "fair", flood, number, fair)
        if not number % 2:
            solo.append(serve_solo(engine, solo_s, number))
        if args.steps:
            explain(fair.beside[-1])
    while not args.no_fcfs and len(fcfs.calls()) < (1 if args.quick else MIN_FCFS_CALLS):
        serve_round(engine, "fcfs", Flood(8, 1_024, 32) if args.quick else flood, len(fcfs.beside), fcfs)
    runs = [*fair.beside, *fcfs.beside, *solo]
    report = Report(
        "isolation",
        engine.describe()
        | {
            "flood": f"{flood.num_requests} of {flood.prompt}/{flood.output}",
            "short": f"one of {SHORT[0]}/{SHORT[1]} a second",
            "load": "open loop",
            "rounds": len(fair.beside),
            "num_solo": sum(len(run.calls) for run in solo),
            "p99_is_maximum": len(fair.calls()) < MIN_CALLS,
            "client_late_p99_ms": max(run.late_ms() for run in runs),
            "client_cpu_share": sum(run.client_cpu_s for run in runs) / sum(run.seconds for run in runs),
        },
    )
    add_policy(report, engine, fair, solo)
    if not args.no_fcfs:
        add_policy(report, engine, fcfs, solo, "_fcfs")
    report.publish(args.json)


if __name__ == "__main__":
    main()
