"""Statements on quota policies: weight and limits of one organization, team or key. Each has one policy at most."""

from collections import Counter, abc
from dataclasses import replace
from uuid import UUID

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import selectinload
from uuid_utils.compat import uuid7

from gateway.store.audit import document_of
from gateway.store.changes import Change, Changed, ChangeTransaction, open_change
from gateway.store.db import Database
from gateway.store.enums import Dimension, QuotaMode, StoreLossAction
from gateway.store.errors import AlreadyExistsError, InvalidValueError, NotFoundError
from gateway.store.models import ApiKeyRow, OrganizationRow, QuotaLimitRow, QuotaPolicyRow, TeamRow
from gateway.store.paths import ids_at
from gateway.store.records import (
    ANY,
    DEFAULT_POLICY,
    Edit,
    Page,
    QuotaLimit,
    QuotaPolicy,
    QuotaPolicySettings,
    ResourcePath,
    etag_of,
)


async def create_quota_policy(
    database: Database, change: Change, path: ResourcePath, slug: str, settings: QuotaPolicySettings
) -> QuotaPolicy:
    """The organization, team or key at `path` has the policy. A retry returns what the first call made.

    Raises NotFoundError (whom it is for), AlreadyExistsError (there is a policy, whatever its slug), InvalidValueError,
    RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        ids = await ids_at(tx.session, path)
        existing = await _find(tx.session, ids)
        if await tx.find_replayed() is not None and existing is not None:
            return _record(existing, path)
        if existing is not None:
            raise AlreadyExistsError(_name(path, existing.slug))
        row = QuotaPolicyRow(id=uuid7(), slug=slug, created_at=tx.now)
        row.org_id, row.team_id, row.key_id = ids
        row.limits = []
        _write(row, settings, tx)
        tx.session.add(row)
        await tx.record(Changed("quotaPolicies.create", _name(path, slug), row.id, None, document_of(settings)))
        return _record(row, path)


async def get_quota_policy(database: Database, path: ResourcePath, slug: str) -> QuotaPolicy:
    """The policy `slug` of the organization, team or key at `path`. Raises NotFoundError."""
    async with database.session() as session:
        return _record(await _policy_at(session, path, slug), path)


async def list_quota_policies(database: Database, parent: ResourcePath, page: Page) -> list[QuotaPolicy]:
    """One page of the policies at the parent's depth: of organizations, of teams or of keys; a segment may be `-`.

    Raises NotFoundError for a parent that does not exist.
    """
    query = _with_paths().order_by(QuotaPolicyRow.id).limit(page.size)
    if page.after is not None:
        query = query.where(QuotaPolicyRow.id > page.after)
    columns = (
        (parent.organization, OrganizationRow.slug),
        (parent.team, TeamRow.slug),
        (parent.api_key, ApiKeyRow.public_id),
    )
    for segment, column in columns:
        if segment != ANY:  # None: the parent is not that deep, so neither is the policy
            query = query.where(column.is_(None) if segment is None else column == segment)
        else:
            query = query.where(column.is_not(None))
    async with database.session() as session:
        if ANY not in (parent.organization, parent.team, parent.api_key):
            await ids_at(session, parent)
        found = await session.execute(query)
        return [_record(row, ResourcePath(organization, team, key)) for row, organization, team, key in found]


async def update_quota_policy(
    database: Database,
    change: Change,
    path: ResourcePath,
    slug: str,
    edit: Edit[QuotaPolicySettings],
) -> QuotaPolicy:
    """The policy has the edited settings, its limits as a whole; where nothing differs, nothing changed.

    Raises NotFoundError, StoreConflictError, InvalidValueError, RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        row = await _policy_at(tx.session, path, slug)
        current = _record(row, path)
        if await tx.find_replayed() is not None:
            return current
        tx.require_etag(_name(path, slug), current.etag)
        settings = edit(current.settings)
        settings = replace(settings, limits=_ordered(settings.limits))
        if settings == current.settings:
            return current
        _write(row, settings, tx)
        before, after = document_of(current.settings), document_of(settings)
        await tx.record(Changed("quotaPolicies.update", _name(path, slug), row.id, before, after))
        return _record(row, path)


