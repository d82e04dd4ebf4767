"""Deficit round robin, call by call and against the rounds played one by one."""

import itertools
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.policy import LeaveReason
from engine.plugins import load_scheduling_policy
from engine.sim.conformance.views import PlainSequence
from tests.policies.views import NOW, admit, drain, finish, make_view, output, preempt, standing

QUANTUM = 16


def make_drr(quantum: float = QUANTUM, **options: str):
    return load_scheduling_policy("drr", {"quantum": str(quantum), **options})


def arrive(policy, tenants: str, **fields: object) -> list[PlainSequence]:
    seqs = [make_view(index, tenant=tenant, **fields) for index, tenant in enumerate(tenants)]
    for seq in seqs:
        policy.on_arrive(seq, NOW)
    return seqs


class TestOrder:
    def test_tenants_take_turns_when_each_request_uses_up_the_quantum(self):
        policy = make_drr()
        arrive(policy, "aaabbb", prompt=16)

        assert drain(policy) == [0, 3, 1, 4, 2, 5]

    def test_a_tenant_goes_on_until_its_quantum_is_spent(self):
        policy = make_drr()
        arrive(policy, "aaaabbbb", prompt=8)

        assert drain(policy) == [0, 1, 4, 5, 2, 3, 6, 7]

    def test_a_tenant_of_twice_the_weight_is_admitted_twice_as_often(self):
        policy = make_drr()
        for index in range(12):
            tenant, weight = ("a", 1.0) if index % 2 else ("b", 2.0)
            policy.on_arrive(make_view(index, tenant=tenant, weight=weight, prompt=16), NOW)

        order = drain(policy)
        assert [index % 2 for index in order[:6]].count(0) == 4

    def test_a_prompt_of_many_quanta_is_paid_for_in_as_many_rounds(self):
        policy = make_drr(quantum=1)
        long = make_view(0, tenant="a", prompt=100_000)
        policy.on_arrive(long, NOW)
        admit(policy, long)
        for index in range(1, 11):
            policy.on_arrive(make_view(index, tenant="a" if index % 2 else "b", prompt=10_000), NOW)

        assert drain(policy) == [2, 4, 6, 8, 10, 1, 3, 5, 7, 9]

    def test_output_is_charged_as_it_is_emitted(self):
        policy = make_drr()
        arrive(policy, "aabb", prompt=1)
        policy.charge(output("a", QUANTUM))

        assert drain(policy)[:2] == [2, 3]

    def test_other_tenants_may_pass_a_head_but_its_own_requests_may_not(self):
        policy = make_drr()
        seqs = arrive(policy, "aab")

        assert policy.select((seqs[0],)) is seqs[2]
        assert policy.select((seqs[0], seqs[2])) is None
        assert policy.select(()) is seqs[0]

    def test_a_request_that_ran_before_is_not_charged_again(self):
        policy = make_drr()
        seq = make_view(0, prompt=10)
        policy.on_arrive(seq, NOW)
        admit(policy, seq)
        before = standing(policy, "a")
        for swap in (True, False):
            preempt(policy, seq, swap=swap)
            admit(policy, seq)

        assert standing(policy, "a") == before


class TestIdle:
    def test_a_tenant_saves_up_nothing_while_it_is_idle(self):
        policy = make_drr()
        seq = make_view(0, tenant="a", prompt=1)
        policy.on_arrive(seq, NOW)
        admit(policy, seq)
        finish(policy, seq)
        for index in range(1, 30):
            policy.on_arrive(make_view(index, tenant="b", prompt=16), NOW)
        for _ in range(20):
            admit(policy, policy.select(()))
        for index in range(30, 40):
            policy.on_arrive(make_view(index, tenant="a", prompt=16), NOW)

        order = drain(policy)[:8]
        assert sum(index >= 30 for index in order) == 4

    def test_debt_is_forgiven_by_rounds_and_then_forgotten(self):
        policy = make_drr()
        seq = make_view(0, tenant="a", prompt=10 * QUANTUM)
        policy.on_arrive(seq, NOW)
        admit(policy, seq)
        finish(policy, seq)
        assert standing(policy, "a") > 8 * QUANTUM

        debts = []
        for index in range(1, 13):
            policy.on_arrive(make_view(index, tenant="b", prompt=QUANTUM), NOW)
            admit(policy, policy.select(()))
            debts.append(standing(policy, "a"))
        assert debts == sorted(debts, reverse=True)
        assert debts[-1] == 0

    def test_a_tenant_that_comes_waits_for_the_rest_of_the_round_and_a_quantum_of_each_other(self):
        policy = make_drr()
        for index in range(20):
            policy.on_arrive(make_view(index, tenant="a", prompt=8), NOW)
        for _ in range(3):
            admit(policy, policy.select(()))
        policy.on_arrive(make_view(20, tenant="b", prompt=8), NOW)

        assert drain(policy).index(20) == 1 + 2


