"""Who gives way, by each preemption policy."""

from engine.core.types import PriorityClass
from engine.plugins import load_preemption_policy
from tests.policies.views import NOW, make_view

TOP, LOW = PriorityClass("top", 0), PriorityClass("low", 2)


def order(name: str, resident, claimant, counters=None) -> list[int]:
    """Arrival indexes of the victims, first victim first. `counters` are standings by tenant."""

    def standing(flow):
        return () if counters is None else counters[flow.nodes[-1].key[-1]]

    victims = load_preemption_policy(name, {}).victims(tuple(resident), claimant, standing, NOW)
    return [seq.arrival_index for seq in victims]


class TestLatestArrival:
    def test_those_that_arrived_after_the_claimant_give_way_latest_first(self):
        resident = [make_view(index) for index in range(5)]

        assert order("latest_arrival", resident, resident[2]) == [4, 3]


class TestOverServed:
    def test_a_lower_class_gives_way_before_a_higher_one(self):
        resident = [make_view(0, priority_class=LOW), make_view(1, priority_class=TOP)]

        assert order("over_served", resident, make_view(2), {"a": (0.0,)}) == [0, 1]

    def test_inside_a_class_whoever_was_served_most_gives_way_first(self):
        resident = [make_view(index, tenant=tenant) for index, tenant in enumerate("abc")]
        counters = {"a": (5.0,), "b": (9.0,), "c": (7.0,)}

        assert order("over_served", resident, make_view(3), counters) == [1, 2, 0]

    def test_organizations_are_compared_before_their_teams(self):
        resident = [make_view(0, tenant="a"), make_view(1, tenant="b")]
        counters = {"a": (9.0, 0.0), "b": (1.0, 50.0)}

        assert order("over_served", resident, make_view(2), counters) == [0, 1]

    def test_of_one_tenant_the_latest_arrival_gives_way_first(self):
        resident = [make_view(index) for index in (1, 0, 2)]

        assert order("over_served", resident, resident[0], {"a": (3.0,)}) == [2, 1, 0]

    def test_where_nobody_counts_it_is_the_latest_arrival(self):
        assert order("over_served", [make_view(index) for index in range(3)], make_view(9)) == [2, 1, 0]


class TestLeastLostWork:
    def test_for_one_block_whoever_has_computed_least_gives_way_first(self):
        sizes = ((40, 10), (8, 2), (20, 5))
        resident = [
            make_view(index, num_computed_tokens=tokens, num_device_blocks=blocks)
            for index, (tokens, blocks) in enumerate(sizes)
        ]

        assert order("least_lost_work", resident, resident[0]) == [1, 2, 0]

    def test_for_many_blocks_the_loss_is_counted_per_block_that_is_gained(self):
        half_swapped = make_view(0, num_computed_tokens=40, num_device_blocks=2)
        small = make_view(1, num_computed_tokens=4, num_device_blocks=1)
        large = make_view(2, num_computed_tokens=38, num_device_blocks=10)
        claimant = make_view(3, prompt=400)

        assert order("least_lost_work", [half_swapped, small, large], claimant) == [2, 1, 0]

    def test_of_equals_the_latest_arrival_gives_way_first(self):
        resident = [make_view(index, num_computed_tokens=8, num_device_blocks=2) for index in range(3)]

        assert order("least_lost_work", resident, resident[0]) == [2, 1, 0]


class TestNever:
    def test_nobody_gives_way(self):
        assert order("never", [make_view(index) for index in range(3)], make_view(9)) == []
