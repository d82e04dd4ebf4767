"""Sums of the ledger by tenant, model, class and time, read from the hourly roll-ups.

A generation counts in the hour in which it began, which is in its id; so the days of a report are the days of the
ledger's partitions. Times are UTC.
"""

from collections import abc
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from uuid import UUID

from sqlalchemy import RowMapping, TextClause, text

from gateway.store.db import Database
from gateway.store.paths import ids_at
from gateway.store.records import ResourcePath


class UsageDimension(StrEnum):
    """What a report is broken down by. The values are the roll-ups' columns."""

    ORGANIZATION = "organization_id"
    TEAM = "team_id"
    API_KEY = "key_id"
    MODEL = "model"
    PRIORITY_CLASS = "priority_class"


class UsageInterval(StrEnum):
    """How long the time of one row is. The values are the words of `date_trunc`."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """What began from `begin` to before `end`, whole hours, below `parent`; one row for all of it where no `interval`.

    At most `size` rows, in the order of their keys, after the row whose keys are `after`.
    """

    parent: ResourcePath
    begin: datetime
    end: datetime
    dimensions: frozenset[UsageDimension]
    interval: UsageInterval | None
    size: int
    after: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class UsageSums:
    """What the generations of one row used together; the words are those of UsageEvent."""

    num_requests: int
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    billed_tokens: int
    discarded_tokens: int
    recomputed_tokens: int
    num_preemptions: int
    queue_ns: int
    prefill_ns: int
    decode_ns: int
    preempted_ns: int


@dataclass(frozen=True, slots=True)
class UsageRow:
    """`keys` tell the row from all others of its query. What it was not broken down by is None.

    Tenants are resource names; one that is gone has only its id left.
    """

    start: datetime | None
    organization: str | None
    team: str | None
    api_key: str | None
    model: str | None
    priority_class: str | None
    sums: UsageSums
    keys: tuple[str, ...]


_START = "start"
_TYPES = {
    _START: "timestamptz",
    UsageDimension.ORGANIZATION: "uuid",
    UsageDimension.TEAM: "uuid",
    UsageDimension.API_KEY: "uuid",
    UsageDimension.MODEL: "text",
    UsageDimension.PRIORITY_CLASS: "text",
}
# Whose id the names of the first are looked up by.
_NAMES = {
    UsageDimension.ORGANIZATION: ("organization", "slug"),
    UsageDimension.TEAM: ("team", "slug"),
    UsageDimension.API_KEY: ("api_key", "public_id"),
}
_SUMS = tuple(field.name for field in fields(UsageSums))


async def query_usage(database: Database, query: UsageQuery) -> list[UsageRow]:
    """The rows. Raises NotFoundError for a parent that does not exist, DatabaseUnavailableError."""
    keys = _keys(query)
    async with database.session() as session:
        ids = (None, None, None) if query.parent.organization is None else await ids_at(session, query.parent)
        below = {dimension: node_id for dimension, node_id in zip(_NAMES, ids, strict=True) if node_id is not None}
        parameters = {
            "begin": query.begin,
            "end": query.end,
            "size": query.size,
            "interval": query.interval,
            **{f"below_{dimension}": node_id for dimension, node_id in below.items()},
            **{f"after_{key}": value for key, value in zip(keys, query.after or (), strict=False)},
        }
        rows = await session.execute(_statement(keys, below, is_continued=bool(query.after)), parameters)
        return [_row(row, keys) for row in rows.mappings()]


def _keys(query: UsageQuery) -> tuple[str, ...]:
    """The columns that rows are told apart by: with a team its organization, so that its name can be told."""
    wanted = set(query.dimensions)
    if UsageDimension.API_KEY in wanted:
        wanted.add(UsageDimension.TEAM)
    if UsageDimension.TEAM in wanted:
        wanted.add(UsageDimension.ORGANIZATION)
    return (*((_START,) if query.interval else ()), *(dimension for dimension in UsageDimension if dimension in wanted))


def _statement(keys: tuple[str, ...], below: abc.Mapping[UsageDimension, UUID], *, is_continued: bool) -> TextClause:
    named = [dimension for dimension in _NAMES if dimension in keys]
    start = f"date_trunc(CAST(:interval AS text), hour, 'UTC') AS {_START}"
    grouped = ", ".join(start if key == _START else key for key in keys)
    sums = ", ".join(f"CAST(sum({name}) AS bigint) AS {name}" for name in _SUMS)
    narrowed = "".join(f" AND {dimension} = :below_{dimension}" for dimension in below)
    # Without keys there is one row, but none where there is nothing to sum up.
    having = f"GROUP BY {', '.join(map(str, range(1, len(keys) + 1)))}" if keys else "HAVING count(*) > 0"
    names = "".join(f", {table}.{column} AS {table}_name" for table, column in map(_NAMES.__getitem__, named))
    joins = "".join(
        f" LEFT JOIN {_NAMES[dimension][0]} ON {_NAMES[dimension][0]}.id = {dimension}" for dimension in named
    )
    order = ", ".join(f"grouped.{key}" for key in keys)
    last = ", ".join(f"CAST(CAST(:after_{key} AS text) AS {_TYPES[key]})" for key in keys)
    return text(
        f"SELECT grouped.*{names} FROM (SELECT {', '.join(filter(None, (grouped, sums)))} FROM usage_rollup_hour"  # noqa: S608 - names of columns only
        f" WHERE hour >= :begin AND hour < :end{narrowed} {having}) AS grouped{joins}"
        + (f" WHERE ({order}) > ({last})" if is_continued else "")
        + (f" ORDER BY {order}" if keys else "")
        + " LIMIT :size"
    )


def _row(row: RowMapping, keys: tuple[str, ...]) -> UsageRow:
    path = ResourcePath(row.get("organization_name"), row.get("team_name"), row.get("api_key_name"))
    names = {
        dimension: path_name if None not in segments else str(row[dimension])
        for dimension, path_name, segments in (
            (UsageDimension.ORGANIZATION, ResourcePath(path.organization).name, (path.organization,)),
            (UsageDimension.TEAM, ResourcePath(path.organization, path.team).name, (path.organization, path.team)),
            (UsageDimension.API_KEY, path.name, (path.organization, path.team, path.api_key)),
        )
        if dimension in keys
    }
    start = row.get(_START)
    return UsageRow(
        start=None if start is None else start.astimezone(UTC),
        organization=names.get(UsageDimension.ORGANIZATION),
        team=names.get(UsageDimension.TEAM),
        api_key=names.get(UsageDimension.API_KEY),
        model=row.get(UsageDimension.MODEL),
        priority_class=row.get(UsageDimension.PRIORITY_CLASS),
        sums=UsageSums(**{name: row[name] for name in _SUMS}),
        keys=tuple(str(row[key]) for key in keys),
    )
