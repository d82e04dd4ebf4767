"""First come, first served."""

import pytest

from engine.core.policy import LeaveReason
from engine.core.types import Nanos
from engine.plugins import load_scheduling_policy
from tests.builders import make_sequence

NOW = Nanos(0)


def drain(policy) -> list[int]:
    """Admit one after the other; the arrival indexes in the order of admission."""
    order = []
    while (seq := policy.select(NOW)) is not None:
        policy.on_leave(seq, LeaveReason.ADMITTED, NOW)
        order.append(seq.arrival_index)
    return order


def test_requests_are_served_in_order_of_arrival_whoever_asks():
    policy = load_scheduling_policy("fcfs", {})
    for index, tenant in enumerate("aabab"):
        policy.on_arrive(make_sequence(index, tenant=tenant), NOW)

    assert drain(policy) == [0, 1, 2, 3, 4]


def test_preempted_requests_come_before_those_that_never_ran():
    policy = load_scheduling_policy("fcfs", {})
    for index, num_preemptions in ((2, 0), (5, 1), (3, 0), (4, 2)):
        seq = make_sequence(index)
        seq.num_preemptions = num_preemptions
        policy.on_arrive(seq, NOW)

    assert drain(policy) == [4, 5, 2, 3]


def test_a_request_that_left_is_not_served():
    policy = load_scheduling_policy("fcfs", {})
    seqs = [make_sequence(index) for index in range(3)]
    for seq in seqs:
        policy.on_arrive(seq, NOW)
    policy.on_leave(seqs[0], LeaveReason.FINISHED, NOW)
    policy.on_leave(seqs[1], LeaveReason.HELD, NOW)

    assert drain(policy) == [2]


def test_it_takes_no_snapshot_of_another_policy():
    with pytest.raises(ValueError, match="fcfs"):
        load_scheduling_policy("fcfs", {}).restore(load_scheduling_policy("vtc", {}).snapshot())
