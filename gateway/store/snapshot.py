"""What a request is decided on: keys, teams, organizations and classes at one policy revision, immutable.

Owns the entries and how a newer snapshot comes from an older one. Does no I/O (`gateway.store.cache` does), so an entry
can be used without a wait. Entries hold each other, not ids: a key's team is the team of the same revision.
"""

import hashlib
from collections import abc
from dataclasses import dataclass, field, replace
from datetime import datetime
from ipaddress import ip_network
from types import MappingProxyType
from typing import TypeVar
from uuid import UUID

from gateway.quota_terms import Mode
from gateway.store.enums import KeyScope, ReservationMode, State, StoreLossAction
from gateway.store.identity_snapshot import ChangedIdentity, IdentitySnapshot, advance_identity
from gateway.store.models import ApiKeyRow, OrganizationRow, PriorityClassRow, QuotaPolicyRow, TeamRow
from gateway.store.quota_parts import grants_of, settings_of
from gateway.store.records import (
    CACHE_SALT_BYTES,
    IPNetwork,
    KeySecret,
    QuotaBudget,
    QuotaCost,
    QuotaGrant,
    QuotaLimit,
)

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class ClassRecord:
    """A priority class; a lower rank is served first. `max_queue_wait_ms` None: no bound of its own."""

    name: str
    rank: int
    min_share: float
    preemptible: bool
    max_queue_wait_ms: int | None


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """Weight and limits of one organization, team or key. Keys have no weight.

    Grants are those that had not ended when the policy was read. `reservation` None: what the node above says.
    """

    id: UUID
    weight: float | None
    limits: tuple[QuotaLimit, ...]
    mode: Mode
    on_store_loss: StoreLossAction
    max_overdraft: int
    strict: bool
    revision: int
    time_zone: str = "UTC"
    reservation: ReservationMode | None = None
    budgets: tuple[QuotaBudget, ...] = ()
    costs: tuple[QuotaCost, ...] = ()
    grants: tuple[QuotaGrant, ...] = ()


@dataclass(frozen=True, slots=True)
class OrganizationRecord:
    """An organization and its policy."""

    id: UUID
    slug: str
    state: State
    policy: PolicyRecord

    @property
    def weight(self) -> float:
        """The share against siblings."""
        return _weight_of(self.policy)


@dataclass(frozen=True, slots=True)
class TeamRecord:
    """A tenant. `class_grants` always has the default class in it; `cache_salt` is 32 random bytes, or those that all
    teams of the organization have that share what their prompts begin with."""

    id: UUID
    slug: str
    organization: OrganizationRecord
    state: State
    cache_salt: bytes
    default_class: str
    class_grants: frozenset[str]
    policy: PolicyRecord
    has_durable_usage: bool = False
    speculates: bool = True

    @property
    def weight(self) -> float:
        """The share against siblings."""
        return _weight_of(self.policy)


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A credential. `team` is None for a platform key; empty grants and networks mean whatever the team may use.

    `revoked_at` is set of a deleted one, too; `aborts_inflight` says that what it had running ended with it.
    """

    key_id: UUID
    public_id: str
    secrets: tuple[KeySecret, ...]
    team: TeamRecord | None
    scopes: frozenset[KeyScope]
    model_grants: frozenset[str]
    class_grants: frozenset[str]
    ip_cidrs: tuple[IPNetwork, ...]
    expires_at: datetime | None
    revoked_at: datetime | None
    policy: PolicyRecord | None
    aborts_inflight: bool = False

    @property
    def is_platform(self) -> bool:
        """Whether the key is an administrator's and belongs to no tenant."""
        return self.team is None


@dataclass(frozen=True, slots=True)
class TenancySnapshot:
    """All of it at `revision`: keys by public id, teams and organizations by id, classes by name."""

    revision: int
    keys: abc.Mapping[str, KeyRecord]
    teams: abc.Mapping[UUID, TeamRecord]
    organizations: abc.Mapping[UUID, OrganizationRecord]
    classes: abc.Mapping[str, ClassRecord]
    identity: IdentitySnapshot = field(default_factory=IdentitySnapshot)

    def team_name(self, path: tuple[str, ...]) -> str:
        """`organizations/acme/teams/search` of the ids that an engine knows; one that is unknown here keeps its ids."""
        team = self._team_at(path)
        return "/".join(path) if team is None else f"organizations/{team.organization.slug}/teams/{team.slug}"

    def weights_of(self, path: tuple[str, ...]) -> tuple[float, float] | None:
        """The organization's and the team's of the ids that an engine knows; None for one that is unknown here."""
        team = self._team_at(path)
        return None if team is None else (team.organization.weight, team.weight)

    def _team_at(self, path: tuple[str, ...]) -> TeamRecord | None:
        try:
            return self.teams[UUID(path[-1])]
        except (KeyError, ValueError, IndexError):
            return None


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """What the database changed after some revision, up to and with `revision`; each row with its policy."""

    revision: int
    classes: abc.Sequence[PriorityClassRow]
    organizations: abc.Sequence[tuple[OrganizationRow, QuotaPolicyRow]]
    teams: abc.Sequence[tuple[TeamRow, QuotaPolicyRow]]
    keys: abc.Sequence[tuple[ApiKeyRow, QuotaPolicyRow | None]]
    identity: ChangedIdentity = field(default_factory=ChangedIdentity)


