"""The file that an audit export is: a JSON object per event and line, in the order of the chain, and one for its end.

Hashes are written in hexadecimal, times in UTC to the microsecond. What is hashed is `gateway.store.audit_chain`'s.
"""

import json
from collections import abc
from datetime import UTC, datetime
from pathlib import Path

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.store.audit_chain import ChainedEvent, EventContent, canonical

HEAD = "head"


class AuditFileError(Exception):
    """A line is none of an export's. The message has its number."""


def to_line(event: ChainedEvent) -> str:
    """The event as a line, its end included."""
    document = {"id": event.id, **json.loads(canonical(event.content))}
    document |= {"previous_hash": event.previous_hash.hex(), "hash": event.hash.hex()}
    return json.dumps(document, ensure_ascii=False) + "\n"


def head_line(head: bytes, num_events: int) -> str:
    """The last line."""
    return json.dumps({HEAD: head.hex(), "num_events": num_events}) + "\n"


def read_events(path: Path) -> abc.Iterator[ChainedEvent | bytes]:
    """The events of the file, and the hash of its last line wherever that is. Raises AuditFileError, OSError."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                document = json.loads(line.decode(), parse_constant=_refuse_constant)
                yield bytes.fromhex(document[HEAD]) if HEAD in document else _event(document)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                raise AuditFileError(f"{path}:{number}: is no line of an audit export") from error


def event_from_pb(message: pb.AuditEvent) -> ChainedEvent:
    """The event as the server sent it; an id that is none is 0, which no chain has."""
    content: EventContent = {
        "event_time": message.event_time.ToDatetime(tzinfo=UTC),
        "revision": message.revision,
        "actor": message.actor,
        "correlation_id": message.request_id,
        "action": message.action,
        "resource": message.resource,
        "before": json.loads(message.before) if message.before else None,
        "after": json.loads(message.after) if message.after else None,
    }
    digits = message.name.removeprefix("auditEvents/")
    return ChainedEvent(int(digits) if digits.isdecimal() else 0, content, message.previous_hash, message.hash)


def _event(document: abc.Mapping[str, object]) -> ChainedEvent:
    content: EventContent = {
        "event_time": datetime.fromisoformat(_text(document, "event_time")).astimezone(UTC),
        "revision": _number(document, "revision"),
        "actor": _text(document, "actor"),
        "correlation_id": _text(document, "correlation_id"),
        "action": _text(document, "action"),
        "resource": _text(document, "resource"),
        "before": _settings(document, "before"),
        "after": _settings(document, "after"),
    }
    hashes = (bytes.fromhex(_text(document, name)) for name in ("previous_hash", "hash"))
    return ChainedEvent(_number(document, "id"), content, *hashes)


def _refuse_constant(name: str) -> None:
    """NaN and the infinities are not JSON, and nothing that is hashed holds one."""
    raise ValueError(name)


def _text(document: abc.Mapping[str, object], name: str) -> str:
    value = document[name]
    if not isinstance(value, str):
        raise TypeError(name)
    return value


def _number(document: abc.Mapping[str, object], name: str) -> int:
    value = document[name]
    if not isinstance(value, int):
        raise TypeError(name)
    return value


def _settings(document: abc.Mapping[str, object], name: str) -> abc.Mapping[str, object] | None:
    value = document[name]
    if value is not None and not isinstance(value, dict):
        raise TypeError(name)
    return value