def default_policy_row(tx: ChangeTransaction, org_id: UUID, team_id: UUID | None) -> QuotaPolicyRow:
    """The policy that a new organization or team gets: weight 1, no limits."""
    row = QuotaPolicyRow(id=uuid7(), slug=DEFAULT_POLICY, created_at=tx.now, org_id=org_id, team_id=team_id)
    row.limits = []
    _write(row, QuotaPolicySettings(), tx)
    return row


def limits_of(rows: abc.Iterable[QuotaLimitRow]) -> tuple[QuotaLimit, ...]:
    """The rows as values, in their one order."""
    return _ordered(
        QuotaLimit(Dimension(row.dimension), row.amount, row.period_ms, row.burst, row.model) for row in rows
    )


def _ordered(limits: abc.Iterable[QuotaLimit]) -> tuple[QuotaLimit, ...]:
    return tuple(sorted(limits, key=lambda limit: (limit.dimension, limit.model)))


async def _policy_at(session: AsyncSession, path: ResourcePath, slug: str) -> QuotaPolicyRow:
    row = await _find(session, await ids_at(session, path))
    if row is None or row.slug != slug:
        raise NotFoundError(_name(path, slug))
    return row


async def _find(session: AsyncSession, ids: tuple[UUID, UUID | None, UUID | None]) -> QuotaPolicyRow | None:
    org_id, team_id, key_id = ids
    return await session.scalar(
        select(QuotaPolicyRow)
        .where(
            QuotaPolicyRow.org_id == org_id,
            QuotaPolicyRow.team_id.is_not_distinct_from(team_id),
            QuotaPolicyRow.key_id.is_not_distinct_from(key_id),
        )
        .options(selectinload(QuotaPolicyRow.limits))
    )


def _with_paths() -> Select[QuotaPolicyRow, str, str | None, str | None]:
    return (
        select(QuotaPolicyRow, OrganizationRow.slug, TeamRow.slug, ApiKeyRow.public_id)
        .join(OrganizationRow, OrganizationRow.id == QuotaPolicyRow.org_id)
        .outerjoin(TeamRow, TeamRow.id == QuotaPolicyRow.team_id)
        .outerjoin(ApiKeyRow, ApiKeyRow.id == QuotaPolicyRow.key_id)
        .options(selectinload(QuotaPolicyRow.limits))
    )


def _write(row: QuotaPolicyRow, settings: QuotaPolicySettings, tx: ChangeTransaction) -> None:
    counts = Counter((limit.dimension, limit.model) for limit in settings.limits)
    for (dimension, model), count in counts.items():
        if count > 1:
            raise InvalidValueError("limits", f"{dimension} of {model or 'all models'} is limited {count} times")
    row.mode, row.weight = settings.mode, settings.weight
    row.on_store_loss, row.max_overdraft, row.strict = settings.on_store_loss, settings.max_overdraft, settings.strict
    row.limits = [
        QuotaLimitRow(
            dimension=limit.dimension,
            model=limit.model,
            amount=limit.amount,
            period_ms=limit.period_ms,
            burst=limit.burst,
        )
        for limit in settings.limits
    ]
    row.revision, row.updated_at = tx.revision, tx.now


def _record(row: QuotaPolicyRow, path: ResourcePath) -> QuotaPolicy:
    return QuotaPolicy(
        id=row.id,
        path=path,
        slug=row.slug,
        settings=QuotaPolicySettings(
            weight=row.weight,
            limits=limits_of(row.limits),
            mode=QuotaMode(row.mode),
            on_store_loss=StoreLossAction(row.on_store_loss),
            max_overdraft=row.max_overdraft,
            strict=row.strict,
        ),
        revision=row.revision,
        etag=etag_of(row.revision),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def _name(path: ResourcePath, slug: str) -> str:
    return f"{path.name}/quotaPolicies/{slug}"
