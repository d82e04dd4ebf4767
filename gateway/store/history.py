"""What was asked for in a stretch of the past, from the ledger and the refusals on record: sizes and times, no text."""

from collections import abc
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy import select

from gateway.store.db import Database
from gateway.store.denials import DenialEvent, list_denials
from gateway.store.journal_models import UsageEventRow

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
_BATCH_ROWS = 10_000
_RANDOM_BITS = 80  # of a UUIDv7, below its milliseconds


@dataclass(frozen=True, slots=True)
class PastRequest:
    """One request. `duration_ns` from its arrival to its end, None of one that was refused; so is `output_tokens`.

    `max_output_tokens` is what it might have used.
    """

    arrived_at: datetime
    team_id: UUID
    key_id: UUID
    model: str
    priority_class: str
    input_tokens: int
    max_output_tokens: int
    output_tokens: int | None
    duration_ns: int | None


async def past_requests(database: Database, since: datetime, until: datetime, limit: int) -> list[PastRequest]:
    """At most `limit` of the requests that arrived in [since, until), the newest, in the order of their arrival.

    Raises DatabaseUnavailableError.
    """
    served = [request async for request in _served(database, since, until, limit)]
    refused = [request async for request in _refused(database, since, until, limit)]
    return sorted((*served, *refused), key=lambda request: request.arrived_at)[-limit:]


async def _served(database: Database, since: datetime, until: datetime, limit: int) -> abc.AsyncIterator[PastRequest]:
    """From the newest on backwards."""
    first, before = _first_id(since), _first_id(until)
    num_left = limit
    while num_left > 0:
        query = (
            select(UsageEventRow)
            .where(
                UsageEventRow.day >= since.date(),
                UsageEventRow.generation_id >= first,
                UsageEventRow.generation_id < before,
            )
            .order_by(UsageEventRow.generation_id.desc())
            .limit(min(num_left, _BATCH_ROWS))
        )
        async with database.session() as session:
            rows = (await session.scalars(query)).all()
        if not rows:
            return
        for row in rows:
            yield _of_usage(row)
        before, num_left = rows[-1].generation_id, num_left - len(rows)


async def _refused(database: Database, since: datetime, until: datetime, limit: int) -> abc.AsyncIterator[PastRequest]:
    """Those that ran in spite of a limit in SHADOW are in the ledger."""
    after: UUID | None = None
    num_left = limit
    while num_left > 0:
        events = await list_denials(database, since, until, after, min(num_left, _BATCH_ROWS))
        if not events:
            return
        for event in events:
            if not event.is_shadow:
                yield _of_denial(event)
        after, num_left = events[-1].id, num_left - len(events)


def _first_id(moment: datetime) -> UUID:
    """The smallest UUIDv7-like id of the millisecond."""
    return UUID(int=((moment - EPOCH) // MILLISECOND) << _RANDOM_BITS)


def _of_usage(row: UsageEventRow) -> PastRequest:
    return PastRequest(
        arrived_at=EPOCH + (row.generation_id.int >> _RANDOM_BITS) * MILLISECOND,
        team_id=row.team_id,
        key_id=row.key_id,
        model=row.model,
        priority_class=row.priority_class,
        input_tokens=row.input_tokens,
        max_output_tokens=max(row.reserved_tokens - row.input_tokens, row.output_tokens),
        output_tokens=row.output_tokens,
        duration_ns=row.queue_ns + row.prefill_ns + row.decode_ns + row.preempted_ns,
    )


def _of_denial(event: DenialEvent) -> PastRequest:
    return PastRequest(
        arrived_at=event.denied_at,
        team_id=event.team_id,
        key_id=event.key_id,
        model=event.model,
        priority_class=event.priority_class,
        input_tokens=event.input_tokens,
        max_output_tokens=event.max_output_tokens,
        output_tokens=None,
        duration_ns=None,
    )
