"""The record of changes as values for its templates: what was asked for, who changed what, before and after. Pure."""

import json
from collections import abc
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.console.words import NOTHING, resource_name
from gateway.errors import FieldViolation, InvalidFieldError
from gateway.store.audit_chain import ChainCheck, ChainedEvent
from gateway.words import short_name

PAGE_SIZE = 50
MAX_SHOWN_CHANGES = 2
MAX_VALUE_CHARS = 400
MAX_SHORT_CHARS = 60

Parameters = abc.Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AuditQuestion:
    """What the list is narrowed to; empty: not by this. Days are in UTC, `before` is the first that does not count."""

    actor: str = ""
    action: str = ""
    resource: str = ""
    since: str = ""
    before: str = ""

    @property
    def filter(self) -> str:
        """As the Admin API takes it. A `*` at the end of a text stands for anything."""
        terms = [
            f"{field} = {_quoted(value)}"
            for field, value in (("actor", self.actor), ("action", self.action), ("resource", self.resource))
            if value
        ]
        terms += [
            f"event_time {operator} {_quoted(f'{day}T00:00:00Z')}"
            for operator, day in ((">=", self.since), ("<", self.before))
            if day
        ]
        return " AND ".join(terms)

    def address(self, **further: str) -> str:
        """The query of a link to the same list."""
        named = {"actor": self.actor, "action": self.action, "resource": self.resource}
        times = {"since": self.since, "before": self.before}
        return urlencode({name: value for name, value in {**named, **times, **further}.items() if value})


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that differs. A text is itself, an empty one `""`; what was not there is NOTHING."""

    setting: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One event. `changes` are all of them, `before` and `after` the settings as JSON, empty where there were none."""

    id: str
    at: datetime
    actor: str
    action: str
    resource: str
    resource_name: str
    revision: int
    request_id: str
    changes: tuple[Change, ...]
    hash: str
    previous_hash: str
    before: str
    after: str

    @property
    def shown(self) -> tuple[Change, ...]:
        """The first of them, shortened, for a list."""
        return tuple(
            Change(each.setting, _shortened(each.before, MAX_SHORT_CHARS), _shortened(each.after, MAX_SHORT_CHARS))
            for each in self.changes[:MAX_SHOWN_CHANGES]
        )

    @property
    def num_not_shown(self) -> int:
        return max(0, len(self.changes) - MAX_SHOWN_CHANGES)


@dataclass(frozen=True, slots=True)
class AuditPage:
    lines: tuple[AuditLine, ...]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class ChainState:
    """What a check of the whole record found. `broken_id`: the first event that does not follow; `words` say it all."""

    at: datetime
    num_events: int
    is_intact: bool
    words: str
    broken_id: int | None = None


def audit_question(sent: Parameters) -> AuditQuestion:
    """Raises InvalidFieldError, whose violations name the fields of the form."""
    texts = {name: sent.get(name, "").strip() for name in ("actor", "action", "resource", "since", "before")}
    problems = [
        FieldViolation(name, "must be a day such as 2026-11-30")
        for name in ("since", "before")
        if not _is_day(texts[name])
    ]
    if not problems and texts["since"] and texts["before"] and texts["since"] >= texts["before"]:
        problems.append(FieldViolation("before", "must be after the begin"))
    if problems:
        raise InvalidFieldError(*problems)
    # People write acme/search; a pattern or an action's noun is taken as it is.
    resource = texts.pop("resource")
    whole = resource_name(resource) if "/" in resource and "*" not in resource else resource
    return AuditQuestion(resource=whole, **texts)


def audit_page(response: pb.ListAuditEventsResponse) -> AuditPage:
    return AuditPage(tuple(map(audit_line, response.audit_events)), response.next_page_token)


def audit_line(event: pb.AuditEvent) -> AuditLine:
    before, after = _document(event.before), _document(event.after)
    return AuditLine(
        id=event.name.rpartition("/")[2],
        at=event.event_time.ToDatetime(UTC),
        actor=event.actor,
        action=event.action,
        resource=short_name(event.resource),
        resource_name=event.resource,
        revision=event.revision,
        request_id=event.request_id,
        changes=tuple(changes(before, after)),
        hash=event.hash.hex(),
        previous_hash=event.previous_hash.hex(),
        before=_pretty(before) if event.before else "",
        after=_pretty(after) if event.after else "",
    )


def changes(
    before: abc.Mapping[str, object], after: abc.Mapping[str, object], parent: str = ""
) -> abc.Iterator[Change]:
    """Each setting that differs, with the names above it: `limits`, `unix:/e.sock mode`."""
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        path = f"{parent} {name}".strip()
        if isinstance(old, dict) or isinstance(new, dict):
            yield from changes(_mapping(old), _mapping(new), path)
        elif (name in before and old) or (name in after and new) or (name in before and name in after):
            yield Change(path, _text(old), _text(new))


def chain_state(check: ChainCheck, head: bytes, revision: int, at: datetime) -> ChainState:
    """The verdict on a record that was read to its end, of which `head` and `revision` are the newest's."""
    if check.broken is not None:
        words = (
            f"Event {check.broken.event_id} was changed, or does not follow from the one before it"
            f" (it is number {check.broken.position})."
        )
        return ChainState(at, check.num_events, is_intact=False, words=words, broken_id=check.broken.event_id)
    if (check.head, check.last_revision) != (head, revision):
        return ChainState(at, check.num_events, is_intact=False, words="Events are missing at the end.")
    words = "Every event is as it was written, and none is missing."
    return ChainState(at, check.num_events, is_intact=True, words=words)


def chained(event: pb.AuditEvent) -> ChainedEvent:
    """The event as its hash covers it."""
    return ChainedEvent(
        id=int(event.name.rpartition("/")[2]),
        content={
            "event_time": event.event_time.ToDatetime(UTC),
            "revision": event.revision,
            "actor": event.actor,
            "correlation_id": event.request_id,
            "action": event.action,
            "resource": event.resource,
            "before": json.loads(event.before) if event.before else None,
            "after": json.loads(event.after) if event.after else None,
        },
        previous_hash=event.previous_hash,
        hash=event.hash,
    )


def _is_day(text: str) -> bool:
    try:
        return not text or datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC) < datetime.max.replace(tzinfo=UTC)
    except ValueError:
        return False


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _document(text: str) -> dict[str, object]:
    found = json.loads(text) if text else {}
    return found if isinstance(found, dict) else {"": found}


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    if value is None:
        return NOTHING
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return _shortened(text, MAX_VALUE_CHARS)


def _shortened(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def _pretty(document: abc.Mapping[str, object]) -> str:
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False)
