"""Shares, weights and leads of tenants, level by level."""

import pytest

from engine.core.stats import TenantStats
from engine.core.types import PathNode
from engine.server.shares import shares, weight_shares


def tenant(*path: tuple[str, float], standing=(), num_running: int = 1, **figures) -> TenantStats:
    zero = dict.fromkeys(TenantStats.__dataclass_fields__, 0)
    nodes = tuple(PathNode(*node) for node in path)
    own = {"tenant_id": "/".join(node.id for node in nodes), "path": nodes, "standing": standing}
    return TenantStats(**(zero | own | {"num_running": num_running} | figures))


def test_output_tokens_count_twice_and_recomputed_ones_not_at_all():
    first, second = shares(
        [
            tenant(("a", 1), ("x", 1), num_prefill_tokens=10, num_output_tokens=10, num_recomputed_tokens=99),
            tenant(("a", 1), ("y", 1), num_prefill_tokens=10),
        ]
    )
    assert (first.served_work, second.served_work) == (30, 10)
    assert (first.share, second.share) == (0.75, 0.25)


def test_weights_are_shared_out_level_by_level():
    found = weight_shares([tenant(("a", 3), ("x", 1)), tenant(("a", 3), ("y", 2)), tenant(("b", 1), ("x", 9))])
    assert found == pytest.approx({"a/x": 0.25, "a/y": 0.5, "b/x": 0.25})


def test_nobody_was_served_yet():
    assert shares([]) == []
    (alone,) = shares([tenant(("a", 2), ("x", 5))])
    assert (alone.share, alone.lead) == (0, 0)


def test_lead_is_the_largest_over_the_levels():
    found = shares(
        [
            tenant(("a", 1), ("x", 1), standing=(50, 7)),
            tenant(("a", 1), ("y", 1), standing=(50, 27)),
            tenant(("b", 1), ("x", 1), standing=(45, 3)),
        ]
    )
    assert [share.lead for share in found] == [5, 20, 0]


def test_tenant_without_work_is_nobodys_measure():
    ahead, idle = shares(
        [tenant(("a", 1), ("x", 1), standing=(9, 9)), tenant(("b", 1), ("x", 1), standing=(2, 2), num_running=0)]
    )
    assert ahead.lead == 0
    assert idle.lead == 0  # below the floor on one level, alone on the other


@pytest.mark.parametrize("state", ["num_waiting", "num_paused", "num_swapped", "num_swapping"])
def test_tenant_whose_requests_only_wait_has_work(state: str):
    ahead, _ = shares(
        [
            tenant(("a", 1), ("x", 1), standing=(9, 9)),
            tenant(("b", 1), ("x", 1), standing=(2, 2), num_running=0, **{state: 1}),
        ]
    )
    assert ahead.lead == 7


def test_policy_that_does_not_count_makes_no_leads():
    assert [share.lead for share in shares([tenant(("a", 1)), tenant(("b", 1))])] == [0, 0]


def test_who_comes_back_is_no_measure_by_the_counter_that_it_left_with():
    ahead, back = tenant(("a", 1), standing=(7.0,)), tenant(("b", 1), standing=(-900.0,))

    assert [share.lead for share in shares([ahead, back])] == [7, 0]
