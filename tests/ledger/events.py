"""Usage events, and what the tables hold of them."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from uuid import UUID, uuid4

from sqlalchemy import text
from uuid_utils.compat import uuid7

from gateway.ledger import Ledger
from gateway.spool import Spool
from gateway.store.db import Database
from gateway.store.enums import UsageSource
from gateway.store.usage import UsageEvent

ORGANIZATION, TEAM, KEY = (UUID(int=(7 << 76) | (2 << 62) | number) for number in (1, 2, 3))
SUMMED = "count(*)::bigint AS num_requests, " + ", ".join(
    f"sum({name})::bigint AS {name}"
    for name in (
        "input_tokens",
        "cached_input_tokens",
        "output_tokens",
        "billed_tokens",
        "discarded_tokens",
        "recomputed_tokens",
        "num_preemptions",
        "queue_ns",
        "prefill_ns",
        "decode_ns",
        "preempted_ns",
    )
)
# Spelled another way than the trigger's, so that one mistake does not hide the other.
EVENTS_BY_HOUR = (
    "SELECT timestamptz 'epoch' + interval '1 hour' * floor(('x0000' || translate(left(generation_id::text, 13),"
    " '-', ''))::bit(64)::bigint / 3600000.0) AS hour, organization_id, team_id, key_id, model, priority_class,"
    f" {SUMMED} FROM usage_event GROUP BY 1, 2, 3, 4, 5, 6"
)


def make_uuid7(unix_ms: int) -> UUID:
    return UUID(int=(unix_ms << 80) | (7 << 76) | (2 << 62) | uuid4().int & ((1 << 62) - 1))


def make_event(generation_id: UUID | None = None, **fields) -> UsageEvent:
    given = {
        "generation_id": generation_id or uuid7(),
        "organization_id": ORGANIZATION,
        "team_id": TEAM,
        "key_id": KEY,
        "model": "small",
        "priority_class": "default",
        "input_tokens": 10,
        "output_tokens": 5,
        "billed_tokens": 15,
        "finish_reason": "STOP",
        "source": UsageSource.ENGINE,
        "finished_at": datetime.now(UTC),
        "policy_revision": 3,
    }
    return UsageEvent(**given | fields)


async def stored_ids(database: Database) -> list[UUID]:
    async with database.session() as session:
        return list(await session.scalars(text("SELECT generation_id FROM usage_event ORDER BY 1")))


async def rollups(database: Database) -> tuple[set, set]:
    """The hourly sums, and what they have to be by the events."""
    async with database.session() as session:
        kept = {tuple(row) for row in await session.execute(text("SELECT * FROM usage_rollup_hour"))}
        counted = {tuple(row) for row in await session.execute(text(EVENTS_BY_HOUR))}
    return kept, counted


@asynccontextmanager
async def running(ledger: Ledger):
    """The ledger, open and at work."""
    await ledger.open()
    task = asyncio.create_task(ledger.run())
    try:
        yield ledger
    finally:
        task.cancel()
        await asyncio.wait([task])
        await ledger.close()
        if not task.cancelled():
            task.result()


def make_ledger(database: Database, root, capacity: int = 1000, **options) -> Ledger:
    return Ledger(database, Spool(root), capacity, **options)


async def eventually(holds) -> None:
    while not holds():  # noqa: ASYNC110 - what is waited for announces nothing
        await asyncio.sleep(0.005)
