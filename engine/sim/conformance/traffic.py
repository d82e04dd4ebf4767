"""Whole runs: the real scheduler, tiny pools, random traffic, and a runner that notices every corrupted block.

After every call all invariants of the scheduler are checked, and what is free is poisoned. Requests arrive while others
run, some are cancelled, some have readers that stop reading for a while.
"""

import random
from collections import abc
from dataclasses import dataclass, field

from engine.core import invariants
from engine.core.config import PreemptionChoice, SchedulerConfig
from engine.core.events import Event, Finished, TokensEmitted
from engine.core.plan import StepPlan
from engine.core.policy import PreemptionPolicy, SchedulingPolicy
from engine.core.scheduler import Scheduler
from engine.core.types import FinishReason, Nanos, PathNode, PriorityClass, Request, SamplingParams
from engine.sim.conformance.report import require
from engine.sim.reference_runner import VOCABULARY_SIZE, ReferenceRunner, expected_output

STEP_NS = 10_000_000
START = Nanos(0)
STEPS_PER_SWITCH = 10
MAX_IDLE_STEPS = 64  # above the residency, the longest copy and the plan that follows it
TEAMS = (("x", "a", 1.0), ("x", "b", 2.0), ("y", "c", 0.5), ("y", "d", 1.0), ("z", "e", 4.0))
CLASSES = (PriorityClass("default", 1, 0.1), PriorityClass("interactive", 0, 0.0, preemptible=False))

Policies = abc.Callable[[], tuple[SchedulingPolicy, PreemptionPolicy]]


@dataclass(frozen=True, slots=True)
class Setting:
    """A pool, what is done when it is short, and what comes. The largest request has `max_tokens`."""

    name: str
    num_device_blocks: int = 24
    num_host_blocks: int = 0
    preemption: PreemptionChoice = PreemptionChoice.RECOMPUTE
    max_copy_delay: int = 0
    num_requests: int = 40
    max_tokens: int = 48
    enable_chunked_prefill: bool = True
    num_draft_tokens: int = 0

    def config(self) -> SchedulerConfig:
        """The scheduler's settings: four rows, steps of 12 tokens, blocks of four."""
        return SchedulerConfig(
            max_num_seqs=4,
            max_num_batched_tokens=12 if self.enable_chunked_prefill else 4 * self.num_device_blocks,
            block_size=4,
            num_device_blocks=self.num_device_blocks,
            max_model_len=1024,
            growth_reserve_tokens=0,
            max_prefill_share=0.5 if self.enable_chunked_prefill else 1.0,
            enable_chunked_prefill=self.enable_chunked_prefill,
            num_host_blocks=self.num_host_blocks,
            preemption_mode=self.preemption,
            num_draft_tokens=self.num_draft_tokens,
        )


SETTINGS = (
    Setting("recompute"),
    Setting("swap", num_host_blocks=64, preemption=PreemptionChoice.SWAP),
    Setting("slow copies", num_host_blocks=64, preemption=PreemptionChoice.AUTO, max_copy_delay=5, num_draft_tokens=3),
    Setting("small host pool", num_host_blocks=6, preemption=PreemptionChoice.AUTO, max_copy_delay=2),
    Setting("whole prompts", enable_chunked_prefill=False),
)
TIGHT_SETTINGS = (  # blocks for one and a half of the largest request: 12 of 4 tokens each
    Setting("tight, recompute", num_device_blocks=18, num_requests=24),
    Setting("tight, swap", num_device_blocks=18, num_host_blocks=64, preemption=PreemptionChoice.SWAP, num_requests=24),
)


