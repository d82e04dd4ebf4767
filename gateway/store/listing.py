"""Which records of a list are meant, and in which order: conditions and orders as values, and how they become SQL.

A page continues after the values of its last record, not after a position: whatever else changes between two pages, a
record that does not change is in exactly one of them. Knows no noun; each names its `Fields`. The text form (AIP-160,
AIP-132) is the admin service's.
"""

import math
from collections import abc
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, SQLColumnExpression, and_, any_, false, func, literal, not_, or_, true

from gateway.store.errors import InvalidValueError
from gateway.store.records import Key, Order, Page, SortValue

Query = TypeVar("Query", bound=Select[*tuple[Any, ...]])  # Any: whatever it selects
ESCAPE = "\\"
END_OF_TIME = datetime.max.replace(tzinfo=UTC)


class Kind(Enum):
    """What values a field has, and with that how they are written and compared."""

    TEXT = "text"
    NUMBER = "number"
    FLAG = "flag"
    TIME = "time"
    TEXTS = "texts"


@dataclass(frozen=True, slots=True)
class Field:
    """A field by which records are found. `value` reads it from a record; only those with one can be sorted by.

    A time that is unset sorts after every other.
    """

    column: SQLColumnExpression[Any]  # of whatever the kind says
    kind: Kind
    value: abc.Callable[[Any], SortValue] | None = None  # Any: of the noun's own record

    @property
    def sorted_column(self) -> SQLColumnExpression[Any]:  # Any: as `column`
        """Never null."""
        if self.kind is not Kind.TIME:
            return self.column
        return func.coalesce(self.column, END_OF_TIME)


Fields = abc.Mapping[str, Field]


@dataclass(frozen=True, slots=True)
class Comparison:
    """`operator` is one of = != < <= > >= and `:`, which means that a list has the value or, with `*`, "is set"."""

    path: str
    operator: str
    value: str


@dataclass(frozen=True, slots=True)
class Negation:
    condition: "Condition"


@dataclass(frozen=True, slots=True)
class Conjunction:
    conditions: tuple["Condition", ...]


@dataclass(frozen=True, slots=True)
class Alternative:
    conditions: tuple["Condition", ...]


Condition = Comparison | Negation | Conjunction | Alternative


def paged(query: Query, page: Page, fields: Fields, key: SQLColumnExpression[Any]) -> Query:  # Any: of any kind
    """`query`, cut down to the page. `key` is unique.

    Raises InvalidValueError, with the field `filter` or `order_by`.
    """
    if page.condition is not None:
        assert isinstance(page.condition, Comparison | Negation | Conjunction | Alternative)
        query = query.where(sql_condition(page.condition, fields))
    columns = [(_sortable(order, fields).sorted_column, order.descending) for order in page.order]
    # What is equal in all of them follows the last one's direction: the newest first is also the last made first.
    columns.append((key, page.order[-1].descending if page.order else False))
    if page.after is not None:
        query = query.where(_is_after(columns, (*page.after_values, page.after)))
    ordered = [column.desc() if is_descending else column.asc() for column, is_descending in columns]
    return query.order_by(*ordered).limit(page.size)


def sort_values(record: object, order: abc.Iterable[Order], fields: Fields) -> tuple[SortValue, ...]:
    """What a page that ends with `record` continues after, beside its key."""
    values = []
    for each in order:
        field = _sortable(each, fields)
        assert field.value is not None
        value = field.value(record)
        values.append(END_OF_TIME if value is None else value)
    return tuple(values)


def sql_condition(condition: Condition, fields: Fields) -> ColumnElement[bool]:
    """Never null: what is unset compares as false, so that NOT turns every false into true."""
    if isinstance(condition, Negation):
        return not_(sql_condition(condition.condition, fields))
    if isinstance(condition, Conjunction):
        return and_(true(), *(sql_condition(part, fields) for part in condition.conditions))
    if isinstance(condition, Alternative):
        return or_(false(), *(sql_condition(part, fields) for part in condition.conditions))
    field = fields.get(condition.path)
    if field is None:
        raise InvalidValueError("filter", f"there is no {condition.path!r}; there are {', '.join(fields)}")
    return func.coalesce(_comparison(condition, field), False)


def _comparison(condition: Comparison, field: Field) -> ColumnElement[bool]:
    if condition.operator == ":":
        return _has(condition, field)
    if field.kind is Kind.TEXTS:
        raise InvalidValueError("filter", f"{condition.path!r} is a list: write {condition.path}:VALUE")
    if field.kind is Kind.TEXT and condition.operator in ("=", "!=") and "*" in condition.value:
        matches = field.column.like(_pattern(condition.value), escape=ESCAPE)
        return matches if condition.operator == "=" else not_(matches)
    if field.kind is Kind.FLAG and condition.operator not in ("=", "!="):
        raise InvalidValueError("filter", f"{condition.path!r} is true or false and has no order")
    return field.column.op(condition.operator, is_comparison=True)(_parsed(condition, field.kind))


def _has(condition: Comparison, field: Field) -> ColumnElement[bool]:
    if condition.value == "*":
        return func.cardinality(field.column) > 0 if field.kind is Kind.TEXTS else field.column.is_not(None)
    if field.kind is not Kind.TEXTS:
        raise InvalidValueError("filter", f"{condition.path!r} is no list: `:` takes only * here, which means set")
    return literal(condition.value) == any_(field.column)


def _parsed(condition: Comparison, kind: Kind) -> SortValue:
    value = condition.value
    try:
        if kind is Kind.NUMBER:
            return _number(value)
        if kind is Kind.TIME:
            moment = datetime.fromisoformat(value)
            return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except ValueError as error:
        raise InvalidValueError("filter", f"{value!r} is no {kind.value}, which {condition.path!r} is") from error
    if kind is Kind.FLAG:
        if value not in ("true", "false"):
            raise InvalidValueError("filter", f"{condition.path!r} is true or false, not {value!r}")
        return value == "true"
    return value


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _pattern(text: str) -> str:
    """`a*` as LIKE spells it."""
    for special in (ESCAPE, "%", "_"):
        text = text.replace(special, ESCAPE + special)
    return text.replace("*", "%")


def _sortable(order: Order, fields: Fields) -> Field:
    field = fields.get(order.path)
    if field is None or field.value is None:
        known = ", ".join(name for name, field in fields.items() if field.value is not None)
        raise InvalidValueError("order_by", f"cannot be by {order.path!r}; it can be by {known}")
    return field


def _is_after(
    columns: abc.Sequence[tuple[SQLColumnExpression[Any], bool]], values: tuple[SortValue | Key, ...]
) -> ColumnElement[bool]:
    """Behind `values` in the order of the columns: the first one that differs decides."""
    cases = []
    for index, ((column, is_descending), value) in enumerate(zip(columns, values, strict=True)):
        equal = [column == value for (column, _), value in zip(columns[:index], values[:index], strict=True)]
        cases.append(and_(*equal, column < value if is_descending else column > value))
    return or_(*cases)
