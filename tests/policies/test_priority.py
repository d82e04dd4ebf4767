"""Classes with ageing, a share kept for each, and preemption by raw rank."""

import pytest

from engine.core.policy import Concession, Service
from engine.core.types import PriorityClass
from engine.plugins import load_scheduling_policy
from engine.sim.conformance.book import CONFIG
from tests.policies.views import MS, admit, begin, drain, finish, make_view, output, preempt

TOP, HIGH, LOW = PriorityClass("top", 0), PriorityClass("high", 1), PriorityClass("low", 4)


def make_priority(ageing_ms: float = 100):
    return load_scheduling_policy("priority", {"ageing_ms": str(ageing_ms)})


def arrive(policy, index: int, priority_class: PriorityClass, now_ms: int = 0, **fields: object):
    seq = make_view(index, priority_class=priority_class, **fields)
    policy.on_arrive(seq, now_ms * MS)
    return seq


class TestOrder:
    def test_lower_rank_comes_first_then_order_of_arrival(self):
        policy = make_priority()
        for index, priority_class in enumerate((LOW, HIGH, TOP, LOW, TOP, HIGH)):
            arrive(policy, index, priority_class)
        begin(policy)

        assert drain(policy) == [2, 4, 1, 5, 0, 3]

    def test_those_that_ran_come_before_those_that_did_not_in_their_class(self):
        policy = make_priority()
        arrive(policy, 0, LOW)
        preempt(policy, make_view(1, priority_class=LOW), swap=True)
        arrive(policy, 2, HIGH)
        begin(policy)

        assert drain(policy) == [2, 1, 0]

    def test_only_other_classes_pass_a_head_without_room(self):
        policy = make_priority()
        high, _, low = (arrive(policy, index, cls) for index, cls in enumerate((HIGH, HIGH, LOW)))
        begin(policy)

        assert policy.select((high,)) is low
        assert policy.select((high, low)) is None

    def test_the_terms_name_the_classes_in_order(self):
        policy = make_priority()
        for index, priority_class in enumerate((LOW, TOP, HIGH)):
            arrive(policy, index, priority_class)

        assert begin(policy).class_order == ("top", "high", "low")

    def test_a_class_without_requests_is_forgotten(self):
        policy = make_priority()
        seq = arrive(policy, 0, LOW)
        finish(policy, seq)

        assert begin(policy).class_order == ()

    def test_a_class_that_gets_another_rank_is_served_by_it_from_the_next_plan_on(self):
        policy = make_priority()
        low, high = arrive(policy, 0, LOW), arrive(policy, 1, HIGH)
        begin(policy)
        assert policy.select(()) is high

        low.flow.priority_class = PriorityClass("low", -1)
        assert begin(policy).class_order == ("low", "high")
        assert policy.select(()) is low


class TestAgeing:
    def test_each_period_of_waiting_is_worth_a_rank(self):
        policy = make_priority(ageing_ms=100)
        arrive(policy, 9, TOP)
        low = arrive(policy, 0, LOW)
        ranks = []
        for now in (0, 99, 100, 200):
            begin(policy, now * MS)
            ranks.append(policy.key(low)[1])

        assert ranks == [4, 4, 3, 2]

    def test_nobody_ages_into_the_best_class(self):
        policy = make_priority(ageing_ms=1)
        low = arrive(policy, 0, LOW)
        top = arrive(policy, 1, TOP, now_ms=10_000)
        begin(policy, 10_000 * MS)

        assert policy.key(low)[1] == 1
        assert policy.select(()) is top

    def test_an_aged_request_comes_before_younger_ones_of_better_classes(self):
        policy = make_priority(ageing_ms=100)
        arrive(policy, 9, TOP)
        low = arrive(policy, 0, LOW)
        for index in range(1, 4):
            arrive(policy, index, HIGH, now_ms=300)
        terms = begin(policy, 300 * MS)

        assert drain(policy) == [9, low.arrival_index, 1, 2, 3]
        assert terms.class_order == ("top", "low", "high")

    def test_the_younger_ones_of_its_class_stay_behind(self):
        policy = make_priority(ageing_ms=100)
        arrive(policy, 9, TOP)
        arrive(policy, 0, LOW)
        arrive(policy, 1, LOW, now_ms=300)
        arrive(policy, 2, HIGH, now_ms=300)
        begin(policy, 300 * MS)

        assert drain(policy) == [9, 0, 2, 1]

    def test_time_in_which_a_request_runs_does_not_count(self):
        policy = make_priority(ageing_ms=100)
        arrive(policy, 9, TOP)
        low = arrive(policy, 0, LOW)
        begin(policy, 100 * MS)
        admit(policy, low, 100 * MS)
        begin(policy, 900 * MS)
        assert policy.key(low)[1] == 3

        preempt(policy, low, 900 * MS)
        begin(policy, 1_000 * MS)
        assert policy.key(low)[1] == 2

    def test_without_ageing_a_low_class_waits_for_ever(self):
        policy = make_priority(ageing_ms=0)
        low, high = arrive(policy, 0, LOW), arrive(policy, 1, HIGH)
        begin(policy, 10**18)

        assert policy.select(()) is high
        assert policy.key(low)[1] == 4


