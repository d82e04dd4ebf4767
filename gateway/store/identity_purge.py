"""What goes of issuers and role bindings with a key, an issuer or an organization.

Running gateways read rows that changed, not rows that are missing, so what goes is deleted first, like by hand, and the
row is forgotten when it has been so for long. Bindings in a purged organization or team go with its row, by the schema:
what a gateway remembers of them holds at a place of that id, which there is no more.
"""

from datetime import timedelta

from sqlalchemy import ColumnElement, delete, exists, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.store.changes import ChangeTransaction
from gateway.store.identity_models import JwtIssuerRow, RoleBindingRow
from gateway.store.models import ApiKeyRow, OrganizationRow


async def delete_bindings_of(tx: ChangeTransaction, key: ApiKeyRow) -> None:
    """No role is bound to the key any more, wherever it held."""
    await _delete_bindings(tx, RoleBindingRow.principal == f"apiKeys/{key.public_id}")


async def delete_bindings_of_subjects(tx: ChangeTransaction, issuer: JwtIssuerRow) -> None:
    """No role is bound to anybody the issuer speaks for: another issuer of its name inherits none of them."""
    subjects = f"jwtIssuers/{issuer.slug}/subjects/"
    await _delete_bindings(tx, RoleBindingRow.principal.startswith(subjects, autoescape=True))


async def delete_issuers_of(tx: ChangeTransaction, organization: OrganizationRow) -> None:
    """Nobody is believed who spoke for the organization, on any gateway; their rows outlive it for a while."""
    of_organization = JwtIssuerRow.org_id == organization.id
    for issuer in await tx.session.scalars(
        select(JwtIssuerRow).where(of_organization, JwtIssuerRow.deleted_at.is_(None))
    ):
        issuer.deleted_at = issuer.updated_at = tx.now
        issuer.revision = tx.revision
        await delete_bindings_of_subjects(tx, issuer)
    await tx.session.execute(update(JwtIssuerRow).where(of_organization).values(org_id=None))


async def forget_deleted_identities(session: AsyncSession, age: timedelta) -> None:
    """Rows that were deleted longer than `age` ago are gone: every gateway has read long since that they are deleted.

    No more than one statement each, and none that writes where nothing is due.
    """
    for table in (RoleBindingRow, JwtIssuerRow):
        is_due = table.deleted_at <= func.now() - age
        if await session.scalar(exists().where(is_due).select()):
            await session.execute(delete(table).where(is_due))


async def _delete_bindings(tx: ChangeTransaction, of_principal: ColumnElement[bool]) -> None:
    living = of_principal & RoleBindingRow.deleted_at.is_(None)
    await tx.session.execute(update(RoleBindingRow).where(living).values(deleted_at=tx.now, revision=tx.revision))
