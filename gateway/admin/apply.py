"""ApplyPolicies: entries to what the store is to make true, and what became of them as a difference people can read."""

import json
from collections import abc
from contextlib import contextmanager

from google.protobuf.field_mask_pb2 import FieldMask

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin import organizations, priority_classes, quota_values, teams
from gateway.admin.backend import Backend, refusal
from gateway.admin.masks import changed_fields
from gateway.admin.names import invalid, parse_organization, parse_priority_class, parse_quota_policy, parse_team
from gateway.errors import FieldViolation, InvalidFieldError
from gateway.store.audit_chain import Document
from gateway.store.changes import Change
from gateway.store.errors import StoreError
from gateway.store.policy_set import (
    Applied,
    Difference,
    Wanted,
    WantedClass,
    WantedError,
    WantedOrganization,
    WantedPolicy,
    WantedTeam,
    apply_wanted,
)
from gateway.store.records import Edit, Settings


class Policies:
    """The method of AdminService that makes many changes in one."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def apply(self, request: pb.ApplyPoliciesRequest) -> pb.ApplyPoliciesResponse:
        wanted = parse_entries(request.entries)
        change = self._backend.change(
            request, request.request_id, validate_only=request.validate_only, etag=request.etag
        )
        applied = await apply_entries(self._backend, change, wanted)
        if not request.validate_only:
            await self._backend.catch_up()
        return pb.ApplyPoliciesResponse(changes=map(_change_to_pb, applied.differences), etag=applied.etag)


def parse_entries(entries: abc.Sequence[pb.PolicyEntry]) -> list[Wanted]:
    """What the entries ask for. Raises InvalidFieldError, which names the entry, as do values that are parsed later."""
    wanted: list[Wanted] = []
    for index, entry in enumerate(entries):
        try:
            wanted.append(_parse(index, entry))
        except InvalidFieldError as error:
            raise _at(index, error) from error
    return wanted


async def apply_entries(backend: Backend, change: Change, wanted: abc.Sequence[Wanted]) -> Applied:
    """All of it is true, or an error names the entry that is refused. Raises GatewayError."""
    with as_entry_error():
        return await apply_wanted(backend.database, change, wanted)


@contextmanager
def as_entry_error() -> abc.Iterator[None]:
    """What the store refuses about an entry becomes what the caller is told."""
    try:
        yield
    except StoreError as error:
        raise refusal(error, "") from error
    except WantedError as error:
        cause = refusal(error.reason, "")
        raise (_at(error.index, cause) if isinstance(cause, InvalidFieldError) else cause) from error


def _parse(index: int, entry: pb.PolicyEntry) -> Wanted:
    mask = entry.update_mask
    match entry.WhichOneof("resource"):
        case "priority_class":
            return _parse_class(index, entry.priority_class, mask)
        case "organization":
            return _parse_organization(index, entry.organization, mask)
        case "team":
            return _parse_team(index, entry.team, mask)
        case "quota_policy":
            return _parse_policy(index, entry.quota_policy, mask)
        case _:
            raise invalid("resource", "must be set")


def _parse_class(index: int, message: pb.PriorityClass, mask: FieldMask) -> WantedClass:
    name = parse_priority_class(message.name, f"{priority_classes.FIELD}.name")
    fields = changed_fields(mask, message, priority_classes.FIELD, priority_classes.WRITABLE)
    return WantedClass(name, _at_entry(index, lambda current: priority_classes.edited_class(current, message, fields)))


def _parse_organization(index: int, message: pb.Organization, mask: FieldMask) -> WantedOrganization:
    path = parse_organization(message.name, f"{organizations.FIELD}.name")
    fields = changed_fields(mask, message, organizations.FIELD, organizations.WRITABLE)
    return WantedOrganization(
        path, _at_entry(index, lambda current: organizations.edited_organization(current, message, fields))
    )


def _parse_team(index: int, message: pb.Team, mask: FieldMask) -> WantedTeam:
    path = parse_team(message.name, f"{teams.FIELD}.name")
    fields = changed_fields(mask, message, teams.FIELD, teams.WRITABLE)
    return WantedTeam(path, _at_entry(index, lambda current: teams.edited_team(current, message, fields)))


def _parse_policy(index: int, message: pb.QuotaPolicy, mask: FieldMask) -> WantedPolicy:
    path, slug = parse_quota_policy(message.name, f"{quota_values.FIELD}.name")
    fields = changed_fields(mask, message, quota_values.FIELD, quota_values.WRITABLE)
    if path.api_key is not None and not message.weight:
        fields -= {"weight"}
    return WantedPolicy(path, slug, _at_entry(index, lambda current: quota_values.edited(current, message, fields)))


def _at_entry(index: int, edit: Edit[Settings]) -> Edit[Settings]:
    """`edit`, whose refusals say in which entry they are."""

    def run(current: Settings) -> Settings:
        try:
            return edit(current)
        except InvalidFieldError as error:
            raise _at(index, error) from error

    return run


def _at(index: int, error: InvalidFieldError) -> InvalidFieldError:
    """The same refusal, whose fields say in which entry they are."""
    prefix = f"entries[{index}]."
    return InvalidFieldError(
        *(FieldViolation(prefix + each.field, each.description) for each in error.field_violations)
    )


def _change_to_pb(difference: Difference) -> pb.PolicyChange:
    before, after = difference.before or {}, difference.after or {}
    return pb.PolicyChange(
        name=difference.resource,
        created=difference.before is None,
        fields=[
            pb.FieldChange(path=path, before=_json(before, path), after=_json(after, path))
            for path in {**before, **after}
            if before.get(path) != after.get(path)
        ],
    )


def _json(document: Document, path: str) -> str:
    return json.dumps(document[path], ensure_ascii=False) if path in document else ""
