"""Several gateways' quota backends over one real Postgres, under many callers, cancellations and outages."""

import asyncio
import time
from collections import abc
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.embedded import EmbeddedOptions, EmbeddedPostgres
from gateway.errors import StoreUnavailableError
from gateway.leases import LeasedQuota
from gateway.leases.terms import LEASE_NS
from gateway.metrics import Families, add_leases
from gateway.quota_terms import Charge, Denied, Dimension, Limit, Reserved
from gateway.store import migrate
from gateway.store.db import Database
from gateway.store.quota_buckets import PostgresQuotaStore
from tests.conftest import FAST
from tests.leases.centre import NS_PER_S
from tests.leases.replicas import NODE, charge, tokens

NUM_CALLERS = 200


@asynccontextmanager
async def running(database: Database, num_replicas: int = 1) -> abc.AsyncIterator[list[LeasedQuota]]:
    """Backends that make their turns, with `stores` in the same order."""
    quotas = [LeasedQuota(PostgresQuotaStore(database)) for _ in range(num_replicas)]
    tasks = [asyncio.create_task(quota.run()) for quota in quotas]
    try:
        yield quotas
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for quota in quotas:
            await quota.close()


def store_of(quota: LeasedQuota) -> PostgresQuotaStore:
    store = quota._store
    assert isinstance(store, PostgresQuotaStore)
    return store


async def flood(quotas: list[LeasedQuota], limits: tuple[Limit, ...], seconds: float) -> list[tuple[int, int]]:
    """200 callers that ask for 5 tokens, again and again. Returns when each grant was asked for and known."""
    ends_ns = time.monotonic_ns() + round(seconds * NS_PER_S)
    grants = []

    async def call(caller: int) -> None:
        quota, number = quotas[caller % len(quotas)], 0
        while time.monotonic_ns() < ends_ns:
            number += 1
            name, asked_ns = f"{caller}/{number}", time.monotonic_ns()
            if isinstance(await quota.reserve(name, limits, charge(5)), Reserved):
                grants.append((asked_ns, time.monotonic_ns()))
                quota.settle(name, charge(5))
            await asyncio.sleep(0.05)

    await asyncio.gather(*(call(caller) for caller in range(NUM_CALLERS)))
    return sorted(grants)


