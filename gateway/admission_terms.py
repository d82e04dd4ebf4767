"""What is asked at the door and what is answered: plain values, and the tenant's record as they are made from it."""

from collections import abc
from dataclasses import dataclass, replace
from datetime import datetime

from gateway.auth import Principal
from gateway.auth.grants import require_active
from gateway.engine_client import Node, PriorityClass
from gateway.errors import GatewayError, InternalError
from gateway.errors_auth import ClassNotGrantedError, KeyRevokedError
from gateway.quota_limits import NodePolicy, reservation_mode
from gateway.quota_limits_memo import LimitsMemo
from gateway.quota_slices import OutputSlices, WhenExhausted
from gateway.quota_terms import Charge, Denied, Limit, Remaining, Reserved
from gateway.store.enums import ReservationMode
from gateway.store.snapshot import ClassRecord, KeyRecord, OrganizationRecord, TeamRecord, TenancySnapshot

# Of a function of values: whoever asks gets the same.
_MEMO = LimitsMemo()


@dataclass(frozen=True, slots=True)
class Demand:
    """What one request wants. Empty `priority_class`: the team's default. `max_output_tokens` are of all its beams."""

    generation_id: str
    model: str
    priority_class: str
    num_input_tokens: int
    max_output_tokens: int
    when_exhausted: WhenExhausted = WhenExhausted.PAUSE
    num_beams: int = 1


@dataclass(frozen=True, slots=True)
class Admitted:
    """A place past the door, held until `Admission.settle`. Everything in it comes from the tenant's record.

    `slices` keeps the generation supplied where less than it may use is held at first; None where all of it is.
    `limits_left`: what was left of each limit afterwards, as far as was known here. `has_durable_usage`: the caller
    hears of the end only when its usage is on disk. `speculates`: tokens may be guessed ahead for the team.
    """

    demand: Demand
    path: tuple[Node, ...]
    priority_class: PriorityClass
    max_queue_wait_ns: int | None
    cache_salt: bytes
    policy_revision: int
    limits_left: tuple[tuple[Limit, Remaining], ...]
    reserved: Reserved
    slices: OutputSlices | None = None
    is_best_effort: bool = False
    has_durable_usage: bool = False
    speculates: bool = True

    @property
    def reserved_tokens(self) -> int:
        """What was held back at first."""
        return self.reserved.charge.input_tokens + self.reserved.charge.output_tokens


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a dry run finds: `error` is the refusal, None if the request would be admitted.

    `queue_wait_ns` is what it may wait for the engine; None where nobody can tell.
    """

    error: GatewayError | None
    is_best_effort: bool
    queue_wait_ns: int | None = None


@dataclass(frozen=True, slots=True)
class TenantQuota:
    """What a tenant may know of its own limits, as of `now`."""

    team: TeamRecord
    policy_revision: int
    limits: tuple[tuple[Limit, Remaining], ...]
    now: datetime


@dataclass(frozen=True, slots=True)
class Asked:
    """A demand with the records and limits that decide on it, as of `now`.

    `num_requests`: of how many requests it is the sum, which ask for the same model in the same class.
    """

    principal: Principal
    demand: Demand
    team: TeamRecord
    priority_class: ClassRecord
    limits: tuple[Limit, ...]
    reservation: ReservationMode
    num_reserved_output_tokens: int
    policy_revision: int
    now: datetime
    num_requests: int = 1

    @property
    def tenant(self) -> str:
        """`acme/search`."""
        return f"{self.team.organization.slug}/{self.team.slug}"

    @property
    def num_tokens(self) -> int:
        """Of input and output, to be reserved."""
        return self.demand.num_input_tokens + self.num_reserved_output_tokens

    @property
    def charge(self) -> Charge:
        return Charge(self.num_requests, self.demand.num_input_tokens, self.num_reserved_output_tokens)


def together(each: abc.Sequence[Asked]) -> Asked:
    """What all of them ask for, as one. They have their limits in common: those of one call."""
    first = each[0]
    demand = replace(
        first.demand,
        num_input_tokens=sum(asked.demand.num_input_tokens for asked in each),
        max_output_tokens=sum(asked.demand.max_output_tokens for asked in each),
    )
    num_reserved = sum(asked.num_reserved_output_tokens for asked in each)
    return replace(first, demand=demand, num_reserved_output_tokens=num_reserved, num_requests=len(each))


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing is held. `error` is what the caller is told."""

    denied: Denied
    error: GatewayError


