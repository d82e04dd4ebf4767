"""Requests, schedulers and a driver with a virtual clock. Nothing here reads a real clock or sleeps."""

import itertools
from collections import abc

from engine.core import invariants
from engine.core.config import SchedulerConfig
from engine.core.events import Event, Finished, TokensEmitted
from engine.core.flow import Flows
from engine.core.plan import StepPlan
from engine.core.policy import PreemptionPolicy, SchedulingPolicy
from engine.core.scheduler import Scheduler
from engine.core.sequence import Sequence
from engine.core.types import FinishReason, Nanos, PathNode, Request, SamplingParams
from engine.plugins import load_preemption_policy, load_scheduling_policy
from tests.fakes import ConstantRunner, ReferenceRunner

STEP_NS = 1_000_000

_serial = itertools.count()


def make_path(tenant: str, weight: float = 1.0) -> tuple[PathNode, ...]:
    """The path of a team that is alone in its organization."""
    return (PathNode(f"org-{tenant}", 1.0), PathNode(tenant, weight))


def make_request(
    generation_id: str | None = None,
    *,
    tenant: str = "a",
    weight: float = 1.0,
    prompt: int | abc.Sequence[int] = 12,
    max_output_tokens: int = 4,
    **fields: object,
) -> Request:
    """A request. `prompt` is its tokens, or how many; `fields` are any other fields of Request."""
    number = next(_serial)
    token_ids = prompt if isinstance(prompt, abc.Sequence) else [(number * 31 + i) % 97 for i in range(prompt)]
    defaults: dict[str, object] = {
        "arrived_at": Nanos(0),
        "sampling": SamplingParams(seed=number),
        "path": make_path(tenant, weight),
    }
    return Request(
        generation_id=f"g{number}" if generation_id is None else generation_id,
        prompt_token_ids=tuple(token_ids),
        max_output_tokens=max_output_tokens,
        **(defaults | fields),  # type: ignore[arg-type] # any field of Request, checked where it is used
    )


def make_sequence(arrival_index: int = 0, **fields: object) -> Sequence:
    """A sequence that has just arrived, for tests that call a policy themselves; `fields` are those of make_request."""
    request = make_request(**fields)  # type: ignore[arg-type] # checked there
    return Sequence.of(request, arrival_index, Flows().join(request))


def make_config(**fields: object) -> SchedulerConfig:
    """Room for a few small requests, unless `fields` say otherwise."""
    defaults: dict[str, object] = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 32,
        "block_size": 4,
        "num_device_blocks": 64,
        "max_model_len": 1024,
    }
    return SchedulerConfig(**(defaults | fields))  # type: ignore[arg-type] # any field of SchedulerConfig


def make_scheduler(
    scheduling: str | SchedulingPolicy = "fcfs",
    preemption: str | PreemptionPolicy = "latest_arrival",
    **fields: object,
) -> Scheduler:
    """A scheduler with these policies, by name or as they are; `fields` are those of SchedulerConfig."""
    return Scheduler(
        make_config(**fields),
        load_scheduling_policy(scheduling, {}) if isinstance(scheduling, str) else scheduling,
        load_preemption_policy(preemption, {}) if isinstance(preemption, str) else preemption,
    )


class Driver:
    """Runs a scheduler, one step per `STEP_NS`. On a ReferenceRunner it checks every invariant after each call.

    `max_copy_delay` are the steps that a copy may take beyond the one that starts it, `seed` draws them.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ConstantRunner | ReferenceRunner | None = None,
        *,
        max_copy_delay: int = 0,
        seed: int = 0,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner or ReferenceRunner(scheduler.config.block_size, max_copy_delay=max_copy_delay, seed=seed)
        self.now = Nanos(0)
        self.events: list[Event] = []
        self.plans: list[StepPlan] = []

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add(request, self.now)
            self._check()

    def abort(self, generation_id: str, reason: FinishReason = FinishReason.CANCELLED) -> list[Event]:
        return self._note(self.scheduler.abort(generation_id, reason, self.now))

    def expire(self) -> list[Event]:
        return self._note(self.scheduler.expire(self.now))

    def plan(self) -> StepPlan | None:
        """Open a plan, after what is late has expired."""
        self.expire()
        plan = self.scheduler.plan(self.now)
        self._check()
        if plan is not None:
            self.plans.append(plan)
        return plan

    def commit(self, plan: StepPlan) -> list[Event]:
        """Run the open plan and commit what came of it, one step later."""
        output = self.runner.execute(plan)
        self.now = Nanos(self.now + STEP_NS)
        return self._note(self.scheduler.commit(output, self.now))

    def step(self) -> list[Event]:
        """Plan, run and commit one step; without anything to compute its time passes for copies only."""
        plan = self.plan()
        if plan is None:
            self.wait()
            return []
        return self.commit(plan)

    def wait(self) -> bool:
        """A step's time passes without a plan. False if no copy is under way."""
        if not self.scheduler.num_copies_in_flight:
            return False
        completed = self.runner.wait()
        self.now = Nanos(self.now + STEP_NS)
        self._note(self.scheduler.complete_copies(completed, self.now))
        return True

    def chunks(self) -> list[tuple[str, int, int]]:
        """Run one step and tell whom it computed: (generation, first token, number of tokens) of each chunk."""
        plan = self.plan()
        if plan is None:
            return []
        names = [seq.key.generation_id for seq in self.scheduler.open_sequences]
        self.commit(plan)
        return list(zip(names, plan.starts, plan.num_tokens, strict=True))

    def run(self, max_steps: int = 10_000) -> None:
        """Step until no sequence may get tokens. AssertionError if that takes more than `max_steps`."""
        for _ in range(max_steps):
            plan = self.plan()
            if plan is not None:
                self.commit(plan)
            elif not self.wait():
                return
        raise AssertionError(f"still busy after {max_steps} steps")

    def output(self, generation_id: str) -> list[int]:
        """The tokens that were emitted for this request, in order."""
        return [
            token_id
            for event in self.events
            if isinstance(event, TokensEmitted) and event.key.generation_id == generation_id
            for token_id in event.token_ids
        ]

    def finished(self, generation_id: str) -> Finished:
        """The terminal event of this request. AssertionError unless there is exactly one."""
        ends = [e for e in self.events if isinstance(e, Finished) and e.key.generation_id == generation_id]
        assert len(ends) == 1, f"{generation_id} ended {len(ends)} times"
        return ends[0]

    def _note(self, events: list[Event]) -> list[Event]:
        self._check()
        self.events += events
        return events

    def _check(self) -> None:
        if isinstance(self.runner, ReferenceRunner):
            invariants.check(self.scheduler)
            blocks = self.scheduler.lifecycle.blocks
            opened = self.scheduler.open_plan
            pairs = [*self.scheduler.lifecycle.block_copies, *(() if opened is None else opened[0].block_copies)]
            free_ids = set(blocks.pool.free_ids) - {source for source, _ in pairs}
            self.runner.poison(free_ids, blocks.host_pool.free_ids)
