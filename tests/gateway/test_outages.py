"""What works while Postgres or the engine is away, what is said meanwhile, and that nobody has to restart anything."""

import asyncio
import tempfile
import time
from collections import abc
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import grpc
import pytest
import pytest_asyncio
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from sqlalchemy import text
from uuid_utils.compat import uuid7

from evenflow.admin.v1 import admin_pb2, admin_pb2_grpc
from gateway import api_key, ledger
from gateway.server import GENERATION_SERVICE, MODEL_SERVICE
from gateway.servicer import served_models
from gateway.store.cache import STORE_LOST_AFTER_S
from gateway.store.db import Database
from gateway.store.enums import Dimension, StoreLossAction
from gateway.store.errors import DatabaseUnavailableError
from gateway.store.quota_policies import create_quota_policy
from gateway.store.records import ApiKeySettings, QuotaLimit, QuotaPolicySettings, ResourcePath
from gateway.store.usage import UsageEvent, insert_usage
from tests.gateway.fake_engine import FakeCall, FakeEngine, begun
from tests.gateway.postgres_proxy import PostgresProxy
from tests.gateway.world import CHANGE, Tenant, World, eventually, refused

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest_asyncio.fixture
async def proxy(database_url: str) -> abc.AsyncIterator[PostgresProxy]:
    """The gateway's way to Postgres."""
    with tempfile.TemporaryDirectory() as directory:  # a socket's path must be short
        door = PostgresProxy(database_url, Path(directory))
        await door.open()
        yield door
        await door.shut()


@pytest_asyncio.fixture
async def proxied(closed_world: World, proxy: PostgresProxy) -> World:
    """A running gateway behind the proxy, while the test itself reaches Postgres directly."""
    closed_world.database_url = proxy.url
    await closed_world.open()
    await closed_world.serving()
    return closed_world


async def health_of(world: World, service: str) -> int:
    stub = health_pb2_grpc.HealthStub(world.channel())
    return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status


async def test_a_known_key_works_without_postgres_and_the_usage_is_written_afterwards(
    proxied: World, proxy: PostgresProxy
) -> None:
    tenant = await proxied.tenant()
    await proxy.shut()

    answers = [await tenant.generate() for _ in range(3)]
    await eventually(lambda: proxied.ledger.num_waiting == 3)
    await proxy.open()

    rows = await proxied.usage_rows()
    assert {str(row["generation_id"]) for row in rows} == {answer.generation_id for answer in answers}


async def test_a_limited_tenant_is_served_at_its_rate_without_postgres_after_its_lease_is_spent(
    proxied: World, proxy: PostgresProxy
) -> None:
    tenant = await proxied.tenant()
    limit = QuotaLimit(Dimension.REQUESTS, 60_000, 60_000, 20)
    await proxied.limit(ResourcePath(tenant.path.organization, tenant.path.team), (limit,))
    await tenant.generate()
    await proxy.shut()

    num_served = 0
    while num_served < 100:
        try:
            await tenant.generate()
            num_served += 1
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            await asyncio.sleep(0.01)


