"""The door: what a request may do now, and the quota that it holds while it runs.

Decides by the tenant's record at this moment, never by what a client says about itself. Nothing here awaits, so that a
decision over key, team and organization is one step for the event loop. An admitted request is settled exactly once,
however it ends. Ceilings only: the order of what was admitted is the engine's.
"""

import time
from collections import abc
from dataclasses import dataclass

from gateway.auth import Principal
from gateway.engine_client import Node, PriorityClass
from gateway.errors import (
    ClassNotGrantedError,
    DrainingError,
    InternalError,
    LedgerUnavailableError,
    QuotaViolation,
    RateLimitedError,
    RequestExceedsLimitError,
)
from gateway.ledger import Ledger
from gateway.quota import Charge, Denied, Dimension, Limit, QuotaBook, Violation, ViolationKind
from gateway.store.cache import TenancyCache
from gateway.store.snapshot import ClassRecord, KeyRecord, PolicyRecord, TeamRecord, TenancySnapshot

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
# When a running request ends is not known: what a client does about a full concurrency limit is to ask again soon.
CONCURRENCY_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Demand:
    """What one request wants. Empty `priority_class`: the team's default."""

    generation_id: str
    model: str
    priority_class: str
    num_input_tokens: int
    max_output_tokens: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """A place past the door, held until `Admission.settle`. Everything in it comes from the tenant's record."""

    demand: Demand
    path: tuple[Node, ...]
    priority_class: PriorityClass
    max_queue_wait_ns: int | None
    cache_salt: bytes
    policy_revision: int
    num_limits: int

    @property
    def reserved_tokens(self) -> int:
        return self.demand.num_input_tokens + self.demand.max_output_tokens


class Admission:
    """The one door of this process."""

    def __init__(
        self,
        cache: TenancyCache,
        book: QuotaBook,
        ledger: Ledger,
        clock_ns: abc.Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._cache = cache
        self._book = book
        self._ledger = ledger
        self._clock_ns = clock_ns
        self._is_draining = False

    def drain(self) -> None:
        """From here on nothing is admitted."""
        self._is_draining = True

    def require_open(self) -> None:
        """Raises DrainingError, or LedgerUnavailableError where one more request could not be recorded."""
        if self._is_draining:
            raise DrainingError
        if not self._ledger.has_room(self._book.num_reservations + 1):
            raise LedgerUnavailableError

    def admit(self, principal: Principal, demand: Demand) -> Admitted:
        """The quota of `demand` is held in full.

        Raises what `require_open` raises, ClassNotGrantedError, RateLimitedError and RequestExceedsLimitError.
        """
        self.require_open()
        snapshot = self._cache.current
        key, team = _records(principal, snapshot)
        priority_class = _granted_class(demand.priority_class, key, team, snapshot)
        limits = _limits(_policies(principal, key, team), demand.model)
        charge = Charge(1, demand.num_input_tokens, demand.max_output_tokens)
        verdict = self._book.reserve(demand.generation_id, limits, charge, self._clock_ns())
        if isinstance(verdict, Denied):
            raise _refusal(verdict, charge)
        wait_ms = priority_class.max_queue_wait_ms
        return Admitted(
            demand=demand,
            path=(
                Node(str(team.organization.id), team.organization.weight),
                Node(str(team.id), team.weight),
            ),
            priority_class=PriorityClass(
                priority_class.name, priority_class.rank, priority_class.min_share, priority_class.preemptible
            ),
            max_queue_wait_ns=None if wait_ms is None else wait_ms * NS_PER_MS,
            cache_salt=team.cache_salt,
            policy_revision=snapshot.revision,
            num_limits=len(limits),
        )

    def settle(self, admitted: Admitted, num_input_tokens: int, num_output_tokens: int) -> None:
        """What was reserved and not used is free again. A second call changes nothing."""
        used = Charge(1, num_input_tokens, num_output_tokens)
        self._book.settle(admitted.demand.generation_id, used, self._clock_ns())

    def release(self, admitted: Admitted) -> None:
        """All of what was reserved is free again: the engine never took the request."""
        self._book.release(admitted.demand.generation_id, self._clock_ns())


def _records(principal: Principal, snapshot: TenancySnapshot) -> tuple[KeyRecord, TeamRecord]:
    key = snapshot.keys.get(principal.public_id)
    if key is None or key.team is None:  # authentication has just seen it, and keys are never deleted
        raise InternalError
    return key, key.team


def _granted_class(name: str, key: KeyRecord, team: TeamRecord, snapshot: TenancySnapshot) -> ClassRecord:
    wanted = name or team.default_class
    found = snapshot.classes.get(wanted)
    is_granted = wanted in team.class_grants and (not key.class_grants or wanted in key.class_grants)
    if found is None or not is_granted:
        raise ClassNotGrantedError(wanted)
    return found


def _policies(principal: Principal, key: KeyRecord, team: TeamRecord) -> dict[str, PolicyRecord]:
    """The policies over a request by the resource name of their node, from the key up."""
    organization = f"organizations/{team.organization.slug}"
    found = {f"{organization}/teams/{team.slug}": team.policy, organization: team.organization.policy}
    return found if key.policy is None else {principal.name: key.policy, **found}


def _limits(policies: abc.Mapping[str, PolicyRecord], model: str) -> tuple[Limit, ...]:
    return tuple(
        Limit(
            node=node,
            dimension=Dimension(limit.dimension.value),
            limit=limit.amount,
            period_ns=(limit.period_ms or 0) * NS_PER_MS,
            burst=limit.burst or 0,
            model=limit.model,
        )
        for node, policy in policies.items()
        for limit in policy.limits
        if limit.model in ("", model)
    )


def _refusal(denied: Denied, charge: Charge) -> RateLimitedError | RequestExceedsLimitError:
    violations = tuple(_violation(violation, charge) for violation in denied.violations)
    if not denied.is_retryable:
        too_large = (v for v in denied.violations if v.kind is ViolationKind.EXCEEDS_BURST)
        return RequestExceedsLimitError(tuple(_violation(violation, charge) for violation in too_large))
    waits_s = [(v.retry_after_ns or 0) / NS_PER_S for v in denied.violations]
    if any(v.kind is ViolationKind.CONCURRENCY for v in denied.violations):
        waits_s.append(CONCURRENCY_RETRY_S)
    return RateLimitedError(violations, retry_after_s=max(waits_s))


def _violation(violation: Violation, charge: Charge) -> QuotaViolation:
    limit = violation.limit
    dimension = limit.dimension.value.lower()
    unit = dimension.replace("_", " ")
    model = f" of {limit.model}" if limit.model else ""
    if violation.kind is ViolationKind.CONCURRENCY:
        text = f"{limit.node} may run {limit.limit} requests{model} at a time"
    elif violation.kind is ViolationKind.EXCEEDS_BURST:
        text = (
            f"the request may use {charge.amount(limit.dimension)} {unit},"
            f" {limit.node} may use {limit.burst}{model} at once"
        )
    else:
        text = (
            f"{limit.node} may use {limit.limit} {unit}{model} per {limit.period_ns / NS_PER_S:g} s,"
            f" at most {limit.burst} at once"
        )
    return QuotaViolation(subject=limit.node, dimension=dimension, description=text)
