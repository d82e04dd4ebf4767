"""One change is one transaction: rows, revision, audit event and notice appear together or not at all."""

import asyncio
from dataclasses import replace
from uuid import uuid4

import asyncpg  # type: ignore[import-untyped]  # it ships no types
import pytest
from sqlalchemy import text

from gateway.store.changes import CHANNEL, open_change
from gateway.store.db import Database, DatabaseOptions
from gateway.store.enums import State
from gateway.store.errors import (
    AlreadyExistsError,
    InvalidValueError,
    RequestIdReusedError,
    StoreConflictError,
)
from gateway.store.organizations import create_organization, get_organization, list_organizations, update_organization
from gateway.store.quota_policies import get_quota_policy
from gateway.store.records import OrganizationSettings, Page, ResourcePath, TeamSettings
from tests.store.tenants import ADMIN, make_change, make_organization, make_team

ACME = ResourcePath("acme")


async def read_state(database: Database) -> tuple[int, int, int]:
    """The revision, the number of audit events, the number of organizations."""
    async with database.session() as session:
        row = await session.execute(
            text(
                "SELECT (SELECT revision FROM policy_revision), (SELECT count(*) FROM audit_event), "
                "(SELECT count(*) FROM organization)"
            )
        )
        return tuple(row.one())


async def test_a_change_is_a_row_a_revision_and_an_audit_event(database: Database) -> None:
    organization = await make_organization(database, "acme", OrganizationSettings("Acme"))

    assert await read_state(database) == (1, 1, 1)
    async with database.session() as session:
        event = (await session.execute(text("SELECT * FROM audit_event"))).mappings().one()
        revision = (await session.execute(text("SELECT revision FROM organization"))).scalar_one()
    assert revision == event["revision"] == 1
    assert (event["actor"], event["action"], event["resource"]) == (ADMIN, "organizations.create", "organizations/acme")
    assert (event["before"], event["after"]) == (None, {"display_name": "Acme", "state": "ACTIVE"})
    assert event["event_time"] == organization.created_at
    assert event["correlation_id"] == "correlation"


async def test_a_refused_change_leaves_no_trace(database: Database) -> None:
    await make_organization(database, "acme")
    before = await read_state(database)

    with pytest.raises(AlreadyExistsError):
        await make_organization(database, "acme")
    with pytest.raises(InvalidValueError, match="ck_organization_slug"):
        await make_organization(database, "Not-A-Slug")

    assert await read_state(database) == before


async def test_a_change_that_fails_after_its_rows_were_written_is_undone(database: Database) -> None:
    organization = await make_organization(database, "acme")
    before = await read_state(database)

    with pytest.raises(InvalidValueError, match="default_priority_class: there is no priority class 'urgent'"):
        await make_team(database, organization, settings=TeamSettings(default_class="urgent"))

    assert await read_state(database) == before


async def test_an_edit_that_changes_nothing_makes_no_revision(database: Database) -> None:
    organization = await make_organization(database, "acme")
    before = await read_state(database)

    assert await update_organization(database, make_change(), ACME, lambda settings: settings) == organization

    assert await read_state(database) == before


async def test_an_edit_changes_etag_and_time_and_records_both_sides(database: Database) -> None:
    organization = await make_organization(database, "acme")

    suspended = await update_organization(
        database,
        make_change(etag=organization.etag),
        ACME,
        lambda settings: replace(settings, state=State.SUSPENDED),
    )

    assert suspended.settings.state is State.SUSPENDED
    assert suspended.etag != organization.etag
    assert suspended.updated_at > organization.updated_at
    async with database.session() as session:
        query = text("SELECT before ->> 'state', after ->> 'state' FROM audit_event ORDER BY id DESC LIMIT 1")
        assert (await session.execute(query)).one() == ("ACTIVE", "SUSPENDED")


async def test_an_outdated_etag_is_refused_with_the_current_one(database: Database) -> None:
    outdated = await make_organization(database, "acme")
    current = await update_organization(database, make_change(), ACME, lambda old: replace(old, display_name="A"))

    with pytest.raises(StoreConflictError) as refusal:
        await update_organization(
            database, make_change(etag=outdated.etag), ACME, lambda old: replace(old, display_name="B")
        )

    assert refusal.value.current_etag == current.etag
    assert await get_organization(database, ACME) == current


