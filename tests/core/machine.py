"""Random requests, commands and steps, in any order that the scheduler allows."""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from engine.core.costs import Prices
from engine.core.errors import RequestTooLargeError
from engine.core.plan import StepPlan
from engine.core.policy import Service
from engine.core.types import FinishReason, Nanos, PriorityClass, Request, SamplingParams, SequenceStatus
from tests.builders import STEP_NS, Driver, make_request, make_scheduler
from tests.core.stories import check_accounts, check_nothing_is_left, check_story
from tests.core.traffic import (
    ANY,
    CLASSES,
    LONG,
    PREEMPTION,
    PRICES,
    SCHEDULING,
    TENANTS,
    Shape,
    limits,
    make_policy,
    make_victims,
)

MAX_STEPS = 5_000  # no run of these sizes needs as many
INDEX = st.integers(0, 99)


class SchedulerMachine(RuleBasedStateMachine):
    """The rules may come in any order, also while a plan is open."""

    scheduling = "fcfs"

    @initialize(
        limits=limits(),
        victims=st.sampled_from(PREEMPTION),
        delay=st.sampled_from([0, 0, 1, 4, 9]),
        shapes=st.lists(LONG, min_size=4, max_size=8),
    )
    def build(self, limits: dict[str, object], victims: str, delay: int, shapes: list[Shape]) -> None:
        self.charged: list[Service] = []
        scheduler = make_scheduler(make_policy(self.scheduling, self.charged), make_victims(victims), **limits)
        self.driver = Driver(scheduler, max_copy_delay=delay, seed=len(shapes))
        self.requests: dict[str, Request] = {}
        self.open_plan: StepPlan | None = None
        self.revision = 0
        for shape in shapes:
            self.add(shape)

    @rule(shape=ANY)
    def add(self, shape: Shape) -> None:
        number = len(self.requests)
        max_tokens = self.driver.scheduler.config.max_request_tokens
        request = make_request(
            f"g{number}",
            tenant=shape.tenant,
            prompt=shape.prompt(number, 1 + int(shape.prompt_part * max_tokens)),
            cache_salt=shape.salt,
            max_output_tokens=1 + int(shape.output_part * max_tokens),
            arrived_at=self.driver.now,
            sampling=SamplingParams(seed=number),
            priority_class=shape.priority_class,
            stop_token_ids=shape.stop_token_ids,
            granted_output_tokens=shape.granted_output_tokens,
            deadline=self.in_steps(shape.deadline),
            queue_deadline=self.in_steps(shape.queue_deadline),
            speculates=shape.speculates,
        )
        if len(request.prompt_token_ids) + request.max_output_tokens > max_tokens:
            with pytest.raises(RequestTooLargeError):
                self.driver.add(request)
        else:
            self.driver.add(request)
            self.requests[request.generation_id] = request

    @precondition(lambda self: self.open_plan is None)
    @rule()
    def plan(self) -> None:
        self.open_plan = self.driver.plan()
        scheduler = self.driver.scheduler
        if self.open_plan is None and not scheduler.num_copies_in_flight:
            unfinished = scheduler.lifecycle.by_generation.values()
            assert all(seq.hold_reason is not None for seq in unfinished), "work that could go on got nothing"

    @precondition(lambda self: self.open_plan is not None)
    @rule()
    def commit(self) -> None:
        self.driver.commit(self.open_plan)
        self.open_plan = None

    @rule(num_steps=st.integers(1, 5))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            if self.open_plan is not None:
                self.commit()
            self.plan()
            if self.open_plan is None:
                self.driver.wait()

    @precondition(lambda self: self.open_plan is None)
    @rule()
    def wait(self) -> None:
        self.driver.wait()

    @precondition(lambda self: self.requests)
    @rule(index=INDEX, reason=st.sampled_from([FinishReason.CANCELLED, FinishReason.STOP]))
    def abort(self, index: int, reason: FinishReason) -> None:
        self.driver.abort(self.pick(index), reason)

    @rule(status=st.sampled_from([status for status in SequenceStatus if status is not SequenceStatus.FINISHED]))
    def abort_one_that_is(self, status: SequenceStatus) -> None:
        for seq in list(self.driver.scheduler.lifecycle.by_generation.values()):
            if seq.status is status:
                self.driver.abort(seq.key.generation_id)
                return

    @precondition(lambda self: self.requests)
    @rule(index=INDEX, granted=st.integers(0, 40))
    def grant(self, index: int, granted: int) -> None:
        self.driver.scheduler.grant(self.pick(index), granted, self.driver.now)

    @precondition(lambda self: self.requests)
    @rule(index=INDEX, blocked=st.booleans())
    def set_reader_blocked(self, index: int, blocked: bool) -> None:
        self.driver.scheduler.set_reader_blocked(self.pick(index), blocked, self.driver.now)

    @precondition(lambda self: self.requests)
    @rule(index=INDEX, priority_class=st.sampled_from(CLASSES))
    def set_class(self, index: int, priority_class: PriorityClass) -> None:
        self.driver.scheduler.set_class(self.pick(index), priority_class, self.driver.now)

    @precondition(lambda self: self.requests)
    @rule(index=INDEX)
    def fail(self, index: int) -> None:
        self.driver.runner.errors[self.pick(index)] = "numbers went wrong"

    @rule()
    def fail_all(self) -> None:
        """A step is lost with all requests; the copies that it began still end."""
        driver = self.driver
        completed = () if self.open_plan is None else driver.runner.execute(self.open_plan).completed_copies
        self.open_plan = None
        driver.events += driver.scheduler.fail_all("the step failed", driver.now)
        driver.events += driver.scheduler.complete_copies(completed, driver.now)

    @precondition(lambda self: self.open_plan is not None)
    @rule()
    def lose_step(self) -> None:
        """The device had no memory for what the open plan computed; its copies end all the same."""
        driver = self.driver
        completed = driver.runner.execute(self.open_plan).completed_copies
        self.open_plan = None
        driver._note(driver.scheduler.requeue(driver.now))
        driver._note(driver.scheduler.complete_copies(completed, driver.now))

    @rule(num_steps=st.integers(1, 10))
    def expire(self, num_steps: int) -> None:
        self.driver.now = Nanos(self.driver.now + num_steps * STEP_NS)
        self.driver.expire()

    @rule(tenant=TENANTS, weight=st.sampled_from([0.25, 0.5, 2.0, 8.0]), is_team=st.booleans())
    def update_nodes(self, tenant: str, weight: float, is_team: bool) -> None:
        self.revision += 1
        path = (f"org-{tenant}", tenant) if is_team else (f"org-{tenant}",)
        self.driver.scheduler.update_nodes([(path, weight, self.revision)], self.driver.now)

    @rule(rank=st.integers(-2, 6), min_share=st.sampled_from([0.0, 0.5]), preemptible=st.booleans())
    def update_classes(self, rank: int, min_share: float, preemptible: bool) -> None:
        self.revision += 1
        classes = [PriorityClass("batch", rank, min_share, preemptible)]
        self.driver.scheduler.update_classes(classes, self.revision, self.driver.now)

    @rule(prices=PRICES)
    def calibrate(self, prices: Prices) -> None:
        self.driver.scheduler.calibrate(prices, self.driver.now)

    @rule(name=st.sampled_from(sorted(SCHEDULING)))
    def set_scheduling_policy(self, name: str) -> None:
        self.driver.scheduler.set_scheduling_policy(make_policy(name, self.charged), self.driver.now)

    @rule(name=st.sampled_from(PREEMPTION))
    def set_preemption_policy(self, name: str) -> None:
        self.driver.scheduler.set_preemption_policy(make_victims(name), self.driver.now)

    def in_steps(self, num_steps: int | None) -> Nanos | None:
        return None if num_steps is None else Nanos(self.driver.now + num_steps * STEP_NS)

    def pick(self, index: int) -> str:
        """A request, mostly one that has not ended."""
        names = list(
            self.requests if index % 10 == 0 else self.driver.scheduler.lifecycle.by_generation or self.requests
        )
        return names[index % len(names)]

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.finish_everything()
        for request in self.requests.values():
            check_story(self.driver, request)
        check_nothing_is_left(self.driver)
        check_accounts(self.driver, self.charged)

    def finish_everything(self) -> None:
        if self.open_plan is not None:
            self.commit()
        for generation_id in self.requests:
            self.driver.scheduler.grant(generation_id, 999, self.driver.now)
            self.driver.scheduler.set_reader_blocked(generation_id, blocked=False, now=self.driver.now)
        self.driver.run(MAX_STEPS)
        assert not self.driver.scheduler.has_unfinished


def run_machine(scheduling: str, *, max_examples: int, num_rules: int) -> None:
    """Random traffic under a policy of SCHEDULING, which may be replaced on the way."""
    run_machine_of(SchedulerMachine, scheduling, max_examples=max_examples, num_rules=num_rules)


def run_machine_of(kind: type[SchedulerMachine], scheduling: str, *, max_examples: int, num_rules: int) -> None:
    """The same with the rules of `kind`."""
    run_state_machine_as_test(
        type("Machine", (kind,), {"scheduling": scheduling}),
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=num_rules,
            deadline=None,
            phases=[phase for phase in Phase if phase is not Phase.explain],
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
