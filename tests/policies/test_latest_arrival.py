"""Victims by arrival."""

from engine.core.types import Nanos
from engine.plugins import load_preemption_policy
from tests.builders import make_sequence


def test_those_that_arrived_after_the_claimant_give_way_latest_first():
    resident = [make_sequence(index) for index in range(5)]
    policy = load_preemption_policy("latest_arrival", {})

    victims = policy.victims(resident, resident[2], {}, Nanos(0))

    assert [seq.arrival_index for seq in victims] == [4, 3]
