"""Statements on bindings of roles. They are made and deleted, never changed; a deleted one keeps its row."""

from uuid import UUID

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession
from uuid_utils.compat import uuid7

from gateway.store.changes import Change, Changed, ChangeTransaction, open_change
from gateway.store.db import Database
from gateway.store.deletion import require_live
from gateway.store.enums import Role
from gateway.store.errors import AlreadyExistsError, NotFoundError
from gateway.store.identity import RoleBinding
from gateway.store.identity_models import RoleBindingRow
from gateway.store.models import OrganizationRow, TeamRow
from gateway.store.paths import organization_at, team_at
from gateway.store.records import ANY, Page, ResourcePath, etag_of


async def create_binding(
    database: Database, change: Change, path: ResourcePath, principal: str, role: Role
) -> RoleBinding:
    """`principal` has `role` at `path`. A retry returns what the first call made.

    Raises NotFoundError (the organization or team), PreconditionFailedError (it is deleted), AlreadyExistsError,
    InvalidValueError, RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        if (replayed := await tx.find_replayed()) is not None:
            return _record(*(await tx.session.execute(_bindings().where(RoleBindingRow.id == replayed))).one())
        org_id, team_id = await _ids_at(tx.session, path, is_live=True)
        await _require_new(tx, principal, role, org_id, team_id)
        row = RoleBindingRow(id=uuid7(), principal=principal, role=role, org_id=org_id, team_id=team_id)
        row.created_at, row.revision = tx.now, tx.revision
        tx.session.add(row)
        record = _record(row, path.organization, path.team)
        await tx.record(Changed("roleBindings.create", record.name, row.id, None, _document(record)))
        return record


async def get_binding(database: Database, path: ResourcePath, binding_id: UUID) -> RoleBinding:
    """The binding of this id at `path`, exactly there. Raises NotFoundError."""
    async with database.session() as session:
        return _record(*await _binding_at(session, path, binding_id))


async def list_bindings(database: Database, parent: ResourcePath, page: Page, principal: str = "") -> list[RoleBinding]:
    """One page of the bindings at `parent` and below, of one principal or of all.

    The platform's parent has no organization; the organization `-` stands for everything. Raises NotFoundError.
    """
    query = _bindings().where(RoleBindingRow.deleted_at.is_(None)).order_by(RoleBindingRow.id).limit(page.size)
    if page.after is not None:
        query = query.where(RoleBindingRow.id > page.after)
    if principal:
        query = query.where(RoleBindingRow.principal == principal)
    async with database.session() as session:
        if parent.organization not in (ANY, None):
            org_id, team_id = await _ids_at(session, parent)
            query = query.where(RoleBindingRow.org_id == org_id)
            query = query if team_id is None else query.where(RoleBindingRow.team_id == team_id)
        return [_record(*found) for found in await session.execute(query)]


async def delete_binding(database: Database, change: Change, path: ResourcePath, binding_id: UUID) -> RoleBinding:
    """The binding is deleted. Raises NotFoundError, StoreConflictError, RequestIdReusedError."""
    async with open_change(database, change) as tx:
        if (replayed := await tx.find_replayed()) is not None:
            return _record(*(await tx.session.execute(_bindings().where(RoleBindingRow.id == replayed))).one())
        row, organization, team = await _binding_at(tx.session, path, binding_id)
        record = _record(row, organization, team)
        tx.require_etag(record.name, record.etag)
        row.deleted_at, row.revision = tx.now, tx.revision
        await tx.record(Changed("roleBindings.delete", record.name, row.id, _document(record), None))
        return record


async def _require_new(
    tx: ChangeTransaction, principal: str, role: Role, org_id: UUID | None, team_id: UUID | None
) -> None:
    same = select(RoleBindingRow.id).where(
        RoleBindingRow.principal == principal,
        RoleBindingRow.role == role,
        RoleBindingRow.org_id.is_not_distinct_from(org_id),
        RoleBindingRow.team_id.is_not_distinct_from(team_id),
        RoleBindingRow.deleted_at.is_(None),
    )
    found = await tx.session.scalar(same)
    if found is not None:
        raise AlreadyExistsError(f"roleBindings/{found}")


async def _ids_at(
    session: AsyncSession, path: ResourcePath, *, is_live: bool = False
) -> tuple[UUID | None, UUID | None]:
    """With `is_live`, raises PreconditionFailedError where the organization or team is deleted."""
    if path.organization is None:
        return None, None
    organization = await organization_at(session, path)
    team = None if path.team is None else await team_at(session, path)
    if is_live:
        require_live(organization, ResourcePath(path.organization))
        if team is not None:
            require_live(team, path)
    return organization.id, None if team is None else team.id


async def _binding_at(
    session: AsyncSession, path: ResourcePath, binding_id: UUID
) -> tuple[RoleBindingRow, str | None, str | None]:
    query = _bindings().where(RoleBindingRow.id == binding_id, RoleBindingRow.deleted_at.is_(None))
    found = (await session.execute(query)).one_or_none()
    if found is None or (found[1], found[2]) != (path.organization, path.team):
        raise NotFoundError("/".join(part for part in (path.name, f"roleBindings/{binding_id}") if part))
    return found[0], found[1], found[2]


def _bindings() -> Select[RoleBindingRow, str | None, str | None]:
    return (
        select(RoleBindingRow, OrganizationRow.slug, TeamRow.slug)
        .outerjoin(OrganizationRow, OrganizationRow.id == RoleBindingRow.org_id)
        .outerjoin(TeamRow, TeamRow.id == RoleBindingRow.team_id)
    )


def _document(record: RoleBinding) -> dict[str, object]:
    return {"principal": record.principal, "role": record.role}


def _record(row: RoleBindingRow, organization: str | None, team: str | None) -> RoleBinding:
    return RoleBinding(
        id=row.id,
        principal=row.principal,
        role=Role(row.role),
        path=ResourcePath(organization, team),
        etag=etag_of(row.revision),
        created_at=row.created_at,
    )
