"""The ledger inside a gateway: what callers and operators notice of it."""

import asyncio
import os
from collections import abc
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from sqlalchemy import text

from gateway import ledger as ledger_module
from gateway.embedded import EmbeddedOptions, EmbeddedPostgres
from gateway.servicer import relay
from gateway.store import migrate
from gateway.store.db import Database
from gateway.store.errors import DatabaseUnavailableError
from gateway.store.records import TeamSettings
from gateway.telemetry import Telemetry
from tests.conftest import FAST
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.world import Tenant, World, eventually, refused
from tests.ledger.events import rollups

DURABLE = TeamSettings(durable_usage=True)


async def test_a_durable_teams_caller_hears_of_the_end_when_its_usage_is_on_disk(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await world.tenant(team=DURABLE)
    may_sync, sync = asyncio.Event(), world.ledger._on_disk_thread

    async def held(work: abc.Callable[[], object]) -> object:
        await may_sync.wait()
        return await sync(work)

    monkeypatch.setattr(world.ledger, "_on_disk_thread", held)
    reading = asyncio.create_task(read(tenant))
    await eventually(lambda: world.ledger.num_waiting)
    await asyncio.wait((reading,), timeout=0.3)
    heard_before = reading.done()
    may_sync.set()
    kinds = await reading

    assert not heard_before
    assert kinds[-1] == "finish"


async def test_a_durable_teams_caller_is_told_where_its_usage_cannot_be_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await world.tenant(team=DURABLE)
    may_sync, sync = asyncio.Event(), world.ledger._on_disk_thread

    async def held(work: abc.Callable[[], object]) -> object:
        await may_sync.wait()
        return await sync(work)

    monkeypatch.setattr(world.ledger, "_on_disk_thread", held)
    monkeypatch.setattr(relay, "DISK_PATIENCE_S", 0.1)
    refusal = await refused(tenant.stream())
    may_sync.set()

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.UNAVAILABLE, "LEDGER_UNAVAILABLE")
    assert len(await world.usage_rows()) == 1


async def test_other_callers_do_not_wait_for_the_disk(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = await world.tenant()
    may_sync, sync = asyncio.Event(), world.ledger._on_disk_thread

    async def held(work: abc.Callable[[], object]) -> object:
        await may_sync.wait()
        return await sync(work)

    monkeypatch.setattr(world.ledger, "_on_disk_thread", held)
    kinds = await read(tenant)
    may_sync.set()

    assert kinds[-1] == "finish"
    assert len(await world.usage_rows()) == 1


async def read(tenant: Tenant) -> list[str]:
    return [message.WhichOneof("event") async for message in tenant.stream()]


async def test_usage_that_can_go_nowhere_closes_the_door(
    world: World, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_file: int, _data: object) -> int:
        raise OSError(28, "No space left on device")

    async def away(_database: object, _events: object) -> int:
        raise DatabaseUnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        patch.setattr(ledger_module, "insert_usage", away)
        await tenant.generate()
        await eventually(lambda: not world.ledger.has_room(0))
        refusal = await refused(tenant.generate())

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.UNAVAILABLE, "LEDGER_UNAVAILABLE")
    await eventually(lambda: world.ledger.has_room(1))
    await tenant.generate()
    assert len(await world.usage_rows()) == 2


async def test_a_data_directory_that_cannot_hold_a_spool_stops_the_start(closed_world: World, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    closed_world.options["data_dir"] = tmp_path / "file"

    with pytest.raises(Exception, match=r"^data_dir: cannot keep the ledger's spool"):
        await closed_world.open()
    closed_world._background = asyncio.create_task(asyncio.sleep(0))


async def test_metrics_say_what_waits(world: World, tenant: Tenant) -> None:
    await tenant.generate()
    await world.settled()
    families = {family.name: family for family in await world.live._page._collect()}

    figures = {name: family.samples[0].value for name, family in families.items() if "ledger" in name}
    assert figures == {
        "evenflow_ledger_spool_records": 0,
        "evenflow_ledger_spool_bytes": 0,
        "evenflow_ledger_spool_oldest_seconds": 0,
        "evenflow_ledger_duplicates": 0,
        "evenflow_ledger_dropped_events": 0,
        "evenflow_ledger_spool_damaged_bytes": 0,
    }


@pytest_asyncio.fixture
async def own_server(own_directory: Path) -> abc.AsyncIterator[EmbeddedPostgres]:
    """A server that the test may stop."""
    server = EmbeddedPostgres(own_directory, EmbeddedOptions(settings=FAST))
    yield server
    await server.stop()


@pytest.mark.parametrize("outage_s", [3.0, pytest.param(60.0, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
async def test_a_server_that_stops_under_load_costs_no_row_and_doubles_none(
    engine: FakeEngine, own_server: EmbeddedPostgres, tmp_path: Path, outage_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await own_server.start()
    await migrate.upgrade(url)
    database = Database(url)
    world = World(engine, database, url, Telemetry(None), tmp_path / "data")
    await world.open()
    await world.serving()
    tenant = await world.tenant()
    must_stop = asyncio.Event()
    generation_ids: list[str] = []
    failures: list[grpc.aio.AioRpcError] = []

    async def generate() -> None:
        while not must_stop.is_set():
            try:
                generation_ids.append((await tenant.generate()).generation_id)
            except grpc.aio.AioRpcError as error:
                failures.append(error)
            await asyncio.sleep(0.005)

    clients = [asyncio.create_task(generate()) for _ in range(8)]
    await eventually(lambda: len(generation_ids) > 50)
    await own_server.stop()
    num_before = len(generation_ids)
    await asyncio.sleep(outage_s)
    num_during = len(generation_ids) - num_before
    num_waiting = world.ledger.num_waiting
    await own_server.start()
    num_after = len(generation_ids)
    await eventually(lambda: len(generation_ids) > num_after + 50)
    must_stop.set()
    await asyncio.gather(*clients)
    await world.settled()
    async with database.session() as session:
        rows = list(await session.scalars(text("SELECT generation_id FROM usage_event")))
    kept, counted = await rollups(database)
    await world.close()
    await database.close()

    assert failures == []
    assert num_during > 20
    assert num_waiting >= num_during
    assert sorted(map(str, rows)) == sorted(generation_ids)
    assert kept == counted


async def test_administrators_say_which_teams_are_durable(command_line, service) -> None:
    await command_line("orgs", "create", "acme")
    created = (await command_line("teams", "create", "acme/search", "--durable-usage", "-o", "json")).json()
    other = (await command_line("teams", "create", "acme/ads", "-o", "json")).json()
    updated = (await command_line("teams", "update", "acme/search", "--no-durable-usage", "-o", "json")).json()
    renamed = (await command_line("teams", "update", "acme/search", "--display-name", "S", "-o", "json")).json()

    flags = [team["durable_usage"] for team in (created, other, updated, renamed)]
    assert flags == [True, False, False, False]
