"""From policies to limits: which ones hold over a request, at which prices, and for how long a grant raises them."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from gateway.quota_limits import NodePolicy, limits_at, reservation_mode, unix_ns
from gateway.quota_terms import Calendar, CostWeights, Dimension, Mode
from gateway.store.enums import Dimension as Stored
from gateway.store.enums import ReservationMode, StoreLossAction
from gateway.store.records import QuotaBudget, QuotaCost, QuotaGrant, QuotaLimit
from gateway.store.snapshot import PolicyRecord

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
NOBODY = UUID(int=0)
REQUESTS = QuotaLimit(Stored.REQUESTS, 60, 60_000, 10)
TOKENS = QuotaLimit(Stored.TOTAL_TOKENS, 600, 60_000, 100)
COST = QuotaLimit(Stored.COST_UNITS, 600, 60_000, 100)
SLOTS = QuotaLimit(Stored.CONCURRENCY, 4, None, None)


def policy(*limits: QuotaLimit, **fields) -> PolicyRecord:
    made = PolicyRecord(NOBODY, 1.0, limits, Mode.ENFORCE, StoreLossAction.SERVE_STALE, 0, strict=False, revision=1)
    return replace(made, **fields)


def grant(dimension: Stored | None, amount: int, **fields) -> QuotaGrant:
    made = QuotaGrant(NOBODY, dimension, None, "", amount, None, NOW + timedelta(hours=1), "a launch", "root", NOW)
    return replace(made, **fields)


def over(*policies: PolicyRecord) -> list[NodePolicy]:
    """The policies of a key, its team and its organization, or of the last of them."""
    nodes = ("key", "team", "organization")[-len(policies) :]
    return [NodePolicy(node, each) for node, each in zip(nodes, policies, strict=True)]


def test_limits_of_every_node_hold_from_the_key_up():
    found = limits_at(over(policy(REQUESTS), policy(TOKENS, SLOTS), policy(TOKENS)), "small", NOW)

    assert [(limit.node, limit.dimension) for limit in found] == [
        ("key", Dimension.REQUESTS),
        ("team", Dimension.TOTAL_TOKENS),
        ("team", Dimension.CONCURRENCY),
        ("organization", Dimension.TOTAL_TOKENS),
    ]
    assert (found[0].limit, found[0].period_ns, found[0].burst) == (60, 60_000_000_000, 10)


def test_limits_of_another_model_do_not_hold():
    small, large = replace(TOKENS, model="small"), replace(TOKENS, model="large")
    budgets = (QuotaBudget(Calendar.DAY, 5, "large"), QuotaBudget(Calendar.DAY, 7))

    found = limits_at(over(policy(TOKENS, small, large, budgets=budgets)), "small", NOW)

    assert [(limit.dimension, limit.model) for limit in found] == [
        (Dimension.TOTAL_TOKENS, ""),
        (Dimension.TOTAL_TOKENS, "small"),
        (Dimension.BUDGET, ""),
    ]
    assert len(limits_at(over(policy(TOKENS, small, large, budgets=budgets)), None, NOW)) == 5


def test_the_mode_and_the_ways_of_the_policy_are_those_of_its_limits():
    fields = {"mode": Mode.BORROW, "strict": True, "max_overdraft": 7}
    fields["on_store_loss"] = StoreLossAction.FAIL_CLOSED

    (limit,) = limits_at(over(policy(TOKENS, **fields)), "small", NOW)

    assert (limit.mode, limit.strict, limit.max_overdraft, limit.fails_closed) == (Mode.BORROW, True, 7, True)


def test_without_a_word_a_rate_may_be_overdrawn_by_five_minutes_of_it_and_a_budget_by_a_hundredth():
    budgets = (QuotaBudget(Calendar.MONTH, 1_000, ""),)
    found = limits_at(over(policy(REQUESTS, TOKENS, budgets=budgets)), "small", NOW)

    assert [limit.max_overdraft for limit in found] == [300, 3_000, 10]


def test_cost_units_count_by_the_nearest_price_of_the_model():
    own, any_model = QuotaCost(7, 1, 9, "small"), QuotaCost(2, 1, 3)
    organization = policy(COST, costs=(QuotaCost(100, 10, 400, "large"), QuotaCost(50, 5, 200)))
    path = over(policy(COST, costs=(own,)), policy(COST, costs=(own, any_model)), organization)

    def weights(model: str) -> list[CostWeights]:
        return [limit.weights for limit in limits_at(path, model, NOW)]

    assert weights("small") == [CostWeights(7, 1, 9), CostWeights(7, 1, 9), CostWeights(50, 5, 200)]
    assert weights("large") == [CostWeights(2, 1, 3), CostWeights(2, 1, 3), CostWeights(100, 10, 400)]
    assert [limit.weights for limit in limits_at(over(policy(COST)), "small", NOW)] == [CostWeights(1, 1, 2)]


def test_a_budget_has_the_window_of_its_time_zone():
    at = datetime(2026, 11, 30, 23, 30, tzinfo=UTC)

    (limit,) = limits_at(
        over(policy(budgets=(QuotaBudget(Calendar.DAY, 500),), time_zone="Europe/Berlin")), "small", at
    )

    assert limit.limit == 500
    assert limit.window.start_ns == unix_ns(datetime(2026, 11, 30, 23, tzinfo=UTC))


def test_a_grant_raises_its_limit_until_its_end_and_not_a_moment_longer():
    raised = policy(REQUESTS, TOKENS, grants=(grant(Stored.TOTAL_TOKENS, 1200),))

    def amounts(now: datetime) -> list[tuple[int, int]]:
        return [(limit.limit, limit.burst) for limit in limits_at(over(raised), "small", now)]

    assert amounts(NOW) == [(60, 10), (1200, 200)]
    assert amounts(NOW + timedelta(hours=1, microseconds=-1)) == [(60, 10), (1200, 200)]
    assert amounts(NOW + timedelta(hours=1)) == [(60, 10), (600, 100)]


def test_of_several_grants_the_highest_counts_and_none_lowers():
    grants = (
        grant(Stored.TOTAL_TOKENS, 900),
        grant(Stored.TOTAL_TOKENS, 700, burst=400),
        grant(Stored.TOTAL_TOKENS, 10, burst=1),
        grant(Stored.TOTAL_TOKENS, 9_000, model="large"),
        grant(Stored.REQUESTS, 9_000),
    )

    (limit,) = limits_at(over(policy(TOKENS, grants=grants)), "small", NOW)

    assert (limit.limit, limit.burst) == (900, 400)


def test_slots_and_budgets_are_raised_too():
    grants = (grant(Stored.CONCURRENCY, 9), grant(None, 800, calendar=Calendar.MONTH))
    budgets = (QuotaBudget(Calendar.MONTH, 500), QuotaBudget(Calendar.DAY, 50))

    found = limits_at(over(policy(SLOTS, budgets=budgets, grants=grants)), "small", NOW)

    assert [limit.limit for limit in found] == [9, 800, 50]


@pytest.mark.parametrize(
    ("key", "team", "organization", "expected"),
    [
        (None, None, None, ReservationMode.HARD),
        (None, None, ReservationMode.EXPECTED, ReservationMode.EXPECTED),
        (None, ReservationMode.HARD, ReservationMode.EXPECTED, ReservationMode.HARD),
        (ReservationMode.EXPECTED, ReservationMode.HARD, None, ReservationMode.EXPECTED),
    ],
)
def test_the_nearest_policy_that_says_how_to_reserve_decides(key, team, organization, expected):
    path = over(*(policy(reservation=mode) for mode in (key, team, organization)))

    assert reservation_mode(path) is expected