class TestPreemption:
    def test_a_lower_class_gives_way(self):
        policy = make_priority()
        victim, claimant = arrive(policy, 0, LOW), arrive(policy, 1, HIGH)
        begin(policy)

        assert policy.concede(victim, claimant) is Concession.ANYTHING

    @pytest.mark.parametrize("victim_class", [HIGH, TOP, PriorityClass("fixed", 4, preemptible=False)])
    def test_an_equal_a_better_or_a_protected_class_does_not(self, victim_class: PriorityClass):
        policy = make_priority()
        victim, claimant = arrive(policy, 0, victim_class), arrive(policy, 1, HIGH)
        begin(policy)

        assert policy.concede(victim, claimant) is Concession.NOTHING

    def test_whoever_was_preempted_often_enough_does_not(self):
        policy = make_priority()
        victim, claimant = arrive(policy, 0, LOW, num_preemptions=CONFIG.max_preemptions - 1), arrive(policy, 1, HIGH)
        begin(policy)
        assert policy.concede(victim, claimant) is Concession.ANYTHING

        victim.num_preemptions += 1
        assert policy.concede(victim, claimant) is Concession.NOTHING

    def test_ageing_gives_no_right_to_take(self):
        policy = make_priority(ageing_ms=1)
        aged = arrive(policy, 0, LOW)
        victim = arrive(policy, 1, PriorityClass("middle", 3))
        arrive(policy, 2, TOP)
        begin(policy, 10_000 * MS)

        assert policy.concede(victim, aged) is Concession.NOTHING

    def test_whom_ageing_brought_in_keeps_its_place_but_not_against_the_best_class(self):
        policy = make_priority(ageing_ms=100)
        arrive(policy, 9, TOP)
        low = arrive(policy, 0, LOW)
        begin(policy, 300 * MS)
        admit(policy, low, 300 * MS)
        high, top = arrive(policy, 1, HIGH, now_ms=300), arrive(policy, 2, TOP, now_ms=300)

        assert policy.concede(low, high) is Concession.NOTHING
        assert policy.concede(low, top) is Concession.ANYTHING


class TestKeptShare:
    KEPT = PriorityClass("kept", 4, min_share=0.25)

    def shares(self, policy, num_steps: int = 4_000) -> float:
        """The share of the kept class if each step serves whoever is first, both waiting all the time."""
        arrive(policy, 0, self.KEPT, tenant="b")
        arrive(policy, 1, TOP, tenant="a")
        num_kept = 0
        for _ in range(num_steps):
            begin(policy)
            first = policy.select(())
            num_kept += first.priority_class is self.KEPT
            policy.charge(Service(first.flow, 10, 5, 0))
        return num_kept / num_steps

    def test_a_low_class_gets_its_share_while_a_better_one_floods(self):
        assert self.shares(make_priority(ageing_ms=0)) == pytest.approx(0.25, abs=0.01)

    def test_what_it_got_while_it_was_alone_is_soon_forgotten(self):
        policy = make_priority(ageing_ms=0)
        seq = arrive(policy, 5, self.KEPT)
        policy.charge(output("b", 10**6, priority_class=self.KEPT))

        assert self.shares(policy, 8_000) > 0.2
        finish(policy, seq)

    def test_an_idle_class_saves_up_nothing(self):
        policy = make_priority(ageing_ms=0)
        arrive(policy, 5, TOP, tenant="a")
        policy.charge(output("a", 10**6, priority_class=TOP))
        arrive(policy, 6, self.KEPT, tenant="b")
        begin(policy)

        assert policy.select(()).priority_class is TOP

    def test_a_class_below_its_share_does_not_give_way(self):
        policy = make_priority(ageing_ms=0)
        victim, claimant = arrive(policy, 0, self.KEPT), arrive(policy, 1, TOP)
        assert policy.concede(victim, claimant) is Concession.ANYTHING
        policy.charge(output("a", 100, priority_class=TOP))

        assert policy.concede(victim, claimant) is Concession.NOTHING


def test_nothing_is_kept_of_requests_that_have_ended():
    policy = make_priority()
    for index in range(100):
        seq = arrive(policy, index, (TOP, HIGH, LOW)[index % 3])
        admit(policy, seq)
        finish(policy, seq)

    assert policy.select(()) is None
    assert begin(policy).class_order == ()
