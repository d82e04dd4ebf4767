"""Small simulations: an engine with room for a few requests, seeded traffic, and what each plan was."""

import random
from collections import abc
from dataclasses import dataclass, field, replace

from engine.core import invariants
from engine.core.config import SchedulerConfig
from engine.core.costs import Prices, StepCosts
from engine.core.leap import Leap
from engine.core.plan import StepPlan
from engine.core.policy import SchedulingPolicy
from engine.core.scheduler import Scheduler
from engine.core.types import Nanos
from engine.decision_log import plan_digest
from engine.plugins import load_preemption_policy, load_scheduling_policy
from engine.sim.cost_lines import CostLine
from engine.sim.requests import Tenancy
from engine.sim.samples import Samples
from engine.sim.service_meter import meter
from engine.sim.traffic.row import NANOS_PER_S, Arrival
from engine.sim.world import Replica, World

MS = 1e6
CHECKED_STEPS = 5  # the invariants cost more than a step
LINE = CostLine(
    "test",
    Prices(
        StepCosts(base_ns=5 * MS, prefill_token_ns=0.3 * MS, decode_ns=1 * MS, decode_key_ns=1000),
        copy_out_block_ns=2 * MS,
        copy_in_block_ns=1 * MS,
    ),
)


def make_config(**fields: object) -> SchedulerConfig:
    defaults: dict[str, object] = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "block_size": 4,
        "num_device_blocks": 64,
        "max_model_len": 512,
    }
    return SchedulerConfig(**(defaults | fields))  # type: ignore[arg-type]


def random_traffic(
    seed: int,
    num_requests: int = 60,
    rate: float = 6.0,
    tenants: int = 3,
    *,
    cancels: bool = True,
    max_prompt: int = 60,
    max_output: int = 90,
) -> list[Arrival]:
    rng = random.Random(seed)
    at = 0.0
    arrivals = []
    for _ in range(num_requests):
        at += rng.expovariate(rate)
        arrivals.append(
            Arrival(
                round(at * NANOS_PER_S),
                f"o{rng.randrange(2)}/t{rng.randrange(tenants)}",
                rng.randint(1, max_prompt),
                rng.randint(1, max_output),
                cancel_after_ns=rng.randrange(1, NANOS_PER_S) if cancels and rng.random() < 0.1 else None,
            )
        )
    return arrivals


def with_prefixes(arrivals: abc.Iterable[Arrival]) -> list[Arrival]:
    """The same, but every prompt begins like that of each third request, with pieces of eight tokens."""
    return [
        replace(arrival, prefix_ids=(0, number % 3, 10 + number % 3, 100 + number), prefix_block_size=8)
        for number, arrival in enumerate(arrivals)
    ]


@dataclass
class Simulation:
    """A world of one engine whose plans are kept: step id to the time and digest of the plan."""

    world: World
    samples: Samples
    scheduler: Scheduler
    plans: dict[int, tuple[int, str]] = field(default_factory=dict)
    num_leaps: int = 0

    def run(self, traffic: abc.Iterable[Arrival]) -> None:
        self.ended_at = self.world.run(traffic)


class KeepingScheduler(Scheduler):
    """Tells each plan, and checks the invariants after each step."""

    keep: abc.Callable[[StepPlan, Nanos], None]

    def plan(self, now: Nanos) -> StepPlan | None:
        plan = super().plan(now)
        if plan is not None and plan.step_id % CHECKED_STEPS == 0:
            invariants.check(self)
        if plan is not None:
            self.keep(plan, now)
        return plan


class KeepingLeap(Leap):
    keep: abc.Callable[[StepPlan, Nanos], None]

    def take(self, times: abc.Sequence[Nanos]) -> StepPlan | None:
        plan = super().take(times)
        invariants.check(self._scheduler)
        if plan is not None:
            self.keep(plan, self._scheduler.open_plan[1].now)
        return plan


def make_simulation(
    policy: str | SchedulingPolicy = "fcfs",
    preemption: str = "latest_arrival",
    line: CostLine = LINE,
    *,
    leaps: bool = False,
    weights: abc.Mapping[str, float] | None = None,
    **fields: object,
) -> Simulation:
    loaded = load_scheduling_policy(policy, {}) if isinstance(policy, str) else policy
    metered = meter(loaded)
    scheduler = KeepingScheduler(make_config(**fields), metered, load_preemption_policy(preemption, {}))
    leap = KeepingLeap(scheduler) if leaps else None
    samples = Samples()
    simulation = Simulation(
        World([Replica(scheduler, metered, leap)], line, samples, Tenancy(weights or {})), samples, scheduler
    )

    def keep(plan: StepPlan, now: Nanos) -> None:
        simulation.plans[plan.step_id] = (now, plan_digest(plan))

    def keep_leap(plan: StepPlan, now: Nanos) -> None:
        simulation.num_leaps += 1
        keep(plan, now)

    scheduler.keep = keep
    if leap is not None:
        leap.keep = keep_leap
    return simulation
