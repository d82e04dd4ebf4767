"""Statements of the console's own: sessions that were ended, and attempts to sign in. Time is the database's."""

from collections import abc
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import case, delete, extract, func, select
from sqlalchemy.dialects.postgresql import insert

from gateway.store.console_models import ConsoleSessionEndRow, SignInWindowRow
from gateway.store.db import Database


@dataclass(frozen=True, slots=True)
class SignInWindow:
    """Attempts of one bucket so far, and how long they count."""

    num_attempts: int
    ends_in_s: float


async def end_sessions(database: Database, expiry_by_id: abc.Mapping[str, datetime]) -> None:
    """Every one of them has ended, on every gateway. Those that have expired by now are forgotten.

    Raises DatabaseUnavailableError.
    """
    rows = [{"session_id": session_id, "expires_at": expiry} for session_id, expiry in expiry_by_id.items()]
    async with database.session() as session:
        await session.execute(insert(ConsoleSessionEndRow).on_conflict_do_nothing(), rows)
        await session.execute(delete(ConsoleSessionEndRow).where(ConsoleSessionEndRow.expires_at <= func.now()))


async def has_session_ended(database: Database, session_id: str) -> bool:
    """Whether it was signed out of, at whichever gateway. Raises DatabaseUnavailableError."""
    found = select(ConsoleSessionEndRow.session_id).where(ConsoleSessionEndRow.session_id == session_id)
    async with database.session() as session:
        return (await session.execute(found)).first() is not None


async def count_sign_in(database: Database, kind: str, bucket: int, length: timedelta) -> SignInWindow:
    """One more attempt is counted; it begins a window of `length` where none is open.

    Raises DatabaseUnavailableError.
    """
    row, now = SignInWindowRow, func.clock_timestamp()
    is_over = row.ends_at <= now
    first = insert(row).values(kind=kind, bucket=bucket, ends_at=now + length, num_attempts=1)
    statement = first.on_conflict_do_update(
        index_elements=["kind", "bucket"],
        set_={
            "num_attempts": case((is_over, 1), else_=row.num_attempts + 1),
            "ends_at": case((is_over, first.excluded.ends_at), else_=row.ends_at),
        },
    ).returning(row.num_attempts, extract("epoch", row.ends_at - now))
    async with database.session() as session:
        num_attempts, left_s = (await session.execute(statement)).one()
    return SignInWindow(num_attempts, float(left_s))