@dataclass
class Run:
    """One scheduler from the first request to the last. `events` and `plans` are what it told, in order."""

    setting: Setting
    policies: Policies
    seed: int = 0
    switches: list[Policies] = field(default_factory=list)  # what takes over, one each `STEPS_PER_SWITCH` steps
    events: list[Event] = field(default_factory=list)
    plans: list[StepPlan] = field(default_factory=list)
    now: Nanos = START
    num_idle_steps: int = 0

    def __post_init__(self) -> None:
        self.requests = random_requests(self.setting, self.seed)
        self.scheduler = Scheduler(self.setting.config(), *self.policies())
        self.runner = ReferenceRunner(4, max_copy_delay=self.setting.max_copy_delay, seed=self.seed)
        self.blocked: list[str] = []

    def play(self) -> None:
        """Everything has arrived and ended. ConformanceError if the run stops before that."""
        rng = random.Random(self.seed)  # noqa: S311 - traffic, not secrets
        for index, request in enumerate(self.requests):
            self.scheduler.add(request, self.now)
            for _ in range(rng.randint(0, 3)):
                self.step()
            if index % 9 == 8:
                earlier = self.requests[index - rng.randint(0, 4)].generation_id
                self._note(self.scheduler.abort(earlier, FinishReason.CANCELLED, self.now))
            self._let_readers_stop(rng)
        self._let_readers_go_on()
        while self.scheduler.has_unfinished or self.scheduler.num_copies_in_flight:
            self.step()

    def step(self) -> None:
        """One step's time passes: a plan is run, or only copies go on."""
        if self.switches and len(self.plans) % STEPS_PER_SWITCH == STEPS_PER_SWITCH - 1:
            scheduling, preemption = self.switches.pop(0)()
            self.scheduler.set_scheduling_policy(scheduling, self.now)
            self.scheduler.set_preemption_policy(preemption, self.now)
            self._check()
        plan = self.scheduler.plan(self.now)
        self._check()
        self.now = Nanos(self.now + STEP_NS)
        if plan is None:
            copy_ids = self.runner.wait()
            if copy_ids:
                self._note(self.scheduler.complete_copies(copy_ids, self.now))
        else:
            self.plans.append(plan)
            self._note(self.scheduler.commit(self.runner.execute(plan), self.now))
        self._watch(plan)

    def _watch(self, plan: StepPlan | None) -> None:
        """The run goes on as long as tokens are computed now and then, unless nobody may have any."""
        fault = self.scheduler.policy_fault
        require(fault is None, f"the policy was replaced: {fault}")
        is_idle = plan is None or not plan.rows
        everyone_waits_for_a_reader = len(self.blocked) >= len(self.scheduler.lifecycle.by_generation)
        self.num_idle_steps = self.num_idle_steps + 1 if is_idle and not everyone_waits_for_a_reader else 0
        require(
            self.num_idle_steps <= MAX_IDLE_STEPS,
            f"{self.setting.name}: nothing was computed in {self.num_idle_steps} steps although requests wait",
        )

    def _let_readers_stop(self, rng: random.Random) -> None:
        if rng.random() < 0.2:
            self._let_readers_go_on()
        if rng.random() < 0.2:
            generation_id = rng.choice(self.requests).generation_id
            if generation_id in self.scheduler.lifecycle.by_generation and generation_id not in self.blocked:
                self.blocked.append(generation_id)
                self.scheduler.set_reader_blocked(generation_id, blocked=True, now=self.now)
                self._check()

    def _let_readers_go_on(self) -> None:
        for generation_id in self.blocked:
            self.scheduler.set_reader_blocked(generation_id, blocked=False, now=self.now)
            self._check()
        self.blocked.clear()

    def _note(self, events: list[Event]) -> None:
        self.events += events
        self._check()

    def _check(self) -> None:
        invariants.check(self.scheduler)
        blocks = self.scheduler.lifecycle.blocks
        self.runner.poison(blocks.pool.free_ids, blocks.host_pool.free_ids)


def check_service(policies: Policies, setting: Setting) -> None:
    """Every request ends once, with the undisturbed output or, if it was cancelled, a part of it; nothing is left."""
    run = Run(setting, policies)
    run.play()
    check_requests(run)


def check_requests(run: Run) -> None:
    """What a run that has been played gave to each request, and that nothing is left of it."""
    for request in run.requests:
        _check_request(run, request)
    setting, blocks = run.setting, run.scheduler.lifecycle.blocks
    require(blocks.num_free == setting.num_device_blocks, f"{setting.name}: device blocks are lost")
    require(blocks.host_pool.num_free == setting.num_host_blocks, f"{setting.name}: host blocks are lost")


def check_switch(policies: Policies, others: Policies, setting: Setting) -> None:
    """Nothing is lost when the policy takes over from another one while requests run, and hands over again."""
    run = Run(setting, others, switches=[policies, others] * setting.num_requests)
    run.play()
    check_requests(run)


def check_repetition(policies: Policies, setting: Setting) -> None:
    """The same calls give the same plans and the same events."""
    first, second = Run(setting, policies, seed=1), Run(setting, policies, seed=1)
    first.play()
    second.play()
    require(first.plans == second.plans, f"{setting.name}: the same calls gave other plans")
    require(first.events == second.events, f"{setting.name}: the same calls gave other events")


def random_requests(setting: Setting, seed: int) -> list[Request]:
    """Of several tenants, weights, classes and lengths, the longest among them."""
    rng = random.Random(seed)  # noqa: S311 - traffic, not secrets
    return [_random_request(rng, setting, index) for index in range(setting.num_requests)]


def _random_request(rng: random.Random, setting: Setting, index: int) -> Request:
    organization, team, weight = rng.choice(TEAMS)
    half = setting.max_tokens // 2
    is_largest = index % 8 == 7
    return Request(
        generation_id=f"g{index}",
        path=(PathNode(organization, 1.0), PathNode(team, weight)),
        prompt_token_ids=tuple(
            rng.randrange(VOCABULARY_SIZE) for _ in range(half if is_largest else rng.randint(1, half))
        ),
        max_output_tokens=half if is_largest else rng.randint(1, half),
        arrived_at=Nanos(index * STEP_NS),
        sampling=SamplingParams(seed=index),
        priority_class=CLASSES[rng.random() < 0.25],
    )


def _check_request(run: Run, request: Request) -> None:
    name = f"{run.setting.name}: {request.generation_id}"
    ends = [e for e in run.events if isinstance(e, Finished) and e.key.generation_id == request.generation_id]
    require(len(ends) == 1, f"{name} ended {len(ends)} times")
    output = [
        token_id
        for event in run.events
        if isinstance(event, TokensEmitted) and event.key.generation_id == request.generation_id
        for token_id in event.token_ids
    ]
    expected = expected_output(request)
    if ends[0].reason is FinishReason.CANCELLED:
        expected = expected[: len(output)]
    require(output == expected, f"{name} was given {output}, alone it is given {expected}")