@dataclass
class Played:
    """Every round played: who waits or runs and has none left gets a quantum, until one that waits has some."""

    deficits: dict[str, float] = field(default_factory=dict)
    queues: dict[str, deque[PlainSequence]] = field(default_factory=dict)
    num_unfinished: dict[str, int] = field(default_factory=dict)
    turns: list[str] = field(default_factory=list)

    def arrive(self, tenant: str, seq: PlainSequence) -> None:
        self.deficits.setdefault(tenant, 0.0)
        if not self.num_unfinished.get(tenant):
            self.turns = [other for other in self.turns if other != tenant] + [tenant]
        self.num_unfinished[tenant] = self.num_unfinished.get(tenant, 0) + 1
        self.queues.setdefault(tenant, deque()).append(seq)

    def can_admit(self) -> set[str]:
        """The tenants that a round robin might admit from next."""
        deficits = dict(self.deficits)
        waiting = [tenant for tenant, queue in self.queues.items() if queue]
        while waiting and not any(deficits[tenant] > 0 for tenant in waiting):
            self.refill(deficits)
        return {tenant for tenant in waiting if deficits[tenant] > 0}

    def refill(self, deficits: dict[str, float]) -> None:
        for tenant, deficit in deficits.items():
            if deficit <= 0:
                is_busy = self.num_unfinished.get(tenant)
                deficits[tenant] = deficit + QUANTUM if is_busy else min(0.0, deficit + QUANTUM)

    def admit(self, tenant: str) -> None:
        while not any(self.deficits[other] > 0 for other, queue in self.queues.items() if queue):
            self.refill(self.deficits)
        seq = self.queues[tenant].popleft()
        self.deficits[tenant] -= seq.num_prompt_tokens

    def finish(self, tenant: str) -> None:
        self.num_unfinished[tenant] -= 1
        if not self.num_unfinished[tenant]:
            self.deficits[tenant] = min(0.0, self.deficits[tenant])


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.sampled_from("abcd"), st.integers(1, 80)),
        st.tuples(st.just("admit"), st.just(""), st.just(0)),
        st.tuples(st.just("emit"), st.just(""), st.integers(0, 9)),
        st.tuples(st.just("finish"), st.just(""), st.integers(0, 9)),
    ),
    max_size=120,
)


@given(OPERATIONS)
def test_the_closed_form_admits_whom_the_rounds_admit(operations):
    policy, played = make_drr(), Played()
    running: list[tuple[str, PlainSequence]] = []
    arrivals = itertools.count()
    for operation, tenant, number in operations:
        if operation == "arrive":
            seq = make_view(next(arrivals), tenant=tenant, prompt=number)
            policy.on_arrive(seq, NOW)
            played.arrive(tenant, seq)
        elif operation == "admit" and (seq := policy.select(())) is not None:
            tenant = seq.flow.nodes[-1].key[-1]
            assert tenant in played.can_admit()
            admit(policy, seq)
            played.admit(tenant)
            running.append((tenant, seq))
        elif operation == "emit" and running:
            tenant = running[number % len(running)][0]
            policy.charge(output(tenant, 1))
            played.deficits[tenant] -= 2
        elif operation == "finish" and running:
            tenant, seq = running.pop(number % len(running))
            finish(policy, seq)
            played.finish(tenant)

        assert (policy.select(()) is None) == (not played.can_admit())
        for name, deficit in played.deficits.items():
            assert standing(policy, name) == -deficit


def test_two_tenants_that_wait_differ_by_no_more_than_the_bound():
    policy = make_drr()
    served = dict.fromkeys("ab", 0)
    running: deque[PlainSequence] = deque()
    largest, arrivals = 0, itertools.count()
    for _ in range(600):
        for tenant, prompt in (("a", 40), ("b", 3)):
            for _ in range(2):
                policy.on_arrive(make_view(next(arrivals), tenant=tenant, prompt=prompt), NOW)
        seq = policy.select(())
        admit(policy, seq)
        running.append(seq)
        served[seq.flow.nodes[-1].key[-1]] += seq.num_prompt_tokens
        if len(running) > 4:
            finish(policy, running.popleft())
        largest = max(largest, abs(served["a"] - served["b"]))

    assert 0 < largest <= 2 * (40 + QUANTUM)


@pytest.mark.parametrize("reason", [LeaveReason.WITHDRAWN, LeaveReason.FINISHED])
def test_a_tenant_whose_only_request_left_is_not_selected(reason: LeaveReason):
    policy = make_drr()
    (seq,) = arrive(policy, "a")
    policy.on_leave(seq, reason, NOW)

    assert policy.select(()) is None


def test_what_is_cached_of_a_prompt_is_not_charged():
    policy = make_drr(quantum=100)
    (seq,) = arrive(policy, "a", prompt=50, num_cached_prompt_tokens=40)
    admit(policy, seq)

    assert standing(policy, "a") == 10 - 100
