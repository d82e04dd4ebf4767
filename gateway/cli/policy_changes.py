"""How what a file of policies changes reads: a line for each change, what a list loses, and how much is new."""

import json
from collections import abc

from rich.text import Text

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.differences import removed_texts, value_text
from gateway.words import short_name

KINDS = {"organizations": "organization", "teams": "team", "priorityClasses": "class", "quotaPolicies": "quota"}
PLURALS = {"organization": "organizations", "team": "teams", "class": "classes", "quota": "quotas"}


def difference_lines(change: pb.PolicyChange) -> list[Text]:
    """`+` of what is new, `~` of what differs: `limits: + requests=60/1m`."""
    sign, style = ("+", "green") if change.created else ("~", "yellow")
    lines = [Text(f"{sign} {name_text(change.name)}", style=style)]
    for field in change.fields:
        before, after = _value(field.before), _value(field.after)
        if change.created:
            if after not in (None, "", [], {}):
                lines.append(Text(f"    {field.path}: {value_text(after)}"))
            continue
        lines.append(Text(f"    {field.path}: {value_text(before)} → {value_text(after)}"))
        lines += [Text(f"    removes {text}", style="red") for text in removed_texts(before, after)]
    return lines


def removal_lines(changes: abc.Iterable[pb.PolicyChange]) -> list[str]:
    """`quota of acme/search: removes concurrency=8` for everything that a list of the file leaves out."""
    return [
        f"{name_text(change.name)}: removes {text}"
        for change in changes
        for field in change.fields
        for text in removed_texts(_value(field.before), _value(field.after))
    ]


def summary(changes: abc.Sequence[pb.PolicyChange]) -> str:
    """`5 changes; creates 1 organization (acme) and 2 teams (acme/search, acme/ads)`."""
    text = f"{len(changes)} change" + ("s" if len(changes) != 1 else "")
    names: dict[str, list[str]] = {}
    for change in changes:
        if change.created:
            names.setdefault(kind_of(change.name), []).append(short_name(change.name.partition("/quotaPolicies/")[0]))
    if not names:
        return f"{text}; creates nothing"
    counts = [_count_text(kind, found) for kind, found in names.items()]
    return f"{text}; creates {', '.join(counts)}"


def created_tenants(changes: abc.Iterable[pb.PolicyChange]) -> list[str]:
    """`organization acme`, `team acme/search`: those that did not exist."""
    kinds = ("organization", "team")
    return [name_text(change.name) for change in changes if change.created and kind_of(change.name) in kinds]


def kind_of(name: str) -> str:
    """`team` of a team's name."""
    return KINDS[name.split("/")[-2]]


def name_text(name: str) -> str:
    """`team acme/search`, `quota of acme/search`."""
    node, separator, _ = name.partition("/quotaPolicies/")
    return f"quota of {short_name(node)}" if separator else f"{kind_of(name)} {short_name(name)}"


def _count_text(kind: str, names: list[str]) -> str:
    return f"{len(names)} {PLURALS[kind] if len(names) > 1 else kind} ({', '.join(names)})"


def _value(text: str) -> object:
    """None where there was nothing."""
    value: object = json.loads(text) if text else None
    return value