async def test_validate_only_checks_everything_and_keeps_nothing(database: Database) -> None:
    before = await read_state(database)
    settings = OrganizationSettings("Acme")

    preview = await create_organization(database, make_change(validate_only=True), ACME, settings)

    assert preview.settings == settings
    assert await read_state(database) == before
    with pytest.raises(InvalidValueError):
        await create_organization(database, make_change(validate_only=True), ResourcePath("-"), settings)


async def test_a_retry_returns_what_the_first_call_made(database: Database) -> None:
    change = make_change(uuid4(), b"fingerprint")
    first = await create_organization(database, change, ACME, OrganizationSettings())
    before = await read_state(database)

    assert await create_organization(database, change, ACME, OrganizationSettings()) == first

    assert await read_state(database) == before


async def test_a_retry_of_an_update_is_not_a_conflict_with_itself(database: Database) -> None:
    organization = await make_organization(database, "acme")
    change = make_change(uuid4(), b"fingerprint", organization.etag)

    async def rename() -> object:
        return await update_organization(database, change, ACME, lambda old: replace(old, display_name="Acme"))

    assert await rename() == await rename()


async def test_a_request_id_names_one_request(database: Database) -> None:
    request_id = uuid4()
    await create_organization(database, make_change(request_id, b"one"), ACME, OrganizationSettings())

    with pytest.raises(RequestIdReusedError):
        await create_organization(database, make_change(request_id, b"two"), ResourcePath("b"), OrganizationSettings())

    assert len(await list_organizations(database, Page(10))) == 1


async def test_concurrent_retries_of_one_request_make_one_organization(database_url: str) -> None:
    database = Database(database_url, DatabaseOptions(pool_timeout_s=60, lock_timeout_s=60, statement_timeout_s=60))
    change = make_change(uuid4(), b"fingerprint")

    made = await asyncio.gather(
        *(create_organization(database, change, ACME, OrganizationSettings()) for _ in range(20))
    )

    assert len({organization.id for organization in made}) == 1
    await database.close()


async def test_one_of_200_concurrent_creations_of_a_name_wins(database_url: str) -> None:
    database = Database(database_url, DatabaseOptions(pool_timeout_s=60, lock_timeout_s=60, statement_timeout_s=60))

    results = await asyncio.gather(*(make_organization(database, "acme") for _ in range(200)), return_exceptions=True)

    losers = [result for result in results if isinstance(result, AlreadyExistsError)]
    assert len(losers) == 199
    assert await read_state(database) == (1, 1, 1)
    assert (await get_quota_policy(database, ACME, "default")).settings.weight == 1.0
    await database.close()


async def test_a_cancelled_change_lets_the_next_one_through(database: Database) -> None:
    async with open_change(database, make_change()):  # holds the lock that the next one waits for
        waiting = asyncio.create_task(make_organization(database, "acme"))
        await until_somebody_waits(database)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    await make_organization(database, "acme")
    assert await read_state(database) == (1, 1, 1)


async def until_somebody_waits(database: Database) -> None:
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    async with asyncio.timeout(30):
        while True:
            async with database.session() as session:
                if (await session.execute(text(waits))).scalar_one():
                    return


async def test_concurrent_changes_get_consecutive_revisions(database_url: str) -> None:
    database = Database(database_url, DatabaseOptions(pool_timeout_s=60, lock_timeout_s=60, statement_timeout_s=60))

    await asyncio.gather(*(make_organization(database) for _ in range(30)))

    async with database.session() as session:
        query = text("SELECT revision FROM audit_event ORDER BY id")
        assert list((await session.scalars(query)).all()) == list(range(1, 31))
    await database.close()


async def test_listeners_hear_of_a_change_by_ids_only(database: Database, database_url: str) -> None:
    notices: asyncio.Queue[str] = asyncio.Queue()
    connection = await asyncpg.connect(database_url)
    await connection.add_listener(CHANNEL, lambda *notice: notices.put_nowait(notice[-1]))

    organization = await make_organization(database, "acme")

    async with asyncio.timeout(30):
        assert await notices.get() == f'{{"revision": 1, "resource_id": "{organization.id}"}}'
    await connection.close()
