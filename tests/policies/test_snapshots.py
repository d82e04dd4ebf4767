"""Counters that outlive a change of policy, where that means something."""

import json

import pytest

from engine.plugins import load_scheduling_policy
from tests.policies.views import NOW, admit, make_view, output, standing, tenant_id

COUNTING = ("vtc", "drr")
NOT_COUNTING = ("fcfs", "priority", "mlfq", "srpt", "edf")


def used(name: str):
    """A policy under which tenant `a` was served 600 cost units more than tenant `b`; both have work."""
    policy = load_scheduling_policy(name, {})
    seqs = [make_view(index, tenant=tenant, prompt=1) for index, tenant in enumerate("ab")]
    for seq in seqs:
        policy.on_arrive(seq, NOW)
    for seq in seqs:
        admit(policy, seq)
    for tenant, num_tokens in (("a", 2_000), ("b", 1_700)):
        policy.charge(output(tenant, num_tokens))
    return policy


@pytest.mark.parametrize("name", [*COUNTING, *NOT_COUNTING])
def test_a_snapshot_names_its_policy(name: str):
    assert json.loads(used(name).snapshot())["policy"] == name


@pytest.mark.parametrize("new", COUNTING)
@pytest.mark.parametrize("old", COUNTING)
def test_counting_policies_go_on_from_each_others_differences(old: str, new: str):
    before, after = used(old), load_scheduling_policy(new, {})
    after.restore(before.snapshot())
    for index, tenant in enumerate("ab"):
        after.on_arrive(make_view(index, tenant=tenant), NOW)

    gap = standing(before, "a") - standing(before, "b")
    assert gap == 2 * 300
    assert standing(after, "a") - standing(after, "b") == gap
    assert after.select(()).tenant_id == tenant_id("b")


@pytest.mark.parametrize("new", COUNTING)
@pytest.mark.parametrize("old", NOT_COUNTING)
def test_counters_are_not_made_up(old: str, new: str):
    with pytest.raises(ValueError, match=f"{new} cannot take over a snapshot without counters"):
        load_scheduling_policy(new, {}).restore(used(old).snapshot())


@pytest.mark.parametrize("new", NOT_COUNTING)
@pytest.mark.parametrize("old", [*COUNTING, *NOT_COUNTING])
def test_policies_that_do_not_count_take_their_own_only(old: str, new: str):
    if old == new:
        load_scheduling_policy(new, {}).restore(used(old).snapshot())
    else:
        with pytest.raises(ValueError, match=f"not a snapshot of {new}"):
            load_scheduling_policy(new, {}).restore(used(old).snapshot())


@pytest.mark.parametrize("name", COUNTING)
def test_a_tenant_that_the_snapshot_does_not_know_starts_with_the_least_served(name: str):
    policy = load_scheduling_policy(name, {})
    policy.restore(json.dumps({"policy": "another", "counters": {tenant_id("a"): 70, tenant_id("b"): 50}}).encode())
    for index, tenant in enumerate("abc"):
        policy.on_arrive(make_view(index, tenant=tenant), NOW)

    assert standing(policy, "c") == standing(policy, "b") == standing(policy, "a") - 20
