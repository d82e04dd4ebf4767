"""Statements on refusals by quota: written in batches, read for a what-if, forgotten after a while."""

from collections import abc
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert

from gateway.store.db import Database
from gateway.store.policy_models import DenialEventRow

DENIAL_RETENTION = timedelta(days=30)
_MAX_FORGOTTEN = 10_000


@dataclass(frozen=True, slots=True)
class DenialEvent:
    """One refused request, with what it wanted. `nodes`, `dimensions` and `waits_ms` have an entry per violated limit.

    A wait of -1 is not known, or never ends. `is_shadow`: it was refused by limits in SHADOW only, and ran.
    """

    id: UUID
    denied_at: datetime
    organization_id: UUID
    team_id: UUID
    key_id: UUID
    model: str
    priority_class: str
    input_tokens: int
    max_output_tokens: int
    reserved_tokens: int
    reason: str
    is_shadow: bool
    nodes: tuple[str, ...]
    dimensions: tuple[str, ...]
    waits_ms: tuple[int, ...]
    policy_revision: int


async def insert_denials(database: Database, events: abc.Sequence[DenialEvent]) -> None:
    """Every event is on record, once. Raises DatabaseUnavailableError; then none is."""
    if not events:
        return
    rows = [asdict(event) for event in events]
    for row in rows:
        row |= {name: list(row[name]) for name in ("nodes", "dimensions", "waits_ms")}
    async with database.session() as session:
        await session.execute(insert(DenialEventRow).on_conflict_do_nothing(), rows)


async def list_denials(
    database: Database, since: datetime, until: datetime, after: UUID | None, size: int
) -> list[DenialEvent]:
    """At most `size` events of [since, until) in the order of their ids, after the one with id `after`."""
    query = (
        select(DenialEventRow)
        .where(DenialEventRow.denied_at >= since, DenialEventRow.denied_at < until)
        .order_by(DenialEventRow.id)
        .limit(size)
    )
    if after is not None:
        query = query.where(DenialEventRow.id > after)
    async with database.session() as session:
        return [_event(row) for row in await session.scalars(query)]


async def forget_denials(database: Database, retention: timedelta = DENIAL_RETENTION) -> int:
    """Events older than `retention` are gone, a bounded number per call. Returns how many."""
    old = (
        select(DenialEventRow.id)
        .where(DenialEventRow.denied_at < func.now() - retention)
        .order_by(DenialEventRow.denied_at)
        .limit(_MAX_FORGOTTEN)
    )
    async with database.session() as session:
        statement = delete(DenialEventRow).where(DenialEventRow.id.in_(old)).returning(DenialEventRow.id)
        return len((await session.scalars(statement)).all())


def _event(row: DenialEventRow) -> DenialEvent:
    return DenialEvent(
        id=row.id,
        denied_at=row.denied_at,
        organization_id=row.organization_id,
        team_id=row.team_id,
        key_id=row.key_id,
        model=row.model,
        priority_class=row.priority_class,
        input_tokens=row.input_tokens,
        max_output_tokens=row.max_output_tokens,
        reserved_tokens=row.reserved_tokens,
        reason=row.reason,
        is_shadow=row.is_shadow,
        nodes=tuple(row.nodes),
        dimensions=tuple(row.dimensions),
        waits_ms=tuple(row.waits_ms),
        policy_revision=row.policy_revision,
    )
