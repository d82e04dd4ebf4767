"""The audit chain can be added to and checked, and nothing else goes unnoticed."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from gateway.store.audit import ChainBroken, ChainIntact, verify_chain
from gateway.store.db import Database
from gateway.store.records import OrganizationSettings
from tests.store.tenants import make_key, make_organization, make_team


async def make_history(database: Database) -> None:
    """Four events, with text that JSON spells in more than one way."""
    organization = await make_organization(database, settings=OrganizationSettings('Ünï "çode" \\ \u2028 🙂'))
    team = await make_team(database, organization)
    await make_key(database, team)
    await make_key(database, team)


async def tamper(database: Database, statement: str) -> None:
    """What the owner of the table can do, having switched the trigger off."""
    async with database.session() as session:
        await session.execute(text("ALTER TABLE audit_event DISABLE TRIGGER ALL"))
        await session.execute(text(statement))


async def test_the_empty_chain_is_intact(database: Database) -> None:
    assert await verify_chain(database) == ChainIntact(0)


async def test_an_untouched_chain_is_intact(database: Database) -> None:
    await make_history(database)

    assert await verify_chain(database) == ChainIntact(4)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_event SET actor = 'somebody else'",
        "DELETE FROM audit_event",
        "TRUNCATE audit_event",
    ],
)
async def test_events_cannot_be_changed_or_removed(database: Database, statement: str) -> None:
    await make_history(database)

    with pytest.raises(ProgrammingError, match="audit_event is append-only"):
        async with database.session() as session:
            await session.execute(text(statement))

    assert await verify_chain(database) == ChainIntact(4)


@pytest.mark.parametrize(
    ("statement", "broken_at"),
    [
        ("UPDATE audit_event SET actor = 'somebody else' WHERE id = 2", 2),
        ("UPDATE audit_event SET action = 'teams.update' WHERE id = 1", 1),
        ("UPDATE audit_event SET resource = resource || 'x' WHERE id = 3", 3),
        ("UPDATE audit_event SET after = jsonb_set(after, '{display_name}', '\"x\"') WHERE id = 2", 2),
        ("UPDATE audit_event SET before = '{}' WHERE id = 2", 2),
        ("UPDATE audit_event SET event_time = event_time - interval '1 microsecond' WHERE id = 4", 4),
        ("UPDATE audit_event SET revision = 7 WHERE id = 4", 4),
        ("UPDATE audit_event SET correlation_id = '' WHERE id = 2", 2),
        ("DELETE FROM audit_event WHERE id = 1", 2),
        ("DELETE FROM audit_event WHERE id = 3", 4),
        ("DELETE FROM audit_event WHERE id = 4", None),
        ("DELETE FROM audit_event", None),
    ],
)
async def test_tampering_is_found_where_it_was_done(database: Database, statement: str, broken_at: int | None) -> None:
    await make_history(database)

    await tamper(database, statement)

    assert await verify_chain(database) == ChainBroken(broken_at)


async def test_the_chain_goes_on_over_more_events_than_one_batch(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.store.audit._BATCH_ROWS", 3)
    await make_history(database)

    assert await verify_chain(database) == ChainIntact(4)
