"""The limits over a path are made once, and anew when a policy, a grant or a calendar window has changed them."""

from dataclasses import replace
from datetime import timedelta

from gateway.quota_limits import limits_at, unix_ns
from gateway.quota_limits_memo import MAX_KEPT, LimitsMemo
from gateway.quota_terms import Calendar
from gateway.store.enums import Dimension as Stored
from gateway.store.records import QuotaBudget
from tests.quota.test_limits import NOW, TOKENS, grant, over, policy

MICROSECOND = timedelta(microseconds=1)


def test_the_same_policies_give_the_same_limits_without_making_them_again():
    memo, record = LimitsMemo(), policy(TOKENS)

    first = memo.limits_at(over(record), "small", NOW)

    assert first == limits_at(over(record), "small", NOW)
    assert memo.limits_at(over(record), "small", NOW + timedelta(days=400)) is first


def test_each_model_and_each_policy_has_its_own():
    memo, record = LimitsMemo(), policy(replace(TOKENS, model="small"))

    assert len(memo.limits_at(over(record), "small", NOW)) == 1
    assert memo.limits_at(over(record), "large", NOW) == ()
    assert len(memo.limits_at(over(record), None, NOW)) == 1
    assert memo.limits_at(over(replace(record, limits=())), "small", NOW) == ()


def test_a_grant_raises_the_limit_until_the_moment_that_it_ends():
    memo, path = LimitsMemo(), over(policy(TOKENS, grants=(grant(Stored.TOTAL_TOKENS, 1200),)))
    end = NOW + timedelta(hours=1)

    def limit(now):
        return memo.limits_at(path, "small", now)[0].limit

    assert [limit(NOW), limit(end - MICROSECOND), limit(end)] == [1200, 1200, 600]


def test_a_budget_is_of_the_window_that_it_is_asked_in():
    memo, path = LimitsMemo(), over(policy(budgets=(QuotaBudget(Calendar.DAY, 5),)))
    midnight = NOW + timedelta(hours=12)

    def start_ns(now):
        return memo.limits_at(path, "small", now)[0].window.start_ns

    assert start_ns(NOW) == start_ns(midnight - MICROSECOND) < start_ns(midnight) == unix_ns(midnight)


def test_a_clock_that_is_set_back_gets_what_held_then():
    memo, path = LimitsMemo(), over(policy(budgets=(QuotaBudget(Calendar.DAY, 5),)))
    yesterday = NOW - timedelta(days=1)
    memo.limits_at(path, "small", NOW)

    assert memo.limits_at(path, "small", yesterday) == limits_at(path, "small", yesterday)


def test_what_is_kept_is_bounded():
    memo, path = LimitsMemo(), over(policy(TOKENS))

    for number in range(MAX_KEPT + 1):
        memo.limits_at(path, f"model {number}", NOW)

    assert len(memo) <= MAX_KEPT
