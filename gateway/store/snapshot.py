"""What a request is decided on: keys, teams, organizations and classes at one policy revision, immutable.

Owns the entries and how a newer snapshot comes from an older one. Does no I/O (`gateway.store.cache` does), so an entry
can be used without a wait. Entries hold each other, not ids: a key's team is the team of the same revision.
"""

from collections import abc
from dataclasses import dataclass, replace
from datetime import datetime
from ipaddress import ip_network
from types import MappingProxyType
from typing import TypeVar
from uuid import UUID

from gateway.store.enums import KeyScope, QuotaMode, State, StoreLossAction
from gateway.store.models import ApiKeyRow, OrganizationRow, PriorityClassRow, QuotaPolicyRow, TeamRow
from gateway.store.quota_policies import limits_of
from gateway.store.records import IPNetwork, KeySecret, QuotaLimit

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
    """Weight and limits of one organization, team or key. Keys have no weight."""

    id: UUID
    weight: float | None
    limits: tuple[QuotaLimit, ...]
    mode: QuotaMode
    on_store_loss: StoreLossAction
    max_overdraft: int
    strict: bool
    revision: int


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
    """A tenant. `class_grants` always has the default class in it; `cache_salt` is 32 random bytes."""

    id: UUID
    slug: str
    organization: OrganizationRecord
    state: State
    cache_salt: bytes
    default_class: str
    class_grants: frozenset[str]
    policy: PolicyRecord

    @property
    def weight(self) -> float:
        """The share against siblings."""
        return _weight_of(self.policy)


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A credential. `team` is None for a platform key; empty grants and networks mean whatever the team may use."""

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

    def team_name(self, path: tuple[str, ...]) -> str:
        """`organizations/acme/teams/search` of the ids that an engine knows; one that is unknown here keeps its ids."""
        try:
            team = self.teams[UUID(path[-1])]
        except (KeyError, ValueError, IndexError):
            return "/".join(path)
        return f"organizations/{team.organization.slug}/teams/{team.slug}"


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """What the database changed after some revision, up to and with `revision`; each row with its policy."""

    revision: int
    classes: abc.Sequence[PriorityClassRow]
    organizations: abc.Sequence[tuple[OrganizationRow, QuotaPolicyRow]]
    teams: abc.Sequence[tuple[TeamRow, QuotaPolicyRow]]
    keys: abc.Sequence[tuple[ApiKeyRow, QuotaPolicyRow | None]]


EMPTY_SNAPSHOT = TenancySnapshot(-1, {}, {}, {}, {})
"""Before anything was read; older than every revision."""


def advance(snapshot: TenancySnapshot, changed: ChangedRows) -> TenancySnapshot:
    """The snapshot at `changed.revision`. What hangs below a changed entry hangs below its new version."""
    classes = {row.name: _class(row) for row in changed.classes}
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
        classes=_merged(snapshot.classes, classes),
    )


def _merged(old: abc.Mapping[K, V], new: abc.Mapping[K, V]) -> abc.Mapping[K, V]:
    return MappingProxyType({**old, **new}) if new else old


def _class(row: PriorityClassRow) -> ClassRecord:
    return ClassRecord(row.name, row.rank, row.min_share, row.preemptible, row.max_queue_wait_ms)


def _policy(row: QuotaPolicyRow) -> PolicyRecord:
    return PolicyRecord(
        id=row.id,
        weight=row.weight,
        limits=limits_of(row.limits),
        mode=QuotaMode(row.mode),
        on_store_loss=StoreLossAction(row.on_store_loss),
        max_overdraft=row.max_overdraft,
        strict=row.strict,
        revision=row.revision,
    )


def _organization(row: OrganizationRow, policy: QuotaPolicyRow) -> OrganizationRecord:
    return OrganizationRecord(row.id, row.slug, State(row.state), _policy(policy))


def _team(row: TeamRow, policy: QuotaPolicyRow, organization: OrganizationRecord) -> TeamRecord:
    return TeamRecord(
        id=row.id,
        slug=row.slug,
        organization=organization,
        state=State(row.state),
        cache_salt=row.cache_salt,
        default_class=row.default_class,
        class_grants=frozenset({row.default_class, *row.class_grants}),
        policy=_policy(policy),
    )


def _key(row: ApiKeyRow, policy: QuotaPolicyRow | None, team: TeamRecord | None) -> KeyRecord:
    return KeyRecord(
        key_id=row.id,
        public_id=row.public_id,
        secrets=tuple(KeySecret(secret.hmac, secret.pepper_version, secret.not_after) for secret in row.secrets),
        team=team,
        scopes=frozenset(KeyScope(scope) for scope in row.scopes),
        model_grants=frozenset(row.model_grants),
        class_grants=frozenset(row.class_grants),
        ip_cidrs=tuple(ip_network(network) for network in row.ip_cidrs),
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        policy=None if policy is None else _policy(policy),
    )


def _weight_of(policy: PolicyRecord) -> float:
    assert policy.weight is not None, "the schema gives every organization and team a weight"
    return policy.weight
