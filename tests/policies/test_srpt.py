"""Shortest predicted remaining work first."""

import json

import pytest

from engine.core.policy import Concession
from engine.plugins import load_scheduling_policy
from policies.srpt import MAX_TENANTS
from tests.policies.views import MS, NOW, admit, begin, drain, finish, make_view, preempt


def make_srpt(**options: str):
    return load_scheduling_policy("srpt", options)


def teach(policy, tenant: str, *lengths: int) -> None:
    """Requests of `tenant` have ended with outputs of these lengths."""
    for length in lengths:
        seq = make_view(10_000, tenant=tenant, output=10_000)
        policy.on_arrive(seq, NOW)
        admit(policy, seq)
        seq.num_output_tokens = length
        finish(policy, seq)


def test_less_uncomputed_prompt_comes_first():
    policy = make_srpt()
    for index, prompt in enumerate((60, 2, 30, 1)):
        policy.on_arrive(make_view(index, prompt=prompt), NOW)

    assert drain(policy) == [3, 1, 2, 0]


def test_a_tenant_with_short_outputs_comes_first():
    policy = make_srpt()
    teach(policy, "long", *[400] * 5)
    teach(policy, "short", *[10] * 5)
    for index, tenant in enumerate(("long", "short", "long", "short")):
        policy.on_arrive(make_view(index, tenant=tenant, output=1_000), NOW)

    assert drain(policy) == [1, 3, 0, 2]


def test_the_prediction_is_the_mean_of_the_tenants_last_five_outputs():
    policy = make_srpt(output_cost="1")
    teach(policy, "a", 9_000, 10, 20, 30, 40, 50)
    seq = make_view(tenant="a", prompt=7, output=1_000)
    policy.on_arrive(seq, NOW)

    assert policy.key(seq) == (1.0, 7 + 30)


def test_what_may_be_emitted_bounds_the_prediction():
    policy = make_srpt(output_cost="1", default_output="500")
    seq = make_view(prompt=7, output=3)
    policy.on_arrive(seq, NOW)

    assert policy.key(seq) == (1.0, 7 + 3)


def test_an_output_beyond_the_prediction_is_expected_to_go_on_as_long():
    policy = make_srpt(output_cost="1", default_output="10")
    seq = make_view(prompt=5, output=100)
    policy.on_arrive(seq, NOW)
    admit(policy, seq)
    left = []
    for seq.num_output_tokens in (5, 10, 30):
        seq.num_computed_tokens = seq.num_tokens
        left.append(policy.key(seq)[1])

    assert left == [5, 1, 20]


def test_whoever_has_starved_comes_first_in_order_of_arrival_and_gives_way_no_more():
    policy = make_srpt(starvation_ms="100")
    old, older = make_view(1, prompt=500), make_view(0, prompt=900)
    for seq in (older, old):
        policy.on_arrive(seq, NOW)
    begin(policy, now=100 * MS)
    short = make_view(2, prompt=1)
    policy.on_arrive(short, NOW)

    assert policy.concede(older, short) is Concession.NOTHING
    assert drain(policy) == [0, 1, 2]


def test_a_sequence_gives_way_to_much_shorter_work_only_and_by_swap():
    policy = make_srpt(output_cost="0", preempt_ratio="2")
    long, middle, short = (make_view(index, prompt=prompt) for index, prompt in enumerate((100, 60, 49)))
    for seq in (long, middle, short):
        policy.on_arrive(seq, NOW)
    admit(policy, long)

    assert policy.concede(long, short) is Concession.SWAP
    assert policy.concede(long, middle) is Concession.NOTHING
    assert policy.concede(short, long) is Concession.NOTHING


def test_a_preempted_request_is_ranked_by_what_is_left():
    policy = make_srpt(output_cost="0")
    policy.on_arrive(make_view(0, prompt=50), NOW)
    preempt(policy, make_view(1, prompt=90, num_computed_tokens=80), swap=True)

    assert drain(policy) == [1, 0]


def test_a_snapshot_carries_what_was_learnt_over():
    policy, successor = make_srpt(), make_srpt()
    teach(policy, "long", *[400] * 5)
    teach(policy, "short", *[10] * 5)
    successor.restore(policy.snapshot())

    assert successor.snapshot() == policy.snapshot()


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"outputs": {"a": [1]}, "order": [], "mean": 1},
        {"outputs": {"a": []}, "order": ["a"], "mean": 1},
        {"outputs": {"a": ["x"]}, "order": ["a"], "mean": 1},
        {"outputs": {}, "order": [], "mean": None},
    ],
)
def test_a_broken_snapshot_is_refused(state: dict):
    with pytest.raises(ValueError, match="srpt"):
        make_srpt().restore(json.dumps({"policy": "srpt", **state}).encode())


def test_only_the_latest_tenants_are_remembered():
    policy = make_srpt()
    for index in range(MAX_TENANTS + 10):
        teach(policy, f"t{index}", 5)

    outputs = json.loads(policy.snapshot())["outputs"]
    assert len(outputs) == MAX_TENANTS
    assert "org-t0/t0" not in outputs


def test_what_is_cached_of_a_prompt_is_no_work():
    policy = make_srpt(output_cost="0")
    policy.on_arrive(make_view(0, prompt=50), NOW)
    policy.on_arrive(make_view(1, prompt=90, num_cached_prompt_tokens=80), NOW)

    assert drain(policy) == [1, 0]
