"""Many changes in one: classes, organizations, teams and policies as somebody wants them, all or nothing.

What is not there is made, what differs is changed, and what is as wanted stays. Each is an event of its own in the
audit chain, all of one revision. Knows no file format.
"""

from collections import abc
from dataclasses import dataclass

from gateway.store.audit import Document
from gateway.store.cache import read_changed
from gateway.store.changes import Change, Changed, ChangeTransaction, open_change
from gateway.store.db import Database
from gateway.store.errors import NotFoundError, StoreError
from gateway.store.organizations import add_organization, edit_organization
from gateway.store.paths import organization_at, team_at
from gateway.store.priority_classes import add_priority_class, class_at, edit_priority_class
from gateway.store.quota_policies import add_quota_policy, edit_quota_policy, policy_at
from gateway.store.records import (
    Edit,
    OrganizationSettings,
    PriorityClassSettings,
    QuotaPolicySettings,
    ResourcePath,
    TeamSettings,
    etag_of,
)
from gateway.store.snapshot import EMPTY_SNAPSHOT, TenancySnapshot, advance
from gateway.store.teams import add_team, edit_team

RESOURCE = "policies"


@dataclass(frozen=True, slots=True)
class WantedClass:
    """`edit` makes the wanted settings from the present ones, or from the defaults where there is no such class."""

    name: str
    edit: Edit[PriorityClassSettings]


@dataclass(frozen=True, slots=True)
class WantedOrganization:
    path: ResourcePath
    edit: Edit[OrganizationSettings]


@dataclass(frozen=True, slots=True)
class WantedTeam:
    path: ResourcePath
    edit: Edit[TeamSettings]


@dataclass(frozen=True, slots=True)
class WantedPolicy:
    path: ResourcePath
    slug: str
    edit: Edit[QuotaPolicySettings]


Wanted = WantedClass | WantedOrganization | WantedTeam | WantedPolicy


@dataclass(frozen=True, slots=True)
class Difference:
    """What became of one resource; `before` is None where it did not exist."""

    resource: str
    before: Document | None
    after: Document | None


@dataclass(frozen=True, slots=True)
class Applied:
    """Every difference, in the order of the wanted ones. `etag` names the state after them, or of a dry run before."""

    differences: tuple[Difference, ...]
    etag: str


class WantedError(Exception):
    """`reason` is what is refused about the wanted one at `index`."""

    def __init__(self, index: int, reason: StoreError) -> None:
        super().__init__(f"entry {index} is refused: {reason}")
        self.index = index
        self.reason = reason


async def apply_wanted(database: Database, change: Change, wanted: abc.Sequence[Wanted]) -> Applied:
    """All of it is as wanted. A retry changes nothing and reports nothing.

    `change.etag` is that of an earlier answer: StoreConflictError if anything was changed since. Raises WantedError
    from what the single changes raise, RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        etag = etag_of(tx.revision - 1)
        if await tx.find_replayed() is not None:
            return Applied((), etag)
        tx.require_etag(RESOURCE, etag)
        changes = await _apply_all(tx, wanted)
        if changes:
            await tx.record(*changes)
        differences = tuple(Difference(each.resource, each.before, each.after) for each in changes)
        return Applied(differences, etag if change.validate_only or not changes else etag_of(tx.revision))


async def preview(
    database: Database, change: Change, wanted: abc.Sequence[Wanted]
) -> tuple[TenancySnapshot, TenancySnapshot]:
    """The policies as they are, and as they would be if all of it were as wanted. Nothing is changed.

    Raises WantedError.
    """
    assert change.validate_only, "a preview is rolled back"
    async with open_change(database, change) as tx:
        current = advance(EMPTY_SNAPSHOT, await read_changed(tx.session, EMPTY_SNAPSHOT.revision, tx.revision - 1))
        await _apply_all(tx, wanted)
        tx.session.expire_all()
        proposed = advance(EMPTY_SNAPSHOT, await read_changed(tx.session, EMPTY_SNAPSHOT.revision, tx.revision))
        return current, proposed


async def _apply_all(tx: ChangeTransaction, wanted: abc.Sequence[Wanted]) -> list[Changed]:
    changes = []
    for index, each in enumerate(wanted):
        try:
            changed = await _apply(tx, each)
        except StoreError as error:
            raise WantedError(index, error) from error
        await tx.session.flush()
        if changed is not None:
            changes.append(changed)
    return changes


async def _apply(tx: ChangeTransaction, wanted: Wanted) -> Changed | None:
    match wanted:
        case WantedClass():
            return await _apply_class(tx, wanted)
        case WantedOrganization():
            return await _apply_organization(tx, wanted)
        case WantedTeam():
            return await _apply_team(tx, wanted)
        case WantedPolicy():
            return await _apply_policy(tx, wanted)


async def _apply_class(tx: ChangeTransaction, wanted: WantedClass) -> Changed | None:
    try:
        row = await class_at(tx.session, wanted.name)
    except NotFoundError:
        return (await add_priority_class(tx, wanted.name, wanted.edit(PriorityClassSettings())))[1]
    return await edit_priority_class(tx, row, wanted.edit)


async def _apply_organization(tx: ChangeTransaction, wanted: WantedOrganization) -> Changed | None:
    try:
        row = await organization_at(tx.session, wanted.path)
    except NotFoundError:
        return (await add_organization(tx, wanted.path, wanted.edit(OrganizationSettings())))[1]
    return edit_organization(tx, row, wanted.path, wanted.edit)


async def _apply_team(tx: ChangeTransaction, wanted: WantedTeam) -> Changed | None:
    await organization_at(tx.session, wanted.path)
    try:
        row = await team_at(tx.session, wanted.path)
    except NotFoundError:
        return (await add_team(tx, wanted.path, wanted.edit(TeamSettings())))[1]
    return await edit_team(tx, row, wanted.path, wanted.edit)


async def _apply_policy(tx: ChangeTransaction, wanted: WantedPolicy) -> Changed | None:
    try:
        row = await policy_at(tx.session, wanted.path, wanted.slug)
    except NotFoundError:
        fresh = QuotaPolicySettings(weight=None if wanted.path.api_key else 1.0)
        return (await add_quota_policy(tx, wanted.path, wanted.slug, wanted.edit(fresh)))[1]
    return await edit_quota_policy(tx, row, wanted.path, wanted.edit)
