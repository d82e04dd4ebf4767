"""Refusals by limit: how often each limit refused requests, or would have, from the denial events. Times are UTC.

A request that several limits refused counts at each of them. Names of nodes are those that they had then.
"""

from collections import abc
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import RowMapping, TextClause, text

from gateway.store.db import Database
from gateway.store.paths import ids_at
from gateway.store.records import ResourcePath
from gateway.store.usage_report import UsageInterval

_BELOW = ("organization_id", "team_id", "key_id")
_KEYS = ("node", "dimension", "is_shadow")
_START = "start"
_TYPES = {_START: "timestamptz", "num_requests": "bigint", "node": "text", "dimension": "text", "is_shadow": "boolean"}


@dataclass(frozen=True, slots=True)
class DenialQuery:
    """Requests of `parent` that were refused from `begin` to before `end`; one row per limit where no `interval`.

    At most `size` rows: of each time those first that refused most, after the row whose keys are `after`.
    """

    parent: ResourcePath
    begin: datetime
    end: datetime
    interval: UsageInterval | None
    size: int
    after: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class DenialRow:
    """One limit in one time. `longest_wait_ms` is the longest that is known; None: of no request is it.

    `dimension` is in lower case. `keys` tell the row from all others of its query.
    """

    start: datetime | None
    node: str
    dimension: str
    is_shadow: bool
    num_requests: int
    num_teams: int
    input_tokens: int
    reserved_tokens: int
    last_at: datetime
    longest_wait_ms: int | None
    keys: tuple[str, ...]


async def query_denials(database: Database, query: DenialQuery) -> list[DenialRow]:
    """The rows. Raises NotFoundError for a parent that does not exist, DatabaseUnavailableError."""
    async with database.session() as session:
        ids = () if query.parent.organization is None else await ids_at(session, query.parent)
        below = {column: node_id for column, node_id in zip(_BELOW, ids, strict=False) if node_id is not None}
        columns = _columns(query)
        parameters = {
            "begin": query.begin,
            "end": query.end,
            "size": query.size,
            "interval": query.interval,
            **below,
            **{f"after_{column}": value for column, value in zip(columns, query.after or (), strict=False)},
        }
        rows = await session.execute(_statement(columns, below, is_continued=bool(query.after)), parameters)
        return [_row(row, columns) for row in rows.mappings()]


def _columns(query: DenialQuery) -> tuple[str, ...]:
    """What rows are sorted by; the number of requests descends."""
    return (*((_START,) if query.interval else ()), "num_requests", *_KEYS)


def _statement(columns: tuple[str, ...], below: abc.Iterable[str], *, is_continued: bool) -> TextClause:
    start = f"date_trunc(CAST(:interval AS text), denied_at, 'UTC') AS {_START}, " if _START in columns else ""
    grouped = ", ".join(each for each in columns if each != "num_requests")
    narrowed = "".join(f" AND {column} = :{column}" for column in below)
    # Descending numbers are ascending negative ones, so that one comparison of rows finds what comes next.
    order = ", ".join("-num_requests" if column == "num_requests" else column for column in columns)
    last = ", ".join(
        f"{'-' * (column == 'num_requests')}CAST(CAST(:after_{column} AS text) AS {_TYPES[column]})"
        for column in columns
    )
    return text(
        f"SELECT * FROM (SELECT {start}node, lower(dimension) AS dimension, is_shadow, count(*) AS num_requests,"  # noqa: S608 - names of columns only
        " count(DISTINCT team_id) AS num_teams, CAST(sum(input_tokens) AS bigint) AS input_tokens,"
        " CAST(sum(reserved_tokens) AS bigint) AS reserved_tokens, max(denied_at) AS last_at,"
        " nullif(max(wait_ms), -1) AS longest_wait_ms"
        " FROM denial_event, unnest(nodes, dimensions, waits_ms) AS violated(node, dimension, wait_ms)"
        f" WHERE denied_at >= :begin AND denied_at < :end{narrowed}"
        f" GROUP BY {grouped}) AS grouped"
        + (f" WHERE ({order}) > ({last})" if is_continued else "")
        + f" ORDER BY {order} LIMIT :size"
    )


def _row(row: RowMapping, columns: tuple[str, ...]) -> DenialRow:
    start = row.get(_START)
    return DenialRow(
        start=None if start is None else start.astimezone(UTC),
        node=row["node"],
        dimension=row["dimension"],
        is_shadow=row["is_shadow"],
        num_requests=row["num_requests"],
        num_teams=row["num_teams"],
        input_tokens=row["input_tokens"],
        reserved_tokens=row["reserved_tokens"],
        last_at=row["last_at"].astimezone(UTC),
        longest_wait_ms=row["longest_wait_ms"],
        keys=tuple(str(row[column]) for column in columns),
    )
