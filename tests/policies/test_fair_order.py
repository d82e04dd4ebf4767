"""Who comes first under `fair`, who may come back, who gives way to whom, and the order of the classes."""

import pytest

from engine.core.policy import Concession, Demand, LeaveReason
from engine.core.types import PriorityClass, SequenceStatus
from engine.sim.conformance.book import CONFIG
from engine.sim.conformance.views import PlainFlow, PlainSequence
from tests.policies.desk import Desk, siblings
from tests.policies.views import MS, NOW

HIGH, LOW = PriorityClass("high", 0), PriorityClass("low", 9)


class TestOrder:
    def test_of_flows_is_by_what_they_were_served(self):
        desk = Desk()
        a, b = siblings(desk, 1, 1)
        first, second = desk.arrive(a), desk.arrive(b)
        desk.serve(a, 10)
        desk.begin()

        assert desk.select() == second.arrival_index
        assert desk.policy.key(second) < desk.policy.key(first)

    def test_counts_what_the_plan_has_given_already(self):
        desk = Desk()
        a, b = siblings(desk, 1, 1)
        desk.arrive(a)
        second = desk.arrive(b)
        desk.serve(b, 10)
        desk.begin()
        a.nodes[-1].num_planned_prefill_tokens = 11

        assert desk.select() == second.arrival_index

    def test_of_equals_is_by_who_was_served_longest_ago(self):
        desk = Desk()
        a, b = siblings(desk, 1, 1)
        desk.arrive(a)
        second = desk.arrive(b)
        desk.serve(b, 10)
        desk.begin()
        desk.serve(a, 10)
        desk.begin()

        assert desk.select() == second.arrival_index

    def test_a_head_without_room_ends_its_flows_admissions_only(self):
        desk = Desk()
        a, b = siblings(desk, 1, 1)
        first, _, third = desk.arrive(a), desk.arrive(a), desk.arrive(b)

        assert desk.select(first) == third.arrival_index
        assert desk.select(first, third) is None

    def test_asking_changes_nothing(self):
        desk = Desk()
        a, b = siblings(desk, 1, 1)
        first, second = desk.arrive(a), desk.arrive(b)

        answers = [desk.select(), desk.select(first), desk.select(first, second), desk.select()]
        assert answers == [0, 1, None, 0]

    def test_inside_a_flow_a_short_prompt_passes_a_long_one(self):
        desk = Desk()
        a, _ = siblings(desk, 1, 1)
        desk.arrive(a, num_prompt_tokens=1000)
        short = desk.arrive(a, num_prompt_tokens=10)
        assert desk.select() == 0
        desk.serve(a, 100)  # ratios are 1.1 and 11

        assert desk.select() == short.arrival_index

    def test_inside_a_flow_a_long_prompt_is_not_passed_for_ever(self):
        desk = Desk()
        a, _ = siblings(desk, 1, 1)
        desk.arrive(a, num_prompt_tokens=1000)
        for _ in range(200):
            desk.serve(a, 100)
            short = desk.arrive(a, num_prompt_tokens=10)
            if desk.select() == 0:
                break
            desk.policy.on_leave(short, LeaveReason.ADMITTED, NOW)
        assert desk.select() == 0

    def test_what_ran_before_comes_first_inside_its_flow(self):
        desk = Desk()
        a, _ = siblings(desk, 1, 1)
        desk.arrive(a, num_prompt_tokens=1)
        desk.serve(a, 100)
        again = desk.arrive(a, num_preemptions=1)

        assert desk.select() == again.arrival_index

    def test_within_the_slack_the_longest_cached_prefix_comes_first(self):
        desk = Desk(slack=20.0)
        a, b, c = siblings(desk, 1, 1, 1)
        desk.arrive(a)
        cached = desk.arrive(b, num_cached_prompt_tokens=8)
        desk.arrive(c, num_cached_prompt_tokens=11)
        desk.serve(b, 20)
        desk.serve(c, 21)
        desk.begin()

        assert desk.select() == cached.arrival_index

    def test_those_that_yield_come_last(self):
        desk = Desk()
        a, b = siblings(desk, 1, 1)
        first, second = desk.arrive(a), desk.arrive(b)
        desk.serve(a, 101)
        desk.begin()

        assert desk.select() == second.arrival_index
        assert desk.select(second) == first.arrival_index
        assert desk.policy.key(first) > desk.policy.key(second)


