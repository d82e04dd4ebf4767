"""The audit chain can be added to and checked, and nothing else goes unnoticed."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from gateway.store.audit import ChainBroken, ChainIntact, chain_end, read_chain, verify_chain
from gateway.store.db import Database
from gateway.store.errors import InvalidValueError
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

    verdict = await verify_chain(database)
    assert isinstance(verdict, ChainBroken)
    assert verdict.event_id == broken_at


async def test_an_end_that_was_cut_off_with_its_hash_set_back_is_missed_by_its_revision(
    database: Database,
) -> None:
    await make_history(database)
    await tamper(database, "DELETE FROM audit_event WHERE id = 4")

    async with database.session() as session:
        newest = "SELECT hash FROM audit_event ORDER BY id DESC LIMIT 1"
        await session.execute(text(f"UPDATE policy_revision SET audit_head = ({newest})"))

    assert await verify_chain(database) == ChainBroken(None)


async def test_an_event_that_was_made_too_large_is_found_and_the_others_are_read(database: Database) -> None:
    await make_history(database)
    huge = "jsonb_build_object('x', repeat('y', 20000000))"
    await tamper(database, f"UPDATE audit_event SET after = {huge}, actor = repeat('z', 20000000) WHERE id = 2")

    verdict = await verify_chain(database)
    events = [event async for batch in read_chain(database, await chain_end(database)) for event in batch]

    assert isinstance(verdict, ChainBroken)
    assert verdict.event_id == 2
    assert [event.id for event in events] == [1, 2, 3, 4]
    assert events[1].content["after"] == {"too_large_bytes": 20_000_009}
    assert len(events[1].content["actor"]) < 10_000


async def test_a_batch_ends_before_it_is_too_large(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    await make_history(database)
    monkeypatch.setattr("gateway.store.audit._BATCH_BYTES", 1)

    batches = [batch async for batch in read_chain(database, await chain_end(database))]

    assert [len(batch) for batch in batches] == [1, 1, 1, 1]
    assert await verify_chain(database) == ChainIntact(4)


async def test_a_change_that_is_too_large_to_record_is_not_made(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_history(database)
    monkeypatch.setattr("gateway.store.audit.MAX_EVENT_CHARS", 400)

    with pytest.raises(InvalidValueError, match="more than 400 characters"):
        await make_organization(database, "other", settings=OrganizationSettings("x" * 200))

    assert await verify_chain(database) == ChainIntact(4)


async def test_the_chain_goes_on_over_more_events_than_one_batch(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.store.audit._BATCH_ROWS", 3)
    await make_history(database)

    assert await verify_chain(database) == ChainIntact(4)
