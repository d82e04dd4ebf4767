"""Statements on issuers of tokens. A deleted one keeps its row, and its id and `iss` can be used again."""

from uuid import UUID

from sqlalchemy import Select, exists, select
from sqlalchemy.ext.asyncio import AsyncSession
from uuid_utils.compat import uuid7

from gateway.store.audit import Document, document_of
from gateway.store.changes import Change, Changed, ChangeTransaction, open_change
from gateway.store.db import Database
from gateway.store.deletion import require_live
from gateway.store.errors import AlreadyExistsError, NotFoundError
from gateway.store.identity import JwtIssuer, JwtIssuerSettings
from gateway.store.identity_models import JwtIssuerRow
from gateway.store.identity_purge import delete_bindings_of_subjects
from gateway.store.models import OrganizationRow
from gateway.store.paths import organization_at
from gateway.store.records import Edit, Page, ResourcePath, etag_of


async def create_issuer(
    database: Database, change: Change, slug: str, issuer: str, organization: str | None, settings: JwtIssuerSettings
) -> JwtIssuer:
    """The issuer exists. A retry returns what the first call made.

    Raises AlreadyExistsError, NotFoundError (the organization), PreconditionFailedError (it is deleted),
    InvalidValueError, RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        if (replayed := await tx.find_replayed()) is not None:
            found = await tx.session.execute(_issuers().where(JwtIssuerRow.id == replayed))
            return _record(*found.one())
        await _require_free(tx, slug, issuer)
        org_id = None if organization is None else await _live_organization(tx, ResourcePath(organization))
        row = JwtIssuerRow(id=uuid7(), slug=slug, issuer=issuer, org_id=org_id, created_at=tx.now)
        _write(row, settings, tx)
        tx.session.add(row)
        record = _record(row, organization)
        await tx.record(Changed("jwtIssuers.create", record.name, row.id, None, _document(record)))
        return record


async def get_issuer(database: Database, slug: str) -> JwtIssuer:
    """Raises NotFoundError."""
    async with database.session() as session:
        return _record(*await _issuer_at(session, slug))


async def list_issuers(database: Database, page: Page) -> list[JwtIssuer]:
    """One page of all issuers."""
    query = _issuers().where(JwtIssuerRow.deleted_at.is_(None)).order_by(JwtIssuerRow.id).limit(page.size)
    if page.after is not None:
        query = query.where(JwtIssuerRow.id > page.after)
    async with database.session() as session:
        return [_record(row, organization) for row, organization in await session.execute(query)]


async def update_issuer(database: Database, change: Change, slug: str, edit: Edit[JwtIssuerSettings]) -> JwtIssuer:
    """The issuer has the edited settings; where nothing differs, nothing changed.

    Raises NotFoundError, StoreConflictError, InvalidValueError, RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        row, organization = await _issuer_at(tx.session, slug)
        current = _record(row, organization)
        if await tx.find_replayed() is not None:
            return current
        tx.require_etag(current.name, current.etag)
        settings = edit(current.settings)
        if settings == current.settings:
            return current
        _write(row, settings, tx)
        changed = _record(row, organization)
        await tx.record(Changed("jwtIssuers.update", current.name, row.id, _document(current), _document(changed)))
        return changed


async def delete_issuer(database: Database, change: Change, slug: str) -> JwtIssuer:
    """The issuer is deleted, and the roles of those it speaks for end with it.

    Raises NotFoundError, StoreConflictError, RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        if (replayed := await tx.find_replayed()) is not None:
            found = await tx.session.execute(_issuers().where(JwtIssuerRow.id == replayed))
            return _record(*found.one())
        row, organization = await _issuer_at(tx.session, slug)
        record = _record(row, organization)
        tx.require_etag(record.name, record.etag)
        row.deleted_at = row.updated_at = tx.now
        row.revision = tx.revision
        await delete_bindings_of_subjects(tx, row)
        await tx.record(Changed("jwtIssuers.delete", record.name, row.id, _document(record), None))
        return record


async def _issuer_at(session: AsyncSession, slug: str) -> tuple[JwtIssuerRow, str | None]:
    query = _issuers().where(JwtIssuerRow.slug == slug, JwtIssuerRow.deleted_at.is_(None))
    found = (await session.execute(query)).one_or_none()
    if found is None:
        raise NotFoundError(f"jwtIssuers/{slug}")
    return found[0], found[1]


def _issuers() -> Select[JwtIssuerRow, str | None]:
    return select(JwtIssuerRow, OrganizationRow.slug).outerjoin(
        OrganizationRow, OrganizationRow.id == JwtIssuerRow.org_id
    )


async def _live_organization(tx: ChangeTransaction, path: ResourcePath) -> UUID:
    row = await organization_at(tx.session, path)
    require_live(row, path)
    return row.id


async def _require_free(tx: ChangeTransaction, slug: str, issuer: str) -> None:
    """Changes come one at a time, so what is free now is free at the commit."""
    living = exists().where(JwtIssuerRow.deleted_at.is_(None))
    if await tx.session.scalar(select(living.where(JwtIssuerRow.slug == slug))):
        raise AlreadyExistsError(f"jwtIssuers/{slug}")
    if await tx.session.scalar(select(living.where(JwtIssuerRow.issuer == issuer))):
        raise AlreadyExistsError(f"an issuer {issuer}")


def _write(row: JwtIssuerRow, settings: JwtIssuerSettings, tx: ChangeTransaction) -> None:
    row.audiences, row.algorithms = list(settings.audiences), list(settings.algorithms)
    row.jwks_uri, row.claim_map = settings.jwks_uri, dict(settings.claim_map)
    row.revision, row.updated_at = tx.revision, tx.now


def _document(record: JwtIssuer) -> Document:
    return {"issuer": record.issuer, "organization": record.organization, **document_of(record.settings)}


def _record(row: JwtIssuerRow, organization: str | None) -> JwtIssuer:
    return JwtIssuer(
        id=row.id,
        slug=row.slug,
        issuer=row.issuer,
        organization=organization,
        settings=JwtIssuerSettings(tuple(row.audiences), row.jwks_uri, tuple(row.algorithms), dict(row.claim_map)),
        etag=etag_of(row.revision),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
