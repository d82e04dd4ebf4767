"""Random requests, commands and steps in tiny pools: nothing is lost, doubled, leaked or stopped.

After every call all invariants hold. In the end every accepted request has ended exactly once, its tokens are those of
a run that nothing disturbs, every block and row is free, and what was charged is what was computed or emitted once.
"""

from collections import abc
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from engine.core.errors import RequestTooLargeError
from engine.core.events import Admitted, Event, Finished, Preempted, Resumed, TokensEmitted
from engine.core.plan import StepPlan
from engine.core.policy import SchedulingPolicy, SequenceView, Service
from engine.core.types import FinishReason, Nanos, PreemptionMode, PriorityClass, Request, SamplingParams, TenantId
from engine.plugins import load_preemption_policy, load_scheduling_policy
from tests.builders import STEP_NS, Driver, make_request, make_scheduler
from tests.fakes import expected_output

MAX_STEPS = 5_000  # no run of these sizes needs as many


class Ledger:
    """The policy it is given, with a record of what it was charged with."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy
        self.charged: list[Service] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._policy, name)

    def charge(self, service: Service) -> None:
        self.charged.append(service)
        self._policy.charge(service)


class Arbitrary:
    """Preempts in an order that has nothing to do with the sequences, and now and then nobody."""

    def victims(
        self,
        resident: abc.Sequence[SequenceView],
        claimant: SequenceView,
        standing: abc.Mapping[TenantId, float],
        now: Nanos,
    ) -> abc.Iterator[SequenceView]:
        turn = now // STEP_NS
        return iter(sorted(resident, key=lambda seq: (seq.arrival_index * 7 + turn) % 5)[: turn % 4])


PREEMPTIONS = {"latest_arrival": lambda: load_preemption_policy("latest_arrival", {}), "arbitrary": Arbitrary}


@st.composite
def limits(draw: st.DrawFn) -> dict[str, object]:
    """A pool for a few requests at most, and steps of a few tokens."""
    block_size = draw(st.integers(1, 5))
    num_blocks = draw(st.integers(6, 16))
    is_chunked = draw(st.integers(0, 4)) > 0
    max_num_seqs = draw(st.integers(2, 5))
    chunk = draw(st.integers(0, 8)) if is_chunked else block_size * num_blocks
    return {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_seqs + chunk,
        "block_size": block_size,
        "num_device_blocks": num_blocks,
        "enable_chunked_prefill": is_chunked,
        "max_prefill_share": draw(st.sampled_from([0.2, 0.5, 1.0])) if is_chunked else 1.0,
        "growth_reserve_tokens": draw(st.sampled_from([0, 0, 0, 3, 32])),
    }


@dataclass(frozen=True)
class Shape:
    """A request to be. Sizes are parts of what one request can hold, and may add up to too much."""

    tenant: str
    prompt_part: float
    output_part: float
    granted_output_tokens: int | None = None
    deadline: int | None = None
    queue_deadline: int | None = None
    stop_token_ids: frozenset[int] = frozenset()


TENANTS = st.sampled_from("abc")
PARTS = st.sampled_from([0.01, 0.1, 0.3, 0.5, 0.7, 0.9])
# Together more than the pool holds, and growing after they were admitted.
LONG = st.builds(Shape, TENANTS, st.sampled_from([0.01, 0.1, 0.3]), st.sampled_from([0.3, 0.5, 0.6]))
ANY = st.builds(
    Shape,
    TENANTS,
    PARTS,
    PARTS,
    granted_output_tokens=st.none() | st.integers(0, 5),
    deadline=st.none() | st.integers(0, 60),
    queue_deadline=st.none() | st.integers(0, 30),
    stop_token_ids=st.frozensets(st.integers(0, 96), max_size=3),
)


class SchedulerMachine(RuleBasedStateMachine):
    """The rules may come in any order, also while a plan is open."""

    scheduling = "fcfs"
    preemption = "latest_arrival"

    @initialize(limits=limits(), shapes=st.lists(LONG, min_size=4, max_size=8))
    def build(self, limits: dict[str, object], shapes: list[Shape]) -> None:
        self.ledger = Ledger(load_scheduling_policy(self.scheduling, {}))
        self.driver = Driver(make_scheduler(self.ledger, PREEMPTIONS[self.preemption](), **limits))
        self.requests: dict[str, Request] = {}
        self.open_plan: StepPlan | None = None
        for shape in shapes:
            self.add(shape)

    @rule(shape=ANY)
    def add(self, shape: Shape) -> None:
        number = len(self.requests)
        max_tokens = self.driver.scheduler.config.max_request_tokens
        request = make_request(
            f"g{number}",
            tenant=shape.tenant,
            prompt=[(number * 31 + position) % 97 for position in range(1 + int(shape.prompt_part * max_tokens))],
            max_output_tokens=1 + int(shape.output_part * max_tokens),
            arrived_at=self.driver.now,
            sampling=SamplingParams(seed=number),
            stop_token_ids=shape.stop_token_ids,
            granted_output_tokens=shape.granted_output_tokens,
            deadline=self.in_steps(shape.deadline),
            queue_deadline=self.in_steps(shape.queue_deadline),
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
        if self.open_plan is None:
            unfinished = self.driver.scheduler.lifecycle.by_generation.values()
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

    @precondition(lambda self: self.requests)
    @rule(index=st.integers(0, 99), reason=st.sampled_from([FinishReason.CANCELLED, FinishReason.STOP]))
    def abort(self, index: int, reason: FinishReason) -> None:
        self.driver.abort(self.pick(index), reason)

    @precondition(lambda self: self.requests)
    @rule(index=st.integers(0, 99), granted=st.integers(0, 40))
    def grant(self, index: int, granted: int) -> None:
        self.driver.scheduler.grant(self.pick(index), granted, self.driver.now)

    @precondition(lambda self: self.requests)
    @rule(index=st.integers(0, 99), blocked=st.booleans())
    def set_reader_blocked(self, index: int, blocked: bool) -> None:
        self.driver.scheduler.set_reader_blocked(self.pick(index), blocked, self.driver.now)

    @precondition(lambda self: self.requests)
    @rule(index=st.integers(0, 99), rank=st.integers(0, 2))
    def set_class(self, index: int, rank: int) -> None:
        self.driver.scheduler.set_class(self.pick(index), PriorityClass("other", rank), self.driver.now)

    @precondition(lambda self: self.requests)
    @rule(index=st.integers(0, 99))
    def fail(self, index: int) -> None:
        self.driver.runner.errors[self.pick(index)] = "numbers went wrong"

    @rule(num_steps=st.integers(1, 10))
    def expire(self, num_steps: int) -> None:
        self.driver.now = Nanos(self.driver.now + num_steps * STEP_NS)
        self.driver.expire()

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
            self.check_story(request)
        self.check_nothing_is_left()
        self.check_accounts()

    def finish_everything(self) -> None:
        if self.open_plan is not None:
            self.commit()
        for generation_id in self.requests:
            self.driver.scheduler.grant(generation_id, 99, self.driver.now)
            self.driver.scheduler.set_reader_blocked(generation_id, blocked=False, now=self.driver.now)
        self.driver.run(MAX_STEPS)
        assert not self.driver.scheduler.has_unfinished

    def check_story(self, request: Request) -> None:
        """One end, nothing after it, and between preemption and resumption no tokens."""
        story = [event for event in self.driver.events if event.key.generation_id == request.generation_id]
        end = self.driver.finished(request.generation_id)
        assert story[-1] is end
        self.check_text(request, end)
        self.check_order(story)
        num_lost_blocks = sum(isinstance(e, Preempted) and e.mode is PreemptionMode.RECOMPUTE for e in story)
        assert end.usage.num_preemptions == num_lost_blocks
        timings = end.timings
        assert 0 <= timings.preempted_ns <= timings.prefill_ns + timings.decode_ns
        assert (end.usage.num_prompt_tokens == 0) <= (end.usage.num_output_tokens == 0)

    def check_text(self, request: Request, end: Finished) -> None:
        output = self.driver.output(request.generation_id)
        expected = expected_output(request)
        assert end.usage.num_output_tokens == len(output)
        if end.reason is FinishReason.LENGTH:
            assert output == expected
            assert len(output) == request.max_output_tokens
        else:
            assert output == expected[: len(output)]
        if end.reason is FinishReason.LENGTH or (end.reason is FinishReason.STOP and output == expected):
            assert end.usage.num_prompt_tokens == len(request.prompt_token_ids)

    def check_order(self, story: list[Event]) -> None:
        is_running = False
        for position, event in enumerate(story):
            match event:
                case Admitted():
                    assert position == 0
                    is_running = True
                case Resumed():
                    assert not is_running
                    is_running = True
                case Preempted():
                    assert position > 0
                    is_running = False
                case TokensEmitted():
                    assert is_running
                    assert len(event.token_ids) == 1

    def check_nothing_is_left(self) -> None:
        scheduler = self.driver.scheduler
        stats = scheduler.stats()
        assert (stats.num_running, stats.num_waiting, stats.num_paused) == (0, 0, 0)
        assert stats.num_free_blocks == scheduler.config.num_device_blocks
        assert scheduler.lifecycle.rows.num_free == scheduler.config.max_num_seqs
        assert scheduler.lifecycle.policy.select(self.driver.now) is None
        assert scheduler.next_expiry() is None

    def check_accounts(self) -> None:
        ends = [event for event in self.driver.events if isinstance(event, Finished)]
        for field in ("num_prompt_tokens", "num_output_tokens", "num_recomputed_tokens"):
            service_field = "num_prefill_tokens" if field == "num_prompt_tokens" else field
            used = sum(getattr(end.usage, field) for end in ends)
            assert used == sum(getattr(service, service_field) for service in self.ledger.charged)
            assert used == sum(getattr(tenant, service_field) for tenant in self.driver.scheduler.stats().tenants)


def run_machine(scheduling: str, preemption: str, *, max_examples: int, num_rules: int) -> None:
    run_state_machine_as_test(
        type("Machine", (SchedulerMachine,), {"scheduling": scheduling, "preemption": preemption}),
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=num_rules,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


@pytest.mark.parametrize("preemption", PREEMPTIONS)
@pytest.mark.parametrize("scheduling", ["fcfs", "vtc"])
def test_random_traffic_is_served_exactly_once(scheduling: str, preemption: str):
    run_machine(scheduling, preemption, max_examples=60, num_rules=40)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("preemption", PREEMPTIONS)
@pytest.mark.parametrize("scheduling", ["fcfs", "vtc"])
def test_much_random_traffic_is_served_exactly_once(scheduling: str, preemption: str):
    run_machine(scheduling, preemption, max_examples=1_000, num_rules=80)
