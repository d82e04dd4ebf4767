"""Issuers and role bindings as requests are decided on: part of the snapshot of tenancy, immutable, of one revision."""

from collections import abc
from dataclasses import dataclass, field
from uuid import UUID

from gateway.store.enums import Role
from gateway.store.identity_models import JwtIssuerRow, RoleBindingRow
from gateway.store.records import ResourcePath


@dataclass(frozen=True, slots=True)
class IssuerRecord:
    """An issuer of tokens. `organization_id` None: its tokens may name any organization."""

    id: UUID
    slug: str
    issuer: str
    organization_id: UUID | None
    audiences: tuple[str, ...]
    jwks_uri: str
    algorithms: frozenset[str]
    claim_map: abc.Mapping[str, str]
    revision: int


@dataclass(frozen=True, slots=True)
class BindingRecord:
    """`principal` has `role` at `path`, which the two ids stand for."""

    id: UUID
    principal: str
    role: Role
    path: ResourcePath
    organization_id: UUID | None
    team_id: UUID | None


@dataclass(frozen=True, slots=True)
class ChangedIdentity:
    """Rows that were changed, deleted ones among them; each binding with the slugs of its organization and team."""

    issuers: abc.Sequence[JwtIssuerRow] = ()
    bindings: abc.Sequence[tuple[RoleBindingRow, str | None, str | None]] = ()


@dataclass(frozen=True, slots=True)
class IdentitySnapshot:
    """Issuers by their claim `iss`, bindings by the name of the principal."""

    issuers: abc.Mapping[str, IssuerRecord] = field(default_factory=dict)
    bindings: abc.Mapping[str, tuple[BindingRecord, ...]] = field(default_factory=dict)


def advance_identity(snapshot: IdentitySnapshot, changed: ChangedIdentity) -> IdentitySnapshot:
    """The snapshot with the changed rows in place of what it had of them."""
    issuers, bindings = snapshot.issuers, snapshot.bindings
    if changed.issuers:
        ids = {row.id for row in changed.issuers}
        kept = {name: record for name, record in issuers.items() if record.id not in ids}
        issuers = kept | {row.issuer: _issuer(row) for row in changed.issuers if row.deleted_at is None}
    if changed.bindings:
        bindings = _with_bindings(bindings, changed.bindings)
    return IdentitySnapshot(issuers, bindings)


def _with_bindings(
    old: abc.Mapping[str, tuple[BindingRecord, ...]],
    changed: abc.Sequence[tuple[RoleBindingRow, str | None, str | None]],
) -> abc.Mapping[str, tuple[BindingRecord, ...]]:
    bindings = dict(old)
    for row, organization, team in changed:
        others = tuple(record for record in bindings.pop(row.principal, ()) if record.id != row.id)
        if row.deleted_at is None:
            others += (_binding(row, ResourcePath(organization, team)),)
        if others:
            bindings[row.principal] = others
    return bindings


def _issuer(row: JwtIssuerRow) -> IssuerRecord:
    return IssuerRecord(
        id=row.id,
        slug=row.slug,
        issuer=row.issuer,
        organization_id=row.org_id,
        audiences=tuple(row.audiences),
        jwks_uri=row.jwks_uri,
        algorithms=frozenset(row.algorithms),
        claim_map=dict(row.claim_map),
        revision=row.revision,
    )


def _binding(row: RoleBindingRow, path: ResourcePath) -> BindingRecord:
    return BindingRecord(row.id, row.principal, Role(row.role), path, row.org_id, row.team_id)
