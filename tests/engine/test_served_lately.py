"""Who shares the engine: who has work, and who was served in the last minutes."""

from engine.server.served_lately import ServedLately
from engine.server.shares import weight_shares
from tests.engine.test_shares import tenant


def names(lately: ServedLately, now_s: float, **output_tokens: int) -> list[str]:
    """Of teams without work that have been served so much."""
    idle = [tenant((name, 1), num_running=0, num_output_tokens=number) for name, number in output_tokens.items()]
    return [each.tenant_id for each in lately.observe(idle, now_s)]


def test_tenant_that_was_served_shares_until_the_window_is_over():
    lately = ServedLately(window_s=10.0)

    assert names(lately, 0.0, a=5, b=0) == ["a"]
    assert names(lately, 9.0, a=5, b=1) == ["a", "b"]
    assert names(lately, 11.0, a=5, b=1) == ["b"]
    assert names(lately, 20.0, a=5, b=1) == []


def test_tenant_that_was_forgotten_and_comes_again_was_served_now():
    lately = ServedLately(window_s=10.0)
    names(lately, 0.0, a=5)
    names(lately, 30.0)

    assert names(lately, 60.0, a=5) == ["a"]


def test_weight_of_a_tenant_that_went_away_long_ago_is_shared_out():
    lately = ServedLately(window_s=10.0)
    gone, here = tenant(("gone", 3), num_running=0, num_output_tokens=5), tenant(("here", 1), num_output_tokens=5)

    assert weight_shares(lately.observe([gone, here], 0.0)) == {"gone": 0.75, "here": 0.25}
    assert weight_shares(lately.observe([gone, here], 11.0)) == {"here": 1.0}


def test_tenant_with_work_shares_although_it_was_served_nothing():
    lately = ServedLately(window_s=10.0)
    starved = tenant(("a", 1), num_running=0, num_waiting=5)

    assert lately.observe([starved], 0.0) == [starved]
    assert lately.observe([starved], 99.0) == [starved]
