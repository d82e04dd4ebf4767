"""The record of changes as a page shows it."""

import json
from datetime import UTC, datetime

import pytest

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.filters import parse_filter
from gateway.console.audit import Change, audit_line, audit_question, chain_state, chained, changes
from gateway.errors import InvalidFieldError
from gateway.store.audit_chain import FIRST_HASH, ChainCheck, chain_hash
from gateway.store.listing import Comparison, Conjunction

AT = datetime(2026, 11, 30, 10, tzinfo=UTC)


def event(number: int, previous_hash: bytes, before=None, after=None) -> pb.AuditEvent:
    """An event that follows the one with `previous_hash`."""
    made = pb.AuditEvent(
        name=f"auditEvents/{number}",
        actor="apiKeys/ada",
        action="teams.update",
        resource="organizations/acme/teams/search",
        before="" if before is None else json.dumps(before),
        after="" if after is None else json.dumps(after),
        revision=number,
        previous_hash=previous_hash,
    )
    made.event_time.FromDatetime(AT)
    made.hash = chain_hash(previous_hash, chained(made).content)
    return made


def test_what_somebody_searches_for_is_one_condition_whatever_they_write():
    asked = audit_question({"actor": 'a" OR actor = "b\\', "resource": "acme/search", "since": "2026-11-01"})

    assert parse_filter(asked.filter) == Conjunction(
        (
            Comparison("actor", "=", 'a" OR actor = "b\\'),
            Comparison("resource", "=", "organizations/acme/teams/search"),
            Comparison("event_time", ">=", "2026-11-01T00:00:00Z"),
        )
    )


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({"since": "yesterday"}, "since"),
        ({"before": "2026-13-01"}, "before"),
        ({"since": "2026-11-02", "before": "2026-11-02"}, "before"),
    ],
)
def test_a_day_that_is_none_is_told(sent, field):
    with pytest.raises(InvalidFieldError) as refused:
        audit_question(sent)

    assert [violation.field for violation in refused.value.field_violations] == [field]


def test_settings_that_differ_are_told_with_the_names_above_them():
    before = {"weight": 1.0, "note": "", "mode": {"strict": False, "same": 1}}
    after = {"weight": 2.0, "note": "hello", "mode": {"strict": True, "same": 1}, "unset": None}

    assert list(changes(before, after)) == [
        Change("weight", "1.0", "2.0"),
        Change("note", '""', "hello"),
        Change("mode strict", "false", "true"),
    ]


def test_of_what_was_made_only_what_it_has_is_told():
    line = audit_line(event(1, FIRST_HASH, after={"state": "ACTIVE", "display_name": "", "cidrs": []}))

    assert line.changes == (Change("state", "–", "ACTIVE"),)
    assert (line.before, line.resource) == ("", "acme/search")


def checked(*events: pb.AuditEvent) -> ChainCheck:
    check = ChainCheck()
    for each in events:
        check.add(chained(each))
    return check


def test_a_whole_chain_is_intact_and_one_with_a_changed_event_is_not():
    first = event(1, FIRST_HASH, after={"weight": 1})
    second = event(2, first.hash, {"weight": 1}, {"weight": 2})
    whole = chain_state(checked(first, second), second.hash, 2, AT)
    cut_off = chain_state(checked(first), second.hash, 2, AT)
    second.after = json.dumps({"weight": 3})
    changed = chain_state(checked(first, second), second.hash, 2, AT)

    assert (whole.is_intact, whole.num_events) == (True, 2)
    assert (cut_off.is_intact, cut_off.broken_id) == (False, None)
    assert (changed.is_intact, changed.broken_id) == (False, 2)
