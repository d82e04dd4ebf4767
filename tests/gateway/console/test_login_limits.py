"""How often somebody may try to sign in, at all gateways together."""

from contextlib import suppress

import pytest
from sqlalchemy import text

from gateway.api_key import ParsedKey
from gateway.console.sign_in import login_limits
from gateway.console.sign_in.login_limits import PER_ADDRESS, PER_KEY, LoginLimits, TooManyLoginsError
from gateway.pepper import Peppers, PepperSource
from gateway.store.db import Database
from tests.gateway.world import PEPPER

KEY = ParsedKey("0123456789Ab", "secret")
# Nobody listens there.
AWAY = "postgresql://evenflow@/evenflow?host=/nonexistent"


def limits_of(database: Database) -> LoginLimits:
    """Those of one gateway."""
    return LoginLimits(database, PepperSource(Peppers.parse(PEPPER.encode())))


def peer(number: int) -> str:
    """Each of another network."""
    return f"ipv4:10.{number // 65536}.{number // 256 % 256}.{number % 256}:4711"


async def test_attempts_from_one_address_are_counted_by_all_gateways_together(database: Database) -> None:
    gateways = [limits_of(database), limits_of(database)]

    for number in range(PER_ADDRESS.amount):
        await gateways[number % 2].require(peer(1), None)

    for gateway in gateways:
        with pytest.raises(TooManyLoginsError) as refusal:
            await gateway.require(peer(1), None)
        assert refusal.value.retry_after_s is not None
        assert 0 < refusal.value.retry_after_s <= 60


async def test_attempts_at_one_key_are_limited_wherever_they_come_from(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of so many none share one by accident.
    monkeypatch.setattr(login_limits, "NUM_BUCKETS", 2**40)
    gateways = [limits_of(database), limits_of(database)]

    for number in range(PER_KEY.amount):
        await gateways[number % 2].require(peer(number), KEY)

    with pytest.raises(TooManyLoginsError):
        await gateways[0].require(peer(300), KEY)
    await gateways[0].require(peer(301), ParsedKey("another00000", "secret"))


async def test_attempts_that_their_address_may_not_make_do_not_count_at_the_key(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_limits, "NUM_BUCKETS", 2**40)
    limits = limits_of(database)

    for _ in range(3 * PER_KEY.amount):
        with suppress(TooManyLoginsError):
            await limits.require(peer(1), KEY)

    await limits.require(peer(2), KEY)


async def test_a_window_that_is_over_begins_anew(database: Database) -> None:
    for _ in range(PER_ADDRESS.amount):
        await limits_of(database).require(peer(1), None)
    with pytest.raises(TooManyLoginsError):
        await limits_of(database).require(peer(1), None)

    async with database.session() as session:
        await session.execute(text("UPDATE sign_in_window SET ends_at = ends_at - interval '1 minute'"))

    await limits_of(database).require(peer(1), None)


async def test_a_whole_site_of_ipv6_is_one_address(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_limits, "NUM_BUCKETS", 2**40)
    limits = limits_of(database)

    for number in range(PER_ADDRESS.amount):
        await limits.require(f"ipv6:%5B2001:db8::{number:x}%5D:4711", None)

    with pytest.raises(TooManyLoginsError):
        await limits.require("ipv6:%5B2001:db8::ffff:1%5D:4711", None)
    await limits.require("ipv6:%5B2001:db8:0:1::1%5D:4711", None)


async def test_without_the_database_each_gateway_counts_by_itself() -> None:
    database = Database(AWAY)
    limits = limits_of(database)

    for _ in range(PER_ADDRESS.amount):
        await limits.require(peer(1), None)

    with pytest.raises(TooManyLoginsError):
        await limits.require(peer(1), None)
    await database.close()


async def test_however_many_addresses_try_little_is_kept_of_them(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_limits, "NUM_BUCKETS", 8)
    limits = limits_of(database)

    for number in range(150):
        with suppress(TooManyLoginsError):
            await limits.require(peer(number), None)

    async with database.session() as session:
        assert (await session.execute(text("SELECT count(*) FROM sign_in_window"))).scalar_one() == 8
