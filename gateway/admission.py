"""The door: what a request may do now, and the quota that it holds while it runs.

Decides by the tenant's record at this moment, never by what a client says about itself. An admitted request is settled
exactly once, however it ends. Ceilings only: the order of what was admitted is the engine's.
"""

import time
from collections import abc
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

from gateway.admission_terms import (
    Admitted,
    Asked,
    Demand,
    Forecast,
    Refused,
    TenantQuota,
    ask,
    limits_of,
    limits_over,
    require_active_principal,
    together,
)
from gateway.auth import Principal
from gateway.engine_client import Node, PriorityClass
from gateway.errors import DrainingError, GatewayError, LedgerUnavailableError
from gateway.ledger import Ledger
from gateway.quota_backend import QuotaBackend
from gateway.quota_denials import DenialLog
from gateway.quota_events import denial_event
from gateway.quota_expected import ExpectedOutput
from gateway.quota_following import LiveQuota
from gateway.quota_idle import TakenIdle
from gateway.quota_limits import NodePolicy
from gateway.quota_refusals import refusal
from gateway.quota_slices import BEST_EFFORT, Holding, OutputSlices, counts_output, largest_output
from gateway.quota_terms import Charge, Denied, Limit, Mode, Remaining, Reserved, Violation
from gateway.quota_together import find_violations
from gateway.store.cache import TenancyCache
from gateway.store.enums import ReservationMode

NS_PER_MS = 1_000_000


class Idle(Protocol):
    """Who knows what the engines have to spare."""

    async def take(self, model: str, num_tokens: int) -> TakenIdle | None:
        """So many tokens of an engine of `model` that nobody else wants; None where there are none."""
        ...