def ask(snapshot: TenancySnapshot, principal: Principal, demand: Demand, now: datetime) -> Asked:
    """What decides on `demand`, with all of its output to be reserved.

    Raises ClassNotGrantedError, and KeyRevokedError or TenantSuspendedError if that has happened since the call began.
    """
    key, team = _records(snapshot, principal)
    path = policies_over(principal, key, team)
    return Asked(
        principal=principal,
        demand=demand,
        team=team,
        priority_class=_granted_class(demand.priority_class, key, team, snapshot),
        limits=_MEMO.limits_at(path, demand.model, now),
        reservation=reservation_mode(path),
        num_reserved_output_tokens=demand.max_output_tokens,
        policy_revision=snapshot.revision,
        now=now,
    )


def require_active_principal(snapshot: TenancySnapshot, principal: Principal) -> None:
    """Raises KeyRevokedError or TenantSuspendedError if that has happened since the call began."""
    _records(snapshot, principal)


def limits_over(snapshot: TenancySnapshot, principal: Principal, now: datetime) -> tuple[TeamRecord, tuple[Limit, ...]]:
    """The caller's team, and every limit over its requests, whatever their model."""
    key, team = _records(snapshot, principal)
    return team, _MEMO.limits_at(policies_over(principal, key, team), None, now)


def current_limits(
    snapshot: TenancySnapshot, principal: Principal, model: str, now: datetime
) -> tuple[Limit, ...] | None:
    """Every limit over what the caller has running with `model`, also once its key is revoked; None: team unknown."""
    key, team = _found(snapshot, principal)
    return None if team is None else _MEMO.limits_at(policies_over(principal, key, team), model, now)


def policies_over(principal: Principal, key: KeyRecord | None, team: TeamRecord) -> tuple[NodePolicy, ...]:
    """The policies over the caller's requests, from the key up. The bearer of a token has none of its own."""
    above = team_policies(team)
    return above if key is None or key.policy is None else (NodePolicy(principal.name, key.policy), *above)


def team_policies(team: TeamRecord) -> tuple[NodePolicy, ...]:
    """The policies over all requests of a team, from its own up."""
    organization = f"organizations/{team.organization.slug}"
    own = NodePolicy(f"{organization}/teams/{team.slug}", team.policy)
    return own, *organization_policies(team.organization)


def organization_policies(organization: OrganizationRecord) -> tuple[NodePolicy, ...]:
    """The one policy over all requests of an organization."""
    return (NodePolicy(f"organizations/{organization.slug}", organization.policy),)


def limits_of(policies: tuple[NodePolicy, ...], now: datetime) -> tuple[Limit, ...]:
    """Every limit of these policies, whatever its model."""
    return _MEMO.limits_at(policies, None, now)


def _found(snapshot: TenancySnapshot, principal: Principal) -> tuple[KeyRecord | None, TeamRecord | None]:
    key = snapshot.keys.get(principal.public_id)
    team = key.team if key is not None else None
    if team is None and principal.team_id is not None:
        team = snapshot.teams.get(principal.team_id)
    return key, team


def _records(snapshot: TenancySnapshot, principal: Principal) -> tuple[KeyRecord | None, TeamRecord]:
    key, team = _found(snapshot, principal)
    if team is None:  # authentication has just seen it, and teams are never forgotten
        raise InternalError
    # It was all right when the call began.
    if key is not None and key.revoked_at is not None:
        raise KeyRevokedError
    require_active(team)
    return key, team


def _granted_class(name: str, key: KeyRecord | None, team: TeamRecord, snapshot: TenancySnapshot) -> ClassRecord:
    wanted = name or team.default_class
    found = snapshot.classes.get(wanted)
    is_granted = wanted in team.class_grants and (key is None or not key.class_grants or wanted in key.class_grants)
    if found is None or not is_granted:
        raise ClassNotGrantedError(wanted)
    return found
