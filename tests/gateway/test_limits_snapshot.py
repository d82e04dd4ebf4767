"""What an answer's metadata says about the caller's limits."""

import pytest

from gateway.quota_terms import Dimension, Limit, Mode, Remaining
from gateway.servicer.limits_snapshot import duration_text, ratelimit_metadata
from gateway.store.enums import Dimension as Stored
from gateway.store.records import QuotaLimit, ResourcePath
from tests.gateway.world import Tenant, World

NS_PER_S = 1_000_000_000


def entries(metadata) -> dict[str, str]:
    return {name: value for name, value in metadata or () if name.startswith("x-ratelimit")}


async def test_answers_say_what_is_left_in_one_piece_and_in_a_stream(world: World, tenant: Tenant) -> None:
    team = ResourcePath(tenant.path.organization, tenant.path.team)
    limits = (QuotaLimit(Stored.REQUESTS, 60, 3_600_000, 10), QuotaLimit(Stored.CONCURRENCY, 5, None, None))
    await world.limit(team, limits)

    unary = tenant.generate()
    await unary
    stream = tenant.stream()
    async for _ in stream:
        pass

    first, second = entries(await unary.initial_metadata()), entries(await stream.initial_metadata())
    assert first.keys() == second.keys() == {f"x-ratelimit-{what}-requests" for what in ("limit", "remaining", "reset")}
    assert first["x-ratelimit-limit-requests"] == "60"
    assert [told["x-ratelimit-remaining-requests"] for told in (first, second)] == ["9", "8"]
    assert {told["x-ratelimit-reset-requests"][-1] for told in (first, second)} == {"s"}


async def test_without_limits_nothing_is_said(tenant: Tenant) -> None:
    call = tenant.generate()
    await call

    assert entries(await call.initial_metadata()) == {}


def test_the_tightest_limit_speaks_and_one_that_refuses_nobody_does_not() -> None:
    key = Limit("key", Dimension.TOTAL_TOKENS, 600, 60 * NS_PER_S, 100)
    team = Limit("team", Dimension.TOTAL_TOKENS, 6000, 60 * NS_PER_S, 1000)
    shadow = Limit("organization", Dimension.TOTAL_TOKENS, 6, 60 * NS_PER_S, 1, mode=Mode.SHADOW)
    left = [(key, Remaining(90, NS_PER_S)), (team, Remaining(40, 90 * NS_PER_S)), (shadow, Remaining(0, 5))]

    assert ratelimit_metadata(left) == {
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "40",
        "x-ratelimit-reset-tokens": "1m30s",
    }


@pytest.mark.parametrize(
    ("length_ns", "text"),
    [
        (0, "0s"),
        (1, "1ms"),
        (999_000_000, "999ms"),
        (999_000_001, "1s"),
        (1_000_000_001, "2s"),
        (360 * NS_PER_S, "6m0s"),
        (3723 * NS_PER_S, "1h2m3s"),
    ],
)
def test_durations_are_rounded_up(length_ns: int, text: str) -> None:
    assert duration_text(length_ns) == text
