"""A policy file: classes, organizations, teams and their quotas as YAML, read into entries of ApplyPolicies.

What a file leaves out stays as it is; a list that it names is the whole list. Anything that it should not hold is an
error that names the file, the line and the path, before the server is asked.

    priority_classes:
      batch: {rank: 200, min_share: 0.05, max_queue_wait: 10m}
    organizations:
      acme:
        quota: {weight: 2, limits: [total_tokens=100000/1m]}
        teams:
          search: {classes: [batch], quota: {limits: [requests=60/1m, concurrency=4]}}
"""

import re
from collections import abc
from dataclasses import dataclass
from pathlib import Path

import grpc
import yaml
from google.protobuf.field_mask_pb2 import FieldMask

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.errors import CliError, UsageError, read_refusal
from gateway.cli.policy_fields import CLASS_FIELDS, ORGANIZATION_FIELDS, QUOTA_FIELDS, TEAM_FIELDS, fill
from gateway.cli.policy_place import Place
from gateway.cli.references import class_name

Places = dict[str, Place]
"""Where each field of an entry stands, by its path in the API; the entry itself under the empty path."""

ENTRY_FIELD = re.compile(r"entries\[(\d+)\]\.(?:(?:priority_class|organization|team|quota_policy)\.)?(.*)")
LAST_STEP = re.compile(r"(.*?)(\.?[^.\[]+|\[\d+\])")


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A file, read: its entries, in the order in which they depend on each other, and the places of each."""

    entries: list[pb.PolicyEntry]
    places: list[Places]

    def explain(self, error: grpc.RpcError) -> CliError | None:
        """What the server refuses, at its place in the file; None where it is about nothing in the file."""
        refusal = read_refusal(error)
        told = [text for violation in refusal.violations if (text := self._violation_text(*violation))]
        if told:
            return CliError(told[0], hint="\n  ".join(told[1:]))
        place = self._place_of(refusal.resource) if refusal.resource else None
        return None if place is None else CliError(f"{place}: {refusal}")

    def _violation_text(self, field: str, description: str) -> str:
        match = ENTRY_FIELD.fullmatch(field)
        if match is None:
            return ""
        places, path, rest = self.places[int(match[1])], match[2], ""
        while path and path not in places:
            step = LAST_STEP.fullmatch(path)
            path, rest = (step[1], step[2] + rest) if step else ("", path + rest)
        return ": ".join(filter(None, (str(places[path]), rest.lstrip("."), description)))

    def _place_of(self, resource: str) -> Place | None:
        """Of the entry that `resource` is, or else of the first one below it."""
        names = [getattr(entry, entry.WhichOneof("resource") or "").name for entry in self.entries]
        exact = [places[""] for name, places in zip(names, self.places, strict=True) if name == resource]
        below = [places[""] for name, places in zip(names, self.places, strict=True) if name.startswith(resource + "/")]
        return next(iter(exact + below), None)

    def add(self, entry: pb.PolicyEntry, place: Place, fields: abc.Mapping[str, Place]) -> None:
        """`entry`, which says what `fields` of it should be, comes next.

        An entry without fields has an empty mask, which means all fields that are set in its message: none.
        """
        entry.update_mask.CopyFrom(FieldMask(paths=fields))
        self.entries.append(entry)
        inner = {field + path: below for field, value in fields.items() for path, below in value.below()}
        self.places.append({"": place, **fields, **inner})


def read_policy_file(file: Path) -> PolicyFile:
    """Raises UsageError for whatever does not belong in the file."""
    found = PolicyFile([], [])
    root = _compose(file)
    if root is None:
        return found
    readers = {"priority_classes": _read_class, "organizations": _read_organization}
    sections = dict(Place(file, "", root).items())
    for name, place in sections.items():
        if name not in readers:
            raise place.refuse(f"unknown; there are {', '.join(readers)}")
    for name, read in readers.items():
        for item, place in sections[name].items() if name in sections else ():
            read(found, item, place)
    return found


def _compose(file: Path) -> yaml.Node | None:
    try:
        with file.open(encoding="utf-8") as text:
            return yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is no YAML: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise UsageError(f"{file} is no policy file: it is nested too deeply") from None


def _read_class(found: PolicyFile, name: str, place: Place) -> None:
    message = pb.PriorityClass(name=class_name(name))
    fields = fill(message, place, CLASS_FIELDS)
    found.add(pb.PolicyEntry(priority_class=message), place, fields)


def _read_organization(found: PolicyFile, name: str, place: Place) -> None:
    message = pb.Organization(name=f"organizations/{name}")
    fields = fill(message, place, ORGANIZATION_FIELDS, skipped=("quota", "teams"))
    found.add(pb.PolicyEntry(organization=message), place, fields)
    _read_quota(found, message.name, place)
    for team, below in _section(place, "teams"):
        _read_team(found, f"{message.name}/teams/{team}", below)


def _read_team(found: PolicyFile, name: str, place: Place) -> None:
    message = pb.Team(name=name)
    fields = fill(message, place, TEAM_FIELDS, skipped=("quota", "keys"))
    found.add(pb.PolicyEntry(team=message), place, fields)
    _read_quota(found, name, place)
    for key, below in _section(place, "keys"):
        fill(message, below, {}, skipped=("quota",))
        _read_quota(found, f"{name}/apiKeys/{key}", below)


def _read_quota(found: PolicyFile, node: str, place: Place) -> None:
    for member, below in place.items():
        if member == "quota":
            message = pb.QuotaPolicy(name=f"{node}/quotaPolicies/default")
            fields = fill(message, below, QUOTA_FIELDS)
            found.add(pb.PolicyEntry(quota_policy=message), below, fields)


def _section(place: Place, name: str) -> list[tuple[str, Place]]:
    return [pair for member, below in place.items() if member == name for pair in below.items()]