class Admission:
    """The one door of this process."""

    def __init__(
        self,
        cache: TenancyCache,
        quota: QuotaBackend,
        ledger: Ledger,
        denials: DenialLog,
        idle: Idle,
        wall_clock_ns: abc.Callable[[], int] = time.time_ns,
    ) -> None:
        self._cache = cache
        self._quota = quota
        self._ledger = ledger
        self._denials = denials
        self._idle = idle
        self._wall_clock_ns = wall_clock_ns
        self._expected = ExpectedOutput()
        self._live = LiveQuota(cache, quota, self._now)
        self._is_draining = False

    async def run(self) -> None:
        """Changed limits govern what runs, until cancelled."""
        await self._live.run()

    def drain(self) -> None:
        """From here on nothing is admitted."""
        self._is_draining = True

    def require_open(self) -> None:
        """Raises DrainingError, or LedgerUnavailableError where one more request could not be recorded."""
        self._require_running()
        if not self._ledger.has_room(self._quota.num_reservations + 1):
            raise LedgerUnavailableError

    def require_unchanged(self, principal: Principal) -> None:
        """What was admitted may begin still. Raises DrainingError, KeyRevokedError or TenantSuspendedError."""
        self._require_running()
        require_active_principal(self._cache.current, principal)

    async def admit(self, principal: Principal, demand: Demand) -> Admitted:
        """The quota of `demand`, or what is expected of it, is held.

        Raises what `require_open` raises, ClassNotGrantedError, RateLimitedError, BudgetExhaustedError and
        RequestExceedsLimitError; UnavailableError where the quota cannot be asked.
        """
        self.require_open()
        asked = self._ask(principal, demand)
        decision = await self._decide(asked)
        if isinstance(decision, Refused):
            raise self._recorded(asked, decision)
        if decision.reserved.shadow_violations:
            self._note_shadows(asked, decision.reserved.shadow_violations)
        return decision

    async def require_together(self, principal: Principal, demands: abc.Sequence[Demand]) -> None:
        """All of `demands`, which are one call's, could be held at once. Nothing is. Raises what `admit` raises.

        Where every limit in the way lets work borrow, it is each one's own affair whether it may.
        """
        self.require_open()
        asked = together([self._ask(principal, demand) for demand in demands])
        violations = await find_violations(self._quota, asked.limits, asked.charge)
        if any(violation.limit.mode is not Mode.BORROW for violation in violations):
            raise self._recorded(asked, _refused(asked, Denied(violations)))

    async def forecast(self, principal: Principal, demand: Demand) -> Forecast:
        """What `admit` would do now, by what was known a moment ago. Nothing is held, counted or recorded.

        Raises what `admit` raises beside quota.
        """
        self.require_open()
        asked = self._ask(principal, demand)
        violations = await self._quota.check(asked.limits, asked.charge)
        if not violations:
            return Forecast(None, is_best_effort=False)
        if all(violation.limit.mode is Mode.BORROW for violation in violations):
            taken = await self._idle.take(demand.model, asked.num_tokens)
            if taken is not None:
                taken.give_back()
                return Forecast(None, is_best_effort=True)
        return Forecast(_refused(asked, Denied(violations)).error, is_best_effort=False)

    def limits_left(self, principal: Principal, demand: Demand) -> tuple[tuple[Limit, Remaining], ...]:
        """What is left of each limit over `demand`, as far as is known here.

        Raises what `admit` raises beside quota.
        """
        limits = ask(self._cache.current, principal, demand, self._now()).limits
        return tuple(zip(limits, self._quota.known(limits), strict=True))

    async def status(self, principal: Principal) -> TenantQuota:
        """The limits over everything that the caller may ask for, and what is left of them now."""
        snapshot = self._cache.current
        team, limits = limits_over(snapshot, principal, self._now())
        remaining = await self._quota.status(limits)
        return TenantQuota(team, snapshot.revision, tuple(zip(limits, remaining, strict=True)), self._now())

    async def left_of(self, policies: tuple[NodePolicy, ...]) -> tuple[tuple[Limit, Remaining], ...]:
        """The limits of these policies, and what is left of them now: for whoever governs, not for who is governed."""
        limits = limits_of(policies, self._now())
        return tuple(zip(limits, await self._quota.status(limits), strict=True))

    def settle(
        self,
        admitted: Admitted,
        num_input_tokens: int,
        num_output_tokens: int,
        num_cached_input_tokens: int = 0,
        *,
        is_whole: bool = True,
    ) -> None:
        """What was reserved and not used is free again. A second call changes nothing.

        `is_whole`: the output is all that it would have been; one that was cut short tells nothing of the next.
        """
        used = Charge(1, num_input_tokens, num_output_tokens, num_cached_input_tokens)
        is_first = self._live.remove(admitted.demand.generation_id)
        if admitted.slices is None:
            self._quota.settle(admitted.demand.generation_id, used)
        else:
            admitted.slices.settle(used)
        if is_first and is_whole and admitted.demand.num_beams == 1:  # what a search needs says nothing of the others
            self._expected.observe(admitted.path[-1].id, admitted.demand.model, num_output_tokens)

    def release(self, admitted: Admitted) -> None:
        """All of what was reserved is free again: the engine never took the request."""
        self._live.remove(admitted.demand.generation_id)
        if admitted.slices is None:
            self._quota.release(admitted.demand.generation_id)
        else:
            admitted.slices.release()

    def _require_running(self) -> None:
        if self._is_draining:
            raise DrainingError

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._wall_clock_ns() / 1e9, UTC)

    def _ask(self, principal: Principal, demand: Demand) -> Asked:
        """What is asked of the quota. Raises ClassNotGrantedError."""
        asked = ask(self._cache.current, principal, demand, self._now())
        # A search says nothing of its tokens before its end: nobody would know when it needs more.
        is_whole = asked.reservation is ReservationMode.HARD or demand.num_beams > 1
        if is_whole or not counts_output(asked.limits):
            return asked
        expected = self._expected.expected(str(asked.team.id), demand.model)
        room = largest_output(asked.limits, demand.num_input_tokens)
        return replace(asked, num_reserved_output_tokens=max(1, min(demand.max_output_tokens, expected, room)))

    async def _decide(self, asked: Asked) -> Admitted | Refused:
        verdict = await self._quota.reserve(asked.demand.generation_id, asked.limits, asked.charge)
        if isinstance(verdict, Reserved):
            return self._admitted_or_released(asked, verdict, is_best_effort=False)
        if all(violation.limit.mode is Mode.BORROW for violation in verdict.violations):
            lent = await self._borrow(asked)
            if lent is not None:
                return lent
        return _refused(asked, verdict)

    async def _borrow(self, asked: Asked) -> Admitted | None:
        """The request as best effort, charged to none of the limits that let it borrow; None where nothing is idle."""
        taken = await self._idle.take(asked.demand.model, asked.num_tokens)
        if taken is None:
            return None
        binding = tuple(limit for limit in asked.limits if limit.mode is not Mode.BORROW)
        try:
            verdict = await self._quota.reserve(asked.demand.generation_id, binding, asked.charge)
        except BaseException:
            taken.give_back()
            raise
        if isinstance(verdict, Denied):
            taken.give_back()
            return None
        return self._admitted_or_released(replace(asked, limits=binding), verdict, is_best_effort=True)

    def _admitted_or_released(self, asked: Asked, reserved: Reserved, *, is_best_effort: bool) -> Admitted:
        """What was reserved never outlives a failure to say so."""
        try:
            return self._admitted(asked, reserved, is_best_effort=is_best_effort)
        except BaseException:
            self._quota.release(reserved.reservation_id)
            raise

    def _admitted(self, asked: Asked, reserved: Reserved, *, is_best_effort: bool) -> Admitted:
        demand, team, wait_ms = asked.demand, asked.team, asked.priority_class.max_queue_wait_ms
        named = asked.priority_class
        own_class = PriorityClass(named.name, named.rank, named.min_share, named.preemptible)
        slices = self._slices(asked, is_best_effort=is_best_effort)
        self._live.add(demand.generation_id, asked.principal, demand.model, slices)
        return Admitted(
            demand=demand,
            path=(
                Node(str(team.organization.id), team.organization.weight),
                Node(str(team.id), team.weight),
            ),
            priority_class=BEST_EFFORT if is_best_effort else own_class,
            max_queue_wait_ns=None if wait_ms is None else wait_ms * NS_PER_MS,
            cache_salt=team.cache_salt,
            policy_revision=asked.policy_revision,
            limits_left=tuple(zip(asked.limits, self._quota.known(asked.limits), strict=True)),
            reserved=reserved,
            slices=slices,
            is_best_effort=is_best_effort,
            has_durable_usage=team.has_durable_usage,
            speculates=team.speculates,
        )

    def _recorded(self, asked: Asked, refused: Refused) -> GatewayError:
        """What the caller is told."""
        self._denials.record(asked.tenant, denial_event(asked, refused.denied.violations, refused.error.reason))
        return refused.error

    def _note_shadows(self, asked: Asked, violations: tuple[Violation, ...]) -> None:
        self._denials.record(asked.tenant, denial_event(asked, violations, ""))

    def _slices(self, asked: Asked, *, is_best_effort: bool) -> OutputSlices | None:
        """None where everything that the request may use is held, or nothing is counted."""
        demand = asked.demand
        if asked.num_reserved_output_tokens == demand.max_output_tokens:
            return None
        holding = Holding(
            generation_id=demand.generation_id,
            limits=asked.limits,
            num_input_tokens=demand.num_input_tokens,
            num_granted_tokens=asked.num_reserved_output_tokens,
            max_output_tokens=demand.max_output_tokens,
            when_exhausted=demand.when_exhausted,
            is_lent=is_best_effort,
        )
        current_limits = partial(self._live.limits_over, asked.principal, demand.model)
        return OutputSlices(self._quota, holding, partial(self._note_shadows, asked), current_limits=current_limits)


def _refused(asked: Asked, denied: Denied) -> Refused:
    return Refused(denied, refusal(denied, asked.charge, asked.now, asked.demand.num_beams))
