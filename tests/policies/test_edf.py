"""Earliest deadline first, and best effort for what is beyond hope."""

from engine.core.costs import Prices, StepCosts
from engine.core.policy import Concession
from engine.plugins import load_scheduling_policy
from tests.policies.views import MS, NOW, admit, begin, drain, make_view, preempt

# A prompt token takes a millisecond, a block and back two.
PRICES = Prices(
    step=StepCosts(base_ns=0.0, prefill_token_ns=1e6, decode_ns=1e6), copy_out_block_ns=1e6, copy_in_block_ns=1e6
)


def make_edf(**options: str):
    policy = load_scheduling_policy("edf", options)
    begin(policy, prices=PRICES)
    return policy


def arrive(policy, *deadlines_ms: int | None, **fields: object):
    seqs = [
        make_view(index, deadline=None if deadline is None else deadline * MS, **fields)
        for index, deadline in enumerate(deadlines_ms)
    ]
    for seq in seqs:
        policy.on_arrive(seq, NOW)
    return seqs


def test_the_earliest_deadline_comes_first():
    policy = make_edf()
    arrive(policy, 300, 100, 200)

    assert drain(policy) == [1, 2, 0]


def test_a_request_without_a_deadline_gets_one_from_its_arrival():
    policy = make_edf(slo_ms="150")
    arrive(policy, 200, None, 100)

    assert drain(policy) == [2, 1, 0]


def test_equal_deadlines_are_served_in_order_of_arrival():
    policy = make_edf()
    arrive(policy, 100, 100, 100)

    assert drain(policy) == [0, 1, 2]


def test_a_deadline_that_the_prompt_alone_would_miss_is_served_with_best_effort():
    policy = make_edf()
    tight, loose = arrive(policy, 50, 500, prompt=40)
    begin(policy, now=10 * MS, prices=PRICES)
    assert policy.select(()) is tight

    begin(policy, now=11 * MS, prices=PRICES)
    assert policy.select(()) is loose
    assert policy.select((loose,)) is tight


def test_hopeless_requests_are_served_in_order_of_arrival_those_that_ran_first():
    policy = make_edf(slo_ms="1")
    for index in (0, 1):
        policy.on_arrive(make_view(index), NOW)
    preempt(policy, make_view(2), swap=True)
    begin(policy, now=100 * MS, prices=PRICES)

    assert drain(policy) == [2, 0, 1]


def test_some_admissions_are_kept_for_hopeless_requests():
    policy = make_edf(best_effort_every="4")
    hopeless = arrive(policy, 1, 2, prompt=40)
    begin(policy, now=20 * MS, prices=PRICES)
    for index in range(10, 30):
        policy.on_arrive(make_view(index, deadline=10**6 * MS), NOW)

    order = drain(policy)
    assert [order.index(seq.arrival_index) for seq in hopeless] == [3, 7]


def test_an_urgent_request_takes_from_those_that_can_wait():
    policy = make_edf(urgent_ms="20")
    can_wait, cannot, urgent = arrive(policy, 1_000, 80, 50, prompt=40)
    for seq in (can_wait, cannot):
        admit(policy, seq)
        seq.num_device_blocks = 10
        seq.num_computed_tokens = 20
    begin(policy, now=5 * MS, prices=PRICES)

    assert policy.concede(can_wait, urgent) is Concession.SWAP
    cannot.num_device_blocks = 100  # there and back takes 200 ms
    assert policy.concede(cannot, urgent) is Concession.NOTHING


def test_a_request_that_has_time_takes_nothing_from_anyone():
    policy = make_edf(urgent_ms="20")
    other, unhurried = arrive(policy, 10_000, 5_000)
    admit(policy, other)

    assert policy.concede(other, unhurried) is Concession.NOTHING


def test_a_hopeless_request_gives_way_and_takes_nothing():
    policy = make_edf(urgent_ms="1000")
    hopeless, urgent = arrive(policy, 5, 500, prompt=40)
    begin(policy, now=10 * MS, prices=PRICES)

    assert policy.concede(hopeless, urgent) is Concession.SWAP
    assert policy.concede(urgent, hopeless) is Concession.NOTHING
