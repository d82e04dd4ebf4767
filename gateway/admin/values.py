"""Field values that several resources share, checked on the way in and built on the way out.

Each parser gets the path of its field, so that a refusal names it as the request spells it.
"""

from collections import abc
from datetime import UTC, datetime
from uuid import UUID

from google.protobuf.timestamp_pb2 import Timestamp

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.names import invalid
from gateway.store.enums import State
from gateway.store.records import Organization, Team

MAX_DISPLAY_NAME_CHARS = 200
MAX_REASON_CHARS = 500

STATE_BY_PB = {pb.STATE_ACTIVE: State.ACTIVE, pb.STATE_SUSPENDED: State.SUSPENDED}
PB_BY_STATE = {state: value for value, state in STATE_BY_PB.items()}


def parse_display_name(text: str, field: str) -> str:
    """Any text of one line. Raises InvalidFieldError, as do the others."""
    if len(text) > MAX_DISPLAY_NAME_CHARS:
        raise invalid(field, f"must be at most {MAX_DISPLAY_NAME_CHARS} characters")
    if not text.isprintable():
        raise invalid(field, "must not hold line breaks or other control characters")
    return text


def parse_reason(text: str, field: str) -> str:
    """Why something was done, in one line; or nothing."""
    if len(text) > MAX_REASON_CHARS or not text.isprintable():
        raise invalid(field, f"must be at most {MAX_REASON_CHARS} characters in one line")
    return text


def parse_uuid(text: str, field: str) -> str:
    """The id in its usual spelling."""
    try:
        return str(UUID(text))
    except ValueError:
        raise invalid(field, "must be a UUID") from None


def parse_state(value: pb.State.ValueType, field: str) -> State:
    """Unset is refused: leaving it out must not wake a suspended tenant."""
    if value not in STATE_BY_PB:
        raise invalid(field, "must be STATE_ACTIVE or STATE_SUSPENDED")
    return STATE_BY_PB[value]


def state_to_pb(record: Organization | Team) -> pb.State.ValueType:
    """A deleted one is DELETED, whatever it was before."""
    return pb.STATE_DELETED if record.deleted_at is not None else PB_BY_STATE[record.settings.state]


def require_distinct(values: abc.Iterable[str], field: str) -> tuple[str, ...]:
    """`values`, none of which occurs twice."""
    seen: dict[str, None] = {}
    for index, value in enumerate(values):
        if value in seen:
            raise invalid(f"{field}[{index}]", f"{value!r} is listed twice")
        seen[value] = None
    return tuple(seen)


def timestamp(moment: datetime | None) -> Timestamp | None:
    """None stays unset."""
    if moment is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp


def parse_time(stamp: Timestamp, field: str) -> datetime:
    """In UTC."""
    try:
        return stamp.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise invalid(field, "is no moment between the years 1 and 9999") from error
