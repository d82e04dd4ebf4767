"""First come, first served."""

import pytest

from engine.core.policy import LeaveReason
from engine.plugins import load_scheduling_policy
from tests.policies.views import NOW, drain, make_view, preempt


def test_requests_are_served_in_order_of_arrival_whoever_asks():
    policy = load_scheduling_policy("fcfs", {})
    for index, tenant in enumerate("aabab"):
        policy.on_arrive(make_view(index, tenant=tenant), NOW)

    assert drain(policy) == [0, 1, 2, 3, 4]


def test_preempted_requests_come_before_those_that_never_ran():
    policy = load_scheduling_policy("fcfs", {})
    for index, num_preemptions in ((2, 0), (5, 1), (3, 0), (4, 2)):
        policy.on_arrive(make_view(index, num_preemptions=num_preemptions), NOW)

    assert drain(policy) == [4, 5, 2, 3]


def test_swapped_requests_come_before_those_that_never_ran():
    policy = load_scheduling_policy("fcfs", {})
    policy.on_arrive(make_view(0), NOW)
    preempt(policy, make_view(1), swap=True)

    assert drain(policy) == [1, 0]


def test_nobody_passes_a_head_that_found_no_room():
    policy = load_scheduling_policy("fcfs", {})
    for index in range(3):
        policy.on_arrive(make_view(index), NOW)

    assert policy.select((policy.select(()),)) is None


def test_a_request_that_left_is_not_served():
    policy = load_scheduling_policy("fcfs", {})
    seqs = [make_view(index) for index in range(3)]
    for seq in seqs:
        policy.on_arrive(seq, NOW)
    policy.on_leave(seqs[0], LeaveReason.FINISHED, NOW)
    policy.on_leave(seqs[1], LeaveReason.WITHDRAWN, NOW)

    assert drain(policy) == [2]


def test_it_takes_no_snapshot_of_another_policy():
    with pytest.raises(ValueError, match="fcfs"):
        load_scheduling_policy("fcfs", {}).restore(load_scheduling_policy("vtc", {}).snapshot())