class TestReturn:
    """A swapped sequence comes back when its flow's lead is low, or nobody with less of a lead waits."""

    def swapped(self, lead: int) -> tuple[Desk, PlainSequence, PlainFlow]:
        desk = Desk()
        a, b = siblings(desk, 1, 1)
        seq = desk.arrive(a, status=SequenceStatus.SWAPPED, num_preemptions=1)
        desk.serve(a, lead)
        desk.begin()
        return desk, seq, b

    @pytest.mark.parametrize(("lead", "may_return"), [(50, True), (51, False)])
    def test_below_half_the_threshold_or_not_while_others_wait(self, lead: int, may_return: bool):
        desk, seq, other = self.swapped(lead)
        waiting = desk.arrive(other)

        assert desk.select() == waiting.arrival_index
        assert desk.select(waiting) == (seq.arrival_index if may_return else None)

    def test_at_any_lead_when_nobody_else_waits(self):
        desk, seq, _ = self.swapped(90)

        assert desk.select() == seq.arrival_index


class TestConcession:
    def seqs(self, desk: Desk, *flows: PlainFlow) -> list[PlainSequence]:
        seqs = [desk.arrive(flow, num_device_blocks=8) for flow in flows]
        for seq, flow in zip(seqs, flows, strict=True):
            seq.status = SequenceStatus.RUNNING
            flow.num_device_blocks = 8
        return seqs

    def test_those_that_yield_give_up_anything_to_those_that_do_not(self):
        desk = Desk()
        a, b = siblings(desk, 1, 1)
        ahead, behind = self.seqs(desk, a, b)
        desk.serve(a, 101)
        desk.begin()

        assert desk.policy.concede(ahead, behind) is Concession.ANYTHING
        assert desk.policy.concede(behind, ahead) is Concession.NOTHING

    def test_nobody_concedes_to_its_own_flow(self):
        desk = Desk()
        a, _ = siblings(desk, 1, 1)
        first, second = self.seqs(desk, a, a)
        desk.serve(a, 101)
        desk.begin()

        assert desk.policy.concede(first, second) is Concession.NOTHING

    def test_whoever_is_above_its_share_is_moved_for_one_that_has_no_block(self):
        desk = Desk()
        a, b = siblings(desk, 1, 1)
        (holder,) = self.seqs(desk, a)
        entrant = desk.arrive(b)
        assert desk.policy.concede(holder, entrant) is Concession.NOTHING  # 8 of 64 blocks are less than half
        a.num_device_blocks = 33

        assert desk.policy.concede(holder, entrant) is Concession.SWAP

    @pytest.mark.parametrize("hindrance", ["has blocks", "is ahead", "needs more than its share"])
    def test_an_entrant_takes_within_its_rights_only(self, hindrance: str):
        desk = Desk()
        a, b = siblings(desk, 1, 1)
        (holder,) = self.seqs(desk, a)
        a.num_device_blocks = 33
        prompt = 1 + 32 * CONFIG.block_size if hindrance == "needs more than its share" else 12
        entrant = desk.arrive(b, num_prompt_tokens=prompt)
        if hindrance == "has blocks":
            b.num_device_blocks = 14  # with three more it were above half of its share
        if hindrance == "is ahead":
            desk.serve(b, 1)
            desk.begin()

        assert desk.policy.concede(holder, entrant) is Concession.NOTHING

    @pytest.mark.parametrize(("num_held", "num_needed"), [(13, 3), (0, 32)])
    def test_an_entrant_takes_up_to_the_last_block_of_its_right(self, num_held: int, num_needed: int):
        desk = Desk()
        a, b = siblings(desk, 1, 1)
        (holder,) = self.seqs(desk, a)
        a.num_device_blocks = 33
        b.num_device_blocks = num_held
        entrant = desk.arrive(b, num_prompt_tokens=num_needed * CONFIG.block_size)

        assert desk.policy.concede(holder, entrant) is Concession.SWAP

    def test_a_lower_class_gives_up_anything_unless_it_may_not_be_preempted(self):
        desk = Desk()
        pinned = PriorityClass("pinned", 9, preemptible=False)
        high, low, kept = (desk.flow("a", priority_class=each) for each in (HIGH, LOW, pinned))
        above, below, untouched = self.seqs(desk, high, low, kept)
        desk.begin({high: Demand.BACKLOGGED, low: Demand.BACKLOGGED, kept: Demand.BACKLOGGED})

        assert desk.policy.concede(below, above) is Concession.ANYTHING
        assert desk.policy.concede(untouched, above) is Concession.NOTHING
        assert desk.policy.concede(above, below) is Concession.NOTHING