async def test_an_unknown_key_cannot_be_checked_without_postgres_and_is_never_called_wrong(
    proxied: World, proxy: PostgresProxy
) -> None:
    tenant = await proxied.tenant()
    stranger = Tenant(
        ResourcePath(None), tenant.organization_id, tenant.team_id, tenant.key_id, "", api_key.generate().text,
        proxied.channel(),
    )  # fmt: skip
    await proxy.shut()
    during = await refused(stranger.generate())
    await proxy.open()
    after = await refused(stranger.generate())

    assert (during.code, during.info.reason) == (grpc.StatusCode.UNAVAILABLE, "AUTH_STORE_UNAVAILABLE")
    assert during.retry is not None
    assert (after.code, after.info.reason) == (grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_INVALID")


@pytest.mark.parametrize("node", [ResourcePath("acme"), ResourcePath("acme", "search")])
async def test_a_tenant_that_fails_closed_is_served_only_while_postgres_confirms_its_keys(
    proxied: World, proxy: PostgresProxy, node: ResourcePath
) -> None:
    world, clock = proxied, Clock()
    world.cache._clock = clock
    closed, stale = await world.tenant(), await world.tenant("other")
    await world.policy(node, QuotaPolicySettings(on_store_loss=StoreLossAction.FAIL_CLOSED))
    assert await closed.generate()
    await proxy.shut()

    clock.offset_s = STORE_LOST_AFTER_S + 1.0
    during = await refused(closed.generate())
    assert await stale.generate()
    await proxy.open()
    await world.cache.refresh()

    assert (during.code, during.info.reason) == (grpc.StatusCode.UNAVAILABLE, "AUTH_STORE_UNAVAILABLE")
    assert during.retry is not None
    assert await closed.generate()


async def test_a_key_whose_policy_fails_closed_is_not_served_from_a_stale_snapshot(
    proxied: World, proxy: PostgresProxy
) -> None:
    world, clock = proxied, Clock()
    world.cache._clock = clock
    closed = await world.tenant()
    other = await world.key(closed.path, closed.organization_id, closed.team_id)
    settings = QuotaPolicySettings(weight=None, on_store_loss=StoreLossAction.FAIL_CLOSED)
    await create_quota_policy(world.database, CHANGE, closed.path, "default", settings)
    await world.cache.refresh()
    await proxy.shut()

    clock.offset_s = STORE_LOST_AFTER_S + 1.0

    assert (await refused(closed.generate())).info.reason == "AUTH_STORE_UNAVAILABLE"
    assert await other.generate()


async def test_a_stale_snapshot_serves_up_to_a_bound(closed_world: World, proxy: PostgresProxy) -> None:
    world, clock = closed_world, Clock()
    world.database_url = proxy.url
    world.options["auth_stale_max_s"] = 60.0
    await world.open()
    await world.serving()
    world.cache._clock = clock
    tenant = await world.tenant()
    await proxy.shut()

    clock.offset_s = 50.0
    assert await tenant.generate()
    clock.offset_s = 61.0
    refusal = await refused(tenant.generate())

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.UNAVAILABLE, "AUTH_STORE_UNAVAILABLE")
    assert refusal.retry is not None


class Clock:
    """The time of day of a test."""

    offset_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.offset_s


FAIL = (
    "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN RAISE EXCEPTION 'the disk' USING ERRCODE = '{state}'; END $$"
)
ON_USAGE = "CREATE TRIGGER fail BEFORE INSERT ON usage_event FOR EACH ROW EXECUTE FUNCTION fail()"
ON_KEYS = "CREATE TRIGGER fail BEFORE UPDATE ON api_key FOR EACH ROW EXECUTE FUNCTION fail()"


@pytest.mark.parametrize(
    ("breaks", "mends"),
    [
        *(
            ((FAIL.format(state=state), ON_USAGE, ON_KEYS), "DROP FUNCTION fail CASCADE")
            for state in (
                "25006",
                "42501",
                "58030",
                "XX000",
                "P0001",
            )  # read-only, no right, I/O error, corrupt, raised
        ),
        (("ALTER TABLE usage_event RENAME TO gone",), "ALTER TABLE gone RENAME TO usage_event"),
    ],
)
async def test_usage_outlives_whatever_the_database_says_and_is_complained_about_once(
    world: World, tenant: Tenant, monkeypatch: pytest.MonkeyPatch, breaks: tuple[str, ...], mends: str
) -> None:
    num_attempts = 0

    async def count(database: Database, events: list[UsageEvent]) -> int:
        nonlocal num_attempts
        num_attempts += 1
        return await insert_usage(database, events)

    monkeypatch.setattr(ledger, "insert_usage", count)
    monkeypatch.setattr(ledger, "RETRY_S", 0.01)
    await execute(world.database, *breaks)
    with structlog.testing.capture_logs() as lines:
        answers = [await tenant.generate() for _ in range(3)]
        await world.live._last_used.flush()
        await eventually(lambda: num_attempts >= 5)
        await mend(world.database, mends)
        rows = await world.usage_rows()

    assert {str(row["generation_id"]) for row in rows} == {answer.generation_id for answer in answers}
    assert [line["event"] for line in lines].count("usage waits for the database") == 1
    assert world.is_running


