"""The page for authors of policies names what there is."""

import re
from dataclasses import fields
from pathlib import Path

from engine.core.policy import Concession, LeaveReason, SchedulingPolicy, Service, Terms

PAGE = (Path(__file__).parents[2] / "docs/policies.md").read_text()


def test_every_term_has_its_row():
    table = PAGE.partition("| field of `Terms` | default | |")[2].partition("\n\n")[0]

    assert re.findall(r"^\| `(\w+)` ", table, re.MULTILINE) == [field.name for field in fields(Terms)]


def test_every_concession_has_its_row():
    table = PAGE.partition("| `Concession` | the resident gives up |")[2].partition("\n\n")[0]

    assert re.findall(r"^\| ([A-Z]+) ", table, re.MULTILINE) == [concession.name for concession in Concession]


def test_every_method_reason_and_kind_of_service_is_named():
    methods = [name for name in vars(SchedulingPolicy) if not name.startswith("_")]

    assert len(methods) <= 10 + 1  # restore beside snapshot
    for name in [*methods, *Service._fields]:
        assert re.search(rf"`{name}\b", PAGE), name
    for reason in LeaveReason:
        assert f"{reason.name}: " in PAGE
