"""How far apart two backlogged tenants get, in virtual time: policy `fair` with its default options against `fcfs`.

The A10G line, a pool of 10,000 tokens, every tenant backlogged from the first second to the last. Scenarios: two
tenants of 256/256 tokens; eight; three of weights 1:2:4. The gap is the largest difference of work over weight between
two tenants in any window of 15 s x sum of weights / smallest weight, over the window's fair share. With `--live` two
tenants are measured on the live engine, too, with the default model and 128/128 tokens.
"""

import random
from collections import abc
from dataclasses import dataclass

from engine.core.config import SchedulerConfig
from engine.core.types import Nanos
from engine.decision_log import PolicyChoice
from engine.sim.cost_lines import A10G
from engine.sim.requests import Tenancy
from engine.sim.run import Setup, make_replica
from engine.sim.samples import Samples, windowed_gap
from engine.sim.traffic.row import NANOS_PER_S, Arrival
from engine.sim.world import World
from tests.bench.report import Report, arguments

PROMPT, OUTPUT = 256, 256
POOL_TOKENS = 10_000
BLOCK_SIZE = 16
WINDOW_S = 15.0
NUM_WINDOWS = 6  # windows' worth of seconds that are measured, after one that is not
FAIR, FCFS = PolicyChoice("fair", {}), PolicyChoice("fcfs", {})


@dataclass(frozen=True, slots=True)
class Scenario:
    """Tenants by weight, all of them backlogged."""

    name: str
    weights: abc.Mapping[str, float]

    @property
    def window_s(self) -> float:
        return WINDOW_S * sum(self.weights.values()) / min(self.weights.values())

    @property
    def end_s(self) -> float:
        return self.window_s * (NUM_WINDOWS + 1)


SCENARIOS = (
    Scenario("two", {"o/a": 1.0, "o/b": 1.0}),
    Scenario("eight", {f"o/t{index}": 1.0 for index in range(8)}),
    Scenario("weights", {"o/one": 1.0, "o/two": 2.0, "o/four": 4.0}),
)


@dataclass(frozen=True, slots=True)
class Result:
    """One run: gap and weight error over fair share, tokens a second, the largest gap in cost units, and its bound."""

    gap: float
    weight_error: float
    tokens_per_s: float
    largest_gap: float
    bound: float


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--max-num-batched-tokens", type=int, default=256, metavar="C")
    parser.add_argument("--live", action="store_true", help="also measure the live engine (three minutes)")
    args = parser.parse_args()
    report = Report(
        "fairness",
        {
            "cost_line": A10G.name,
            "pool_tokens": POOL_TOKENS,
            "max_num_batched_tokens": args.max_num_batched_tokens,
            "prompt": PROMPT,
            "output": OUTPUT,
            "windows_s": {scenario.name: scenario.window_s for scenario in SCENARIOS},
        },
    )
    fair = {each.name: simulate(each, FAIR, args.max_num_batched_tokens) for each in SCENARIOS}
    first = {each.name: simulate(each, FCFS, args.max_num_batched_tokens) for each in SCENARIOS}
    for name, result in fair.items():
        report.add(
            **{
                f"gap_over_fair_share_{name}": result.gap,
                f"gap_over_fair_share_{name}_fcfs": first[name].gap,
                f"throughput_over_fcfs_{name}": result.tokens_per_s / first[name].tokens_per_s,
            }
        )
    report.add(
        gap_over_fair_share=max(result.gap for result in fair.values()),
        throughput_over_fcfs=min(fair[name].tokens_per_s / first[name].tokens_per_s for name in fair),
        weight_error=fair["weights"].weight_error,
        largest_gap=fair["two"].largest_gap,
        bound_2g=fair["two"].bound,
    )
    if args.live:
        from tests.bench.live_fairness import live_gap

        report.add(live_gap_over_fair_share=live_gap())
    report.publish(args.json)


def simulate(scenario: Scenario, policy: PolicyChoice, num_batched_tokens: int) -> Result:
    """One run in virtual time. Nothing is random, so one is enough."""
    setup = Setup(make_config(num_batched_tokens), A10G, policy, PolicyChoice("over_served", {}))
    tenancy = Tenancy(scenario.weights)
    samples = Samples()
    replica = make_replica(setup)
    world = World([replica], A10G, samples, tenancy)
    world.run(backlog(scenario, scenario.end_s), until=Nanos(round(scenario.end_s * NANOS_PER_S)))
    span = (scenario.window_s, scenario.end_s)
    tokens = sum(served.until(round(span[1] * NANOS_PER_S)) for served in samples.served.values())
    return Result(
        gap=windowed_gap(samples, scenario.weights, scenario.window_s, span),
        weight_error=weight_error(samples, scenario, span),
        tokens_per_s=samples.num_output_tokens / scenario.end_s,
        largest_gap=largest_gap(samples, scenario, span) if tokens else 0.0,
        bound=bound_2g(replica.scheduler),
    )


def make_config(num_batched_tokens: int) -> SchedulerConfig:
    return SchedulerConfig(
        max_num_seqs=64,
        max_num_batched_tokens=num_batched_tokens,
        block_size=BLOCK_SIZE,
        num_device_blocks=POOL_TOKENS // BLOCK_SIZE,
        max_model_len=4096,
        num_host_blocks=2 * POOL_TOKENS // BLOCK_SIZE,
    )


def backlog(scenario: Scenario, seconds: float) -> list[Arrival]:
    """More requests at once than any tenant can be served in that time, whoever else is there."""
    num_requests = int(seconds * 600 / OUTPUT) + 64
    tenants = [tenant for tenant in scenario.weights for _ in range(num_requests)]
    random.Random(0).shuffle(tenants)  # an order that takes turns would be fair by itself
    return [Arrival(0, tenant, PROMPT, OUTPUT) for tenant in tenants]


def weight_error(samples: Samples, scenario: Scenario, span: tuple[float, float]) -> float:
    """The largest distance of a tenant's share from its weight's, over the latter, in any window of the span."""
    total = sum(scenario.weights.values())
    worst = 0.0
    since = span[0]
    while since + scenario.window_s <= span[1] + 1e-9:
        work = {name: samples.work(name, since, since + scenario.window_s) for name in scenario.weights}
        served = sum(work.values())
        for name, weight in scenario.weights.items():
            worst = max(worst, abs(work[name] / served * total / weight - 1))
        since += 1.0
    return worst


def largest_gap(samples: Samples, scenario: Scenario, span: tuple[float, float]) -> float:
    """The largest |W_f/w_f - W_g/w_g| over all intervals of the span, in cost units."""
    worst = 0.0
    names = list(scenario.weights)
    moments = range(round(span[0] * 10), round(span[1] * 10) + 1)  # tenths of a second
    for index, first in enumerate(names):
        for second in names[index + 1 :]:
            gaps = [
                samples.work(first, 0.0, at / 10) / scenario.weights[first]
                - samples.work(second, 0.0, at / 10) / scenario.weights[second]
                for at in moments
            ]
            worst = max(worst, max(gaps) - min(gaps))
    return worst


def bound_2g(scheduler: object) -> float:
    """2G of the policy as it stands, G = Θ + δ of one tenant; 0 for a policy that states no bound."""
    lifecycle = scheduler.lifecycle  # type: ignore[attr-defined]  # a bench may look inside
    policy = lifecycle.policy.policy.policy
    flow = next(iter(lifecycle.flows.all()))
    if not hasattr(policy, "threshold"):
        return 0.0
    return 2 * (policy.threshold(flow)[-1] + policy.step_bound(flow)[-1])


if __name__ == "__main__":
    main()
