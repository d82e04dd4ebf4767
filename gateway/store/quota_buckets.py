"""A replica's turn at the shared state of quotas: what it tells, what it asks for, what it gets. One statement each.

Owns the words of the exchange and its connection; the arithmetic is the function `quota_exchange` of the schema, which
runs under the rows' locks and the database's clock. Three facts carry everything above it:

- Of a rate, what is granted is charged at once, and what a replica holds unspent (`kept`) is told at each of its turns.
  A turn lifts the bucket to `now + everything held`, so that nothing given back mints credit, and spending runs ahead
  of one ideal bucket by at most the time since the last turn on it: at most the life of a lease.
- Of a budget or of live requests a replica tells all that it holds, and what it has used up for good. Nothing is lost
  with an answer; what a lost replica held of live requests is free again, what it held of a budget is never.
- Reports (`refund`, `debt`, `settled`) have the number of their turn and count once, however often they are sent.
"""

import asyncio
import json
from dataclasses import asdict, dataclass
from typing import Protocol
from uuid import UUID

import asyncpg  # type: ignore[import-untyped]  # it ships no types
from sqlalchemy import text

from gateway.store.db import Database, translated_errors
from gateway.store.errors import DatabaseUnavailableError

REPLICA_EXPIRY_S = 10.0
"""A replica that has not been heard of for this long is gone, and so are its live requests."""

StoreKey = tuple[str, str, str, str, int]
"""(node, dimension, model, calendar, start of the budget's window in Unix ns); the last three may be empty or 0."""

StoreClaim = tuple[tuple[int, int], ...]
"""(index into the asks, amount): all of it or none."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One replica's turn at one limit. Amounts are in the limit's unit.

    kept      what the replica holds and goes on holding
    want      what it would like to have in store on top; of the room, `leave` is not for that
    refund    what was charged and is not any more (rates)
    debt      what was spent without a charge, the first of it `debt_age_ns` ago (rates)
    settled   what was used up for good (budgets)
    """

    key: StoreKey
    limit: int
    period_ns: int = 0
    burst: int = 0
    kept: int = 0
    want: int = 0
    leave: int = 0
    refund: int = 0
    debt: int = 0
    debt_age_ns: int = 0
    settled: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """A replica's turn. `asks` are sorted by key, so that turns on the same rows never lock each other out.

    `number` is even, and goes up. A turn whose answer was lost is followed by an empty one under the next number, the
    question: if that is new, the lost one has not been taken and its reports never will be. It may be asked again.

    lease_ns   so long after its last turn what a replica holds of a rate counts as held
    """

    replica: UUID
    number: int
    lease_ns: int
    asks: tuple[Ask, ...] = ()
    claims: tuple[StoreClaim, ...] = ()
    is_last: bool = False
    is_question: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """`spare` was granted on top of the claims; `room` is left after it. A rate's tat is `lead_ticks` ahead."""

    spare: int
    room: int
    lead_ticks: int


@dataclass(frozen=True, slots=True)
class Answer:
    """`grants` are in the order of the asks, `verdicts` in that of the claims. `num_replicas` counts the asker.

    `is_new`: the number was; else nothing was done, and there is neither grant nor verdict, nor a count of replicas.
    """

    num_replicas: int
    is_new: bool
    grants: tuple[Grant, ...] = ()
    verdicts: tuple[bool, ...] = ()


class QuotaStore(Protocol):
    """Where replicas meet."""

    async def exchange(self, batch: Batch) -> Answer:
        """The batch has been taken, all of it or none; an error leaves open which. Raises DatabaseUnavailableError."""
        ...

    async def tidy(self) -> int:
        """Rows that say nothing any more are gone; returns how many went. Raises DatabaseUnavailableError."""
        ...

    async def close(self) -> None:
        """Nothing is connected."""
        ...


class PostgresQuotaStore:
    """The exchange over a connection of its own: no busy pool stands between a request and its quota."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self.num_statements = 0

    async def exchange(self, batch: Batch) -> Answer:
        """See QuotaStore. One call at a time. A call that is cancelled, or fails, costs the connection."""
        was_connected = self._connection is not None
        try:
            return await self._send(batch)
        except DatabaseUnavailableError:
            # A server that was restarted since the last turn answers on a new connection. The number of the turn tells
            # whether the old one had brought it there.
            if not was_connected:
                raise
        answer = await self._send(batch)
        if not answer.is_new and not batch.is_question:
            raise DatabaseUnavailableError("the answer to a turn was lost")
        return answer

    async def tidy(self) -> int:
        return await forget_idle_buckets(self._database)

    async def close(self) -> None:
        self._drop_connection()

    async def _send(self, batch: Batch) -> Answer:
        try:
            async with translated_errors():
                if self._connection is None:
                    self._connection = await self._database.connect()
                self.num_statements += 1
                return decode(await self._connection.fetchval("SELECT quota_exchange($1)", encode(batch)))
        except (DatabaseUnavailableError, asyncio.CancelledError):
            self._drop_connection()
            raise

    def _drop_connection(self) -> None:
        if self._connection is not None:
            # No polite end: the server may be gone, and a statement that still runs must not be waited for.
            self._connection.terminate()
            self._connection = None


async def forget_idle_buckets(database: Database) -> int:
    """Rows that say nothing any more are gone: rates that are full, budgets whose window ended long ago.

    Returns how many went. Meant for a call an hour by each process. Raises DatabaseUnavailableError.
    """
    async with database.session() as session:
        await session.execute(text("DELETE FROM replica WHERE heartbeat_at < now() - interval '1 day'"))
        gone = await session.execute(
            text(
                "DELETE FROM quota_bucket WHERE ctid = ANY (ARRAY(SELECT ctid FROM quota_bucket WHERE"
                " clock_ns < extract(epoch FROM now() - CASE dimension WHEN 'BUDGET' THEN interval '62 days'"
                " ELSE interval '1 day' END) * 1000000000"
                " AND (dimension IN ('BUDGET', 'CONCURRENCY')"
                " OR tat < extract(epoch FROM now()) * 1000000000 * ticks_per_ns)"
                " LIMIT 10000 FOR UPDATE SKIP LOCKED)) RETURNING 1"
            )
        )
        return len(gone.all())


def encode(batch: Batch) -> str:
    """As `quota_exchange` takes it."""
    return json.dumps(
        {
            "replica": str(batch.replica),
            "number": batch.number,
            "lease_ns": batch.lease_ns,
            "expiry_s": REPLICA_EXPIRY_S,
            "is_last": batch.is_last,
            "is_question": batch.is_question,
            "asks": [_encode_ask(ask) for ask in batch.asks],
            "claims": batch.claims,
        }
    )


def decode(raw: str) -> Answer:
    """What `quota_exchange` returns."""
    told = json.loads(raw)
    return Answer(
        num_replicas=told["num_replicas"],
        is_new=told["is_new"],
        grants=tuple(Grant(*grant) for grant in told["grants"]),
        verdicts=tuple(told["verdicts"]),
    )


def _encode_ask(ask: Ask) -> dict[str, str | int]:
    fields = asdict(ask)
    names = ("node", "dimension", "model", "calendar", "window_start_ns")
    return {**dict(zip(names, fields.pop("key"), strict=True)), **fields}