async def mend(database: Database, statement: str) -> None:
    """`statement` has run, though it may meet the insert that is tried all the time in a deadlock, and lose."""
    while True:
        with suppress(DatabaseUnavailableError):
            return await execute(database, statement)


async def test_a_standby_that_only_reads_keeps_the_gateway_running_and_the_usage_waiting(
    closed_world: World, proxy: PostgresProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, closed_world.database_url = closed_world, proxy.url
    monkeypatch.setattr(ledger, "RETRY_S", 0.01)
    name = urlsplit(world.database_url).path.strip("/")
    await execute(world.database, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await world.open()  # its sessions begin after the change, and the partitions cannot be made
    await world.serving()
    tenant = await world.tenant()

    with structlog.testing.capture_logs() as lines:
        assert await tenant.generate()
        await eventually(lambda: any(line["event"] == "usage waits for the database" for line in lines))
    await world.live._last_used.flush()
    is_running = world.is_running
    await execute(world.database, f"ALTER DATABASE {name} RESET default_transaction_read_only")
    await proxy.shut()
    await proxy.open()

    assert is_running
    assert len(await world.usage_rows()) == 1


async def execute(database: Database, *statements: str) -> None:
    for statement in statements:
        async with database.session() as session:
            await session.execute(text(statement))


async def test_administration_is_unavailable_without_postgres(proxied: World, proxy: PostgresProxy) -> None:
    admin = await proxied.administrator()
    stub = admin_pb2_grpc.AdminServiceStub(admin.channel)
    await proxy.shut()

    refusal = await refused(
        stub.GetOrganization(admin_pb2.GetOrganizationRequest(name="organizations/acme"), metadata=admin.metadata)
    )
    status = await stub.GetSystemStatus(admin_pb2.GetSystemStatusRequest(), metadata=admin.metadata)

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE")
    assert status.engines[0].reachable


async def test_a_gateway_that_starts_without_postgres_and_engine_finds_both_by_itself(
    closed_world: World, proxy: PostgresProxy
) -> None:
    world, closed_world.database_url = closed_world, proxy.url
    await world.engine.stop()
    await proxy.shut()
    await world.open()
    before = (await health_of(world, GENERATION_SERVICE), await health_of(world, MODEL_SERVICE))

    await proxy.open()
    tenant = await world.tenant()
    without_engine = await refused(tenant.generate())
    await world.engine.start()
    await world.serving()
    answer = await tenant.generate()

    assert before == (NOT_SERVING, SERVING)
    assert (without_engine.code, without_engine.info.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_ENGINE")
    assert without_engine.retry is not None
    assert answer.outputs[0].text == "hello"
    assert await health_of(world, GENERATION_SERVICE) == SERVING


async def test_an_engine_that_comes_back_with_another_model_serves_that_one(world: World, tenant: Tenant) -> None:
    await tenant.generate(model="bytes")
    await world.engine.stop()
    await eventually(lambda: not world.live._models.is_serving)
    away = await refused(tenant.generate(model="bytes"))
    unhealthy = await health_of(world, GENERATION_SERVICE)
    world.engine.info.name = "other"
    world.engine.info.context_tokens = 100
    await world.engine.start()
    await world.serving()

    assert (away.info.reason, unhealthy) == ("NO_ENGINE", NOT_SERVING)
    assert (await refused(tenant.generate(model="bytes"))).info.reason == "MODEL_NOT_FOUND"
    assert (await tenant.generate(model="other")).model == "other"
    assert (await refused(tenant.generate(text="x" * 100))).info.reason == "CONTEXT_LENGTH"


async def test_an_engine_that_speaks_another_version_is_not_used(closed_world: World) -> None:
    closed_world.engine.info.protocol_version = 2
    await closed_world.open()
    tenant = await closed_world.tenant()

    assert (await refused(tenant.generate())).info.reason == "NO_ENGINE"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"),
        (grpc.StatusCode.INVALID_ARGUMENT, "CONTEXT_LENGTH"),
        (grpc.StatusCode.FAILED_PRECONDITION, "PROTOCOL_VERSION"),
        (grpc.StatusCode.INTERNAL, "OTHER"),
        (grpc.StatusCode.UNIMPLEMENTED, "OTHER"),
    ],
)
async def test_an_engine_that_will_not_say_what_it_serves_takes_nothing_else_with_it(
    closed_world: World,
    second_engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    code: grpc.StatusCode,
    reason: str,
) -> None:
    world = closed_world
    monkeypatch.setattr(served_models, "RETRY_S", 0.01)
    monkeypatch.setattr(served_models, "UNUSABLE_RETRY_S", 0.01)
    world.engine.info_refusal = (code, reason)
    world.options["engine"] = f"{world.engine.address},{second_engine.address}"
    await world.open()
    await world.serving()
    await eventually(lambda: world.engine.num_info_calls >= 3)
    tenant = await world.tenant()
    assert await tenant.generate()

    world.engine.info_refusal = None
    await eventually(lambda: len(world.live._models._ready) == 2)
    assert world.is_running


async def test_an_engine_that_turns_a_request_away_attracts_no_others_until_it_takes_them_again(
    closed_world: World, second_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, draining, other = closed_world, closed_world.engine, second_engine
    monkeypatch.setattr(served_models, "RETRY_S", 0.01)
    world.options["engine"] = f"{draining.address},{other.address}"
    await world.open()
    await eventually(lambda: len(world.live._models._ready) == 2)
    tenant = await world.tenant()
    draining.script, other.script = turn_away, begun
    draining.is_draining = True
    refusal = await refused(tenant.stream())  # both are idle: the first one is asked
    held = [tenant.stream() for _ in range(5)]
    first_messages = [await stream.read() for stream in held]

    assert refusal.info.reason == "NO_ENGINE"
    assert all(message.HasField("admission") for message in first_messages)
    assert (len(draining.calls), len(other.calls)) == (1, 5)
    draining.script, draining.is_draining = begun, False
    await eventually(lambda: len(world.live._models._ready) == 2)
    late = tenant.stream()
    await late.read()
    assert len(draining.calls) == 2
    for stream in (*held, late):
        stream.cancel()
    await eventually(lambda: not world.live.num_live_requests)


async def turn_away(call: FakeCall) -> None:
    await call.refuse(grpc.StatusCode.UNAVAILABLE, "DRAINING")


async def test_a_draining_engine_is_no_engine(world: World, tenant: Tenant) -> None:
    world.engine.script = turn_away
    refusal = await refused(tenant.stream())

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_ENGINE")
    assert world.book.num_reservations == 0


async def test_of_two_engines_the_less_busy_one_is_used_and_one_may_go(
    closed_world: World, second_engine: FakeEngine
) -> None:
    world, second = closed_world, second_engine
    world.engine.script = second.script = begun
    world.options["engine"] = f"{world.engine.address},{second.address}"
    await world.open()
    await eventually(lambda: len(world.live._models._ready) == 2)
    tenant = await world.tenant()

    streams = [tenant.stream() for _ in range(4)]
    await asyncio.gather(*(stream.read() for stream in streams))
    shares = (len(world.engine.calls), len(second.calls))
    await second.stop()
    await eventually(lambda: len(world.live._models._ready) == 1)
    late = tenant.stream()
    await late.read()

    assert shares == (2, 2)
    assert len(world.engine.calls) == 3
    for stream in (*streams, late):
        stream.cancel()
    await eventually(lambda: not world.live.num_live_requests)


async def test_who_names_no_model_that_is_there_is_told_of_those_it_may_use_and_of_no_other(
    closed_world: World, second_engine: FakeEngine
) -> None:
    world = closed_world
    second_engine.info.name = "secret"
    world.options["engine"] = f"{world.engine.address},{second_engine.address}"
    await world.open()
    await eventually(lambda: len(world.live._models._ready) == 2)
    free = await world.tenant()
    bound = await world.tenant("globex", key=ApiKeySettings(model_grants=("bytes",)))

    assert (await refused(free.generate(model="x"))).message.endswith(": this key may use bytes, secret")
    assert (await refused(free.generate())).message.endswith("name one of bytes, secret")
    hidden = await refused(bound.generate(model="secret"))
    assert (hidden.info.reason, hidden.message.endswith(": this key may use bytes")) == ("MODEL_NOT_FOUND", True)


async def test_no_work_is_taken_that_could_not_be_recorded(closed_world: World, proxy: PostgresProxy) -> None:
    world, closed_world.database_url = closed_world, proxy.url
    world.options["ledger_capacity"] = 2
    await world.open()
    await world.serving()
    tenant = await world.tenant()
    await proxy.shut()
    for num_waiting in (1, 2):
        await tenant.generate()
        await eventually(lambda: world.ledger.num_waiting >= num_waiting)  # noqa: B023  it is called before the next one
        await world.ledger.on_disk()
    assert world.ledger.num_waiting == 2

    refusal = await refused(tenant.generate())
    await proxy.open()
    await world.settled()

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.UNAVAILABLE, "LEDGER_UNAVAILABLE")
    assert await tenant.generate()


async def test_usage_that_was_written_before_the_connection_broke_is_not_written_twice(
    world: World, tenant: Tenant, monkeypatch
) -> None:
    num_attempts = 0

    async def lose_the_answer(database: Database, events) -> int:
        nonlocal num_attempts
        num_attempts += 1
        num_new = await insert_usage(database, events)
        if num_attempts == 1:
            raise DatabaseUnavailableError("the answer was lost")
        return num_new

    monkeypatch.setattr(ledger, "insert_usage", lose_the_answer)
    await tenant.generate()

    assert len(await world.usage_rows()) == 1
    assert num_attempts == 2


async def test_good_events_are_kept_when_the_database_goes_away_while_a_bad_one_is_sought(
    world: World, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tenant.generate()
    (row,) = await world.usage_rows()
    good = UsageEvent(**{name: row[name] for name in UsageEvent.__slots__})
    events = [replace(good, generation_id=uuid7()) for _ in range(4)]
    events[1] = replace(good, generation_id=uuid4())  # no UUIDv7: it has no day
    num_singles = 0

    async def lose_the_connection(database: Database, batch: list[UsageEvent]) -> int:
        nonlocal num_singles
        num_singles += len(batch) == 1
        if len(batch) == 1 and num_singles == 3:
            raise DatabaseUnavailableError("gone in the middle")
        return await insert_usage(database, batch)

    monkeypatch.setattr(ledger, "insert_usage", lose_the_connection)
    monkeypatch.setattr(ledger, "RETRY_S", 0.01)
    for event in events:
        world.ledger.record(event)

    rows = await world.usage_rows()
    assert {row["generation_id"] for row in rows} == {
        good.generation_id, *(event.generation_id for event in events if event is not events[1])
    }  # fmt: skip


async def test_an_event_that_cannot_be_stored_does_not_keep_the_others_out(world: World, tenant: Tenant) -> None:
    await tenant.generate()
    (row,) = await world.usage_rows()
    event = UsageEvent(**{name: row[name] for name in UsageEvent.__slots__})
    world.ledger.record(replace(event, generation_id=uuid4()))  # no UUIDv7: it has no day
    await tenant.generate()

    assert len(await world.usage_rows()) == 2