EMPTY_SNAPSHOT = TenancySnapshot(-1, {}, {}, {}, {})
"""Before anything was read; older than every revision."""


def advance(snapshot: TenancySnapshot, changed: ChangedRows) -> TenancySnapshot:
    """The snapshot at `changed.revision`. What hangs below a changed entry hangs below its new version."""
    organizations = _merged(
        snapshot.organizations, {row.id: _organization(row, own) for row, own in changed.organizations}
    )
    teams = {
        team.id: replace(team, organization=organizations[team.organization.id])
        for team in snapshot.teams.values()
        if organizations[team.organization.id] is not team.organization
    }
    teams |= {row.id: _team(row, own, organizations[row.org_id]) for row, own in changed.teams}
    all_teams = _merged(snapshot.teams, teams)
    keys = {
        key.public_id: replace(key, team=all_teams[key.team.id])
        for key in snapshot.keys.values()
        if key.team is not None and all_teams[key.team.id] is not key.team
    }
    keys |= {
        row.public_id: _key(row, own, None if row.team_id is None else all_teams[row.team_id])
        for row, own in changed.keys
    }
    return TenancySnapshot(
        revision=changed.revision,
        keys=_merged(snapshot.keys, keys),
        teams=all_teams,
        organizations=organizations,
        classes=_advanced_classes(snapshot.classes, changed.classes),
        identity=advance_identity(snapshot.identity, changed.identity),
    )


def _advanced_classes(
    old: abc.Mapping[str, ClassRecord], changed: abc.Sequence[PriorityClassRow]
) -> abc.Mapping[str, ClassRecord]:
    deleted = {row.name for row in changed if row.deleted_at is not None}
    return _merged(_without(old, deleted), {row.name: _class(row) for row in changed if row.deleted_at is None})


def _merged(old: abc.Mapping[K, V], new: abc.Mapping[K, V]) -> abc.Mapping[K, V]:
    return MappingProxyType({**old, **new}) if new else old


def _without(old: abc.Mapping[K, V], gone: abc.Set[K]) -> abc.Mapping[K, V]:
    return MappingProxyType({key: value for key, value in old.items() if key not in gone}) if gone else old


def _class(row: PriorityClassRow) -> ClassRecord:
    return ClassRecord(row.name, row.rank, row.min_share, row.preemptible, row.max_queue_wait_ms)


def _policy(row: QuotaPolicyRow) -> PolicyRecord:
    settings = settings_of(row)
    return PolicyRecord(
        id=row.id,
        weight=settings.weight,
        limits=settings.limits,
        mode=settings.mode,
        on_store_loss=settings.on_store_loss,
        max_overdraft=settings.max_overdraft,
        strict=settings.strict,
        revision=row.revision,
        time_zone=settings.time_zone,
        reservation=settings.reservation,
        budgets=settings.budgets,
        costs=settings.costs,
        grants=grants_of(row.grants),
    )


def _organization(row: OrganizationRow, policy: QuotaPolicyRow) -> OrganizationRecord:
    return OrganizationRecord(row.id, row.slug, _state(row), _policy(policy))


def _team(row: TeamRow, policy: QuotaPolicyRow, organization: OrganizationRecord) -> TeamRecord:
    return TeamRecord(
        id=row.id,
        slug=row.slug,
        organization=organization,
        state=_state(row),
        cache_salt=_shared_salt(organization.id) if row.shares_prefix_cache else row.cache_salt,
        default_class=row.default_class,
        class_grants=frozenset({row.default_class, *row.class_grants}),
        policy=_policy(policy),
        has_durable_usage=row.durable_usage,
        speculates=not row.speculation_disabled,
    )


def _shared_salt(organization_id: UUID) -> bytes:
    """Nobody's own: no random salt is a hash of this. It need not be secret, as no client can name a salt."""
    return hashlib.blake2b(b"prefix cache of\0" + organization_id.bytes, digest_size=CACHE_SALT_BYTES).digest()


def _state(row: OrganizationRow | TeamRow) -> State:
    """A deleted one is refused like a suspended one; once it is purged, its entry stays until the process ends."""
    return State(row.state) if row.deleted_at is None else State.SUSPENDED


def _key(row: ApiKeyRow, policy: QuotaPolicyRow | None, team: TeamRecord | None) -> KeyRecord:
    return KeyRecord(
        key_id=row.id,
        public_id=row.public_id,
        secrets=tuple(
            KeySecret(secret.hmac, secret.pepper_version, secret.not_after, secret.created_at) for secret in row.secrets
        ),
        team=team,
        scopes=frozenset(KeyScope(scope) for scope in row.scopes),
        model_grants=frozenset(row.model_grants),
        class_grants=frozenset(row.class_grants),
        ip_cidrs=tuple(ip_network(network) for network in row.ip_cidrs),
        expires_at=row.expires_at,
        revoked_at=row.revoked_at or row.deleted_at,
        policy=None if policy is None else _policy(policy),
        aborts_inflight=row.aborts_inflight,
    )


def _weight_of(policy: PolicyRecord) -> float:
    assert policy.weight is not None, "the schema gives every organization and team a weight"
    return policy.weight