def certain_overshoot(grants: list[tuple[int, int]], limit: Limit) -> float:
    """By how much what was surely granted within some window exceeds what one bucket grants in it."""
    begins = sorted({asked_ns for asked_ns, _ in grants})[:: max(1, len(grants) // 200)]
    worst = 0.0
    for begin_ns in begins:
        known = sorted(known_ns for asked_ns, known_ns in grants if asked_ns >= begin_ns)
        for number, end_ns in enumerate(known, 1):
            allowed = limit.burst + limit.limit * (end_ns - begin_ns) / limit.period_ns
            worst = max(worst, 5 * number - allowed)
    return worst


@pytest.mark.parametrize(
    ("num_replicas", "is_strict"),
    [
        (1, False),
        (4, True),
        pytest.param(1, True, marks=pytest.mark.slow),
        pytest.param(4, False, marks=pytest.mark.slow),
    ],
)
async def test_many_callers_share_one_limit(database: Database, num_replicas: int, *, is_strict: bool) -> None:
    limit = tokens(500, 300, strict=is_strict)
    async with running(database, num_replicas) as quotas:
        began_ns = time.monotonic_ns()
        grants = await flood(quotas, (limit, tokens(10**6, 10**6, model="m")), seconds=2)
        took_s = (time.monotonic_ns() - began_ns) / NS_PER_S

    assert certain_overshoot(grants, limit) <= (0 if is_strict else 500 * LEASE_NS / NS_PER_S)
    assert 5 * len(grants) >= 300 + 500  # at least half of what the limit gives, however slow the machine
    assert 5 * len(grants) <= 300 + 500 * (took_s + 2)


async def test_the_number_of_statements_does_not_depend_on_the_number_of_requests(database: Database) -> None:
    limit, statements = tokens(10**6, 10**6), []
    async with running(database) as quotas:
        for num_requests in (20, 2000):
            before = store_of(quotas[0]).num_statements
            for number in range(num_requests):
                name = f"{num_requests}/{number}"
                assert isinstance(await quotas[0].reserve(name, (limit,), charge(5)), Reserved)
                quotas[0].settle(name, charge(3))
                await asyncio.sleep(2 / num_requests)
            statements.append(store_of(quotas[0]).num_statements - before)

    few, many = statements
    assert many <= 2 * few + 20


async def test_a_claim_that_is_cancelled_holds_nothing(database: Database) -> None:
    limit = tokens(1, 100, strict=True)
    async with running(database) as (quota,):
        for number in range(30):
            task = asyncio.create_task(quota.reserve(str(number), (limit,), charge(100)))
            await asyncio.sleep(0.0005 * number)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                quota.release(str(number))
        assert quota.num_reservations == 0

        assert isinstance(await quota.reserve("last", (limit,), charge(100)), Reserved)
        assert quota.num_reservations == 1


async def test_status_is_as_of_now_everywhere(database: Database) -> None:
    limit = tokens(1, 100, 1000)
    slots = Limit(NODE, Dimension.CONCURRENCY, 3)  # too few to keep any in store
    async with running(database, 2) as (first, second):
        assert isinstance(await first.reserve("r", (limit, slots), charge(40)), Reserved)

        (remaining, free) = await second.status((limit, slots))

        assert remaining.amount == pytest.approx(60, abs=40)
        assert free.amount == 2


async def test_the_metrics_say_what_leases_did(database: Database) -> None:
    limit = tokens(100, 1000)
    async with running(database) as (quota,):
        assert isinstance(await quota.reserve("r", (limit,), charge(10)), Reserved)
        families = Families()
        add_leases(families, quota.report())
    samples = {sample.name: sample.value for family in families.all for sample in family.samples}

    assert samples["evenflow_lease_missed_tokens_total"] == 10
    assert samples["evenflow_lease_granted_tokens_total"] >= 20  # and as much in store
    assert samples["evenflow_lease_overdrawn_tokens_total"] == 0
    assert samples["evenflow_lease_refresh_seconds"] > 0
    assert quota.report().returned >= 10


async def test_what_a_backend_held_can_be_had_elsewhere_when_it_is_closed(database: Database) -> None:
    limit, slots = tokens(1, 1000, 1000), Limit(NODE, Dimension.CONCURRENCY, 1)
    async with running(database) as (quota,):
        assert isinstance(await quota.reserve("r", (limit, slots), charge(10)), Reserved)
        quota.settle("r", charge(0))
    async with running(database) as (quota,):
        assert isinstance(await quota.reserve("r", (limit, slots), charge(1000)), Reserved)


@pytest_asyncio.fixture
async def own_server(own_directory: Path) -> abc.AsyncIterator[tuple[EmbeddedPostgres, str]]:
    """A migrated server that a test may stop."""
    server = EmbeddedPostgres(own_directory, EmbeddedOptions(settings=FAST))
    url = await server.start()
    await migrate.upgrade(url)
    yield server, url
    await server.stop()


async def once_there(quota: LeasedQuota, limit: Limit, asked: Charge) -> Reserved | Denied:
    """The verdict once the store is back."""
    while True:
        try:
            return await quota.reserve("again", (limit,), asked)
        except StoreUnavailableError:
            await asyncio.sleep(0.1)


async def test_postgres_is_stopped_and_started_again(own_server: tuple[EmbeddedPostgres, str]) -> None:
    server, url = own_server
    database = Database(url)
    strict = tokens(100, 100, model="strict", strict=True, max_overdraft=10**6)
    lenient = tokens(100, 100, model="lenient", max_overdraft=60)
    free = tokens(10**6, 10**6, model="free")
    async with running(database, 2) as (quota, other):
        for each in (quota, other):
            assert isinstance(await each.reserve("r", (strict,), charge(1)), Reserved)
            each.settle("r", charge(1))
        await asyncio.sleep(1.2)  # until each has heard of the other
        await server.stop()
        with pytest.raises(StoreUnavailableError):
            await quota.reserve("strict", (strict,), charge(1))
        num_granted = 0
        for number in range(30):
            try:
                verdict = await quota.reserve(f"lenient/{number}", (lenient,), charge(5))
                num_granted += isinstance(verdict, Reserved)
            except StoreUnavailableError:
                break
            await asyncio.sleep(0.1)
        assert 0 < num_granted <= 6  # half of the overdraft
        with pytest.raises(StoreUnavailableError):
            await quota.reserve("free", (free,), charge(5))

        assert await server.start() == url
        async with asyncio.timeout(30):
            assert isinstance(await once_there(quota, strict, charge(100)), Reserved)
            assert isinstance(await once_there(other, free, charge(5)), Reserved)
        assert quota.report().overdrawn == 5 * num_granted
    await database.close()


async def test_a_server_that_was_restarted_between_two_turns_is_found_at_once(
    own_server: tuple[EmbeddedPostgres, str],
) -> None:
    server, url = own_server
    database = Database(url)
    limit = tokens(100, 100, strict=True)
    quota = LeasedQuota(PostgresQuotaStore(database))
    assert await turned(quota, quota.reserve("first", (limit,), charge(1)))
    await server.stop()
    assert await server.start() == url

    assert await turned(quota, quota.reserve("second", (limit,), charge(1)))
    await quota.close()
    await database.close()


async def turned(quota: LeasedQuota, call: abc.Awaitable[object]) -> bool:
    """Make one turn for the call, whose verdict this returns."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0)
    await quota._turn()
    return isinstance(await task, Reserved)


async def test_a_charge_of_nothing_needs_no_store(tmp_path: Path) -> None:
    quota = LeasedQuota(PostgresQuotaStore(Database("postgresql://nobody@127.0.0.1:1/none")))

    assert isinstance(await quota.reserve("r", (tokens(1, 1, strict=True),), Charge(0)), Reserved)


async def test_a_dry_run_holds_and_counts_nothing_and_asks_the_store_once_a_second(database: Database) -> None:
    limit = tokens(1, 1000, strict=True)
    async with running(database) as (quota,):
        assert isinstance(await quota.reserve("r", (limit,), charge(600)), Reserved)
        await quota.check((limit,), charge(1))
        num_statements, began_s = store_of(quota).num_statements, time.monotonic()
        for _ in range(300):
            assert await quota.check((limit,), charge(300)) == ()
            (violation,) = await quota.check((limit,), charge(500))
            assert violation.limit is limit
        num_allowed = 2 + 6 * (time.monotonic() - began_s)  # it looks once a second, and turns go on every 0.2 s
        assert store_of(quota).num_statements - num_statements <= num_allowed
        assert (quota.num_reservations, quota.report().missed) == (1, 600)
        assert (await quota.status((limit,)))[0].amount in (400, 401, 402, 403)


async def test_whoever_waits_for_the_store_when_it_is_closed_is_told(database: Database) -> None:
    quota = LeasedQuota(PostgresQuotaStore(database))
    limit = tokens(100, 100, strict=True)
    assert await turned(quota, quota.reserve("first", (limit,), charge(1)))
    turn, late = quota._turn, []

    async def last_turn(*, is_last: bool = False) -> None:
        await turn(is_last=is_last)
        late.append(asyncio.ensure_future(quota.reserve("late", (limit,), charge(1))))
        late.append(asyncio.ensure_future(quota.status((limit,))))
        await asyncio.sleep(0)

    quota._turn = last_turn
    await quota.close()

    async with asyncio.timeout(5):
        with pytest.raises(StoreUnavailableError):
            await late[0]
        await late[1]
        with pytest.raises(StoreUnavailableError):
            await quota.reserve("later", (limit,), charge(1))
    assert quota.num_reservations == 1