class TestClasses:
    def desk(self, low: PriorityClass = LOW, **options: object) -> tuple[Desk, PlainFlow, PlainFlow]:
        desk = Desk(**options)
        high, below = desk.flow("a", priority_class=HIGH), desk.flow("b", priority_class=low)
        desk.arrive(below)
        desk.arrive(high)
        desk.begin({high: Demand.BACKLOGGED, below: Demand.BACKLOGGED})
        return desk, high, below

    def test_are_served_by_rank(self):
        desk, _, _ = self.desk()

        assert desk.begin().class_order == ("high", "low")
        assert desk.select() == 1

    def test_one_that_was_denied_for_too_long_comes_first_once(self):
        desk, high, low = self.desk(class_ageing_ms=10.0)
        assert desk.begin(now=9 * MS).class_order == ("high", "low")
        desk.serve(high, 1)
        assert desk.begin(now=10 * MS).class_order == ("low", "high")
        desk.serve(low, 1)

        assert desk.begin(now=11 * MS).class_order == ("high", "low")

    def test_no_ageing_is_for_ever(self):
        desk, _, _ = self.desk(class_ageing_ms=0.0)

        assert desk.begin(now=10**6 * MS).class_order == ("high", "low")

    def test_one_that_is_short_of_its_kept_share_comes_first(self):
        desk, high, low = self.desk(PriorityClass("low", 9, min_share=0.25))
        served = {high: 0, low: 0}
        for _ in range(400):
            first = high if desk.begin().class_order[0] == "high" else low
            desk.serve(first, 10)
            served[first] += 1

        assert served[low] == pytest.approx(100, abs=2)

    def test_idling_earns_a_class_no_credit(self):
        desk, high, low = self.desk(PriorityClass("low", 9, min_share=0.25))
        desk.begin({low: Demand.NONE})
        for _ in range(1000):
            desk.serve(high, 10)
            desk.begin()
        desk.begin({low: Demand.BACKLOGGED})
        num_first = 0
        while desk.begin().class_order[0] == "low":
            desk.serve(low, 10)
            num_first += 1

        assert num_first <= 4


def test_in_strict_mode_a_flow_that_yields_gives_way_to_another_class_of_its_rank():
    desk = Desk(mode="strict")
    held, behind = (desk.flow(name, organization="org", priority_class=PriorityClass("one")) for name in "ab")
    other = desk.flow("c", organization="org", priority_class=PriorityClass("two"))
    desk.begin(dict.fromkeys((held, behind, other), Demand.BACKLOGGED))
    victim, claimant = desk.arrive(held), desk.arrive(other)
    assert desk.policy.concede(victim, claimant) is Concession.NOTHING
    desk.serve(held, 1000)
    desk.begin()

    assert desk.policy.concede(victim, claimant) is Concession.ANYTHING
