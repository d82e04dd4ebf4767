"""All that one replica knows of quotas: reservations, what it holds of each limit, and who waits for the store.

A state machine without I/O or clock: `reserve` decides here where it can, and else returns a claim; `plan` makes the
next turn at the store; `answer` or `fail` ends it and decides the claims. `now_ns` is monotonic. Nothing here awaits,
so that a reservation over the whole path is one step for the event loop.
"""

from collections import abc
from uuid import UUID

from gateway.errors import StoreUnavailableError
from gateway.leases.claims import Claim, Part, Request, Stage, Verdict
from gateway.leases.decisions import (
    Granted,
    decide,
    decide_alone,
    find_violations,
    finish,
    give_back,
    give_back_all,
    momentary,
)
from gateway.leases.shares import Shares
from gateway.leases.terms import NS_PER_S, LeaseCounters
from gateway.leases.turns import Answered, Turns
from gateway.quota_reservations import Reservation
from gateway.quota_terms import (
    NOTHING,
    Charge,
    Denied,
    Limit,
    Mode,
    Remaining,
    ReservationEndedError,
    Reserved,
    Violation,
)
from gateway.store.quota_buckets import Answer, Batch, StoreKey

FAIL_CLOSED_NS = 5 * NS_PER_S
"""So long after the last answer, tenants that prefer no service to unsure service get none."""

SPACING_NS = NS_PER_S // 20
"""Claims on a leased limit that was asked for just now wait for each other so long."""

MAX_TURNS = 4
"""So often a claim is made that was refused for a reason that has passed."""


class LeaseBook:
    """The quota of one replica."""

    def __init__(self, replica: UUID) -> None:
        self._shares = Shares()
        self._turns = Turns(replica, self._shares)
        self._reservations: dict[str, Reservation] = {}
        self._waiting: list[Claim] = []
        self._peeked: set[StoreKey] = set()

    @property
    def counters(self) -> LeaseCounters:
        return self._shares.counters

    @property
    def num_reservations(self) -> int:
        return len(self._reservations)

    @property
    def num_shares(self) -> int:
        return len(self._shares)

    @property
    def num_replicas(self) -> int:
        return self._turns.num_replicas

    @property
    def is_cut_off(self) -> bool:
        """Whether the last turn failed."""
        return self._turns.outage is not None

    def reserve(
        self, reservation_id: str, limits: abc.Sequence[Limit], charge: Charge, now_ns: int
    ) -> Reserved | Denied | Claim:
        """Charge every limit or none, or return what the store has to be asked for.

        Raises ValueError if the id is live or two limits share a bucket, and StoreUnavailableError.
        """
        if reservation_id in self._reservations:
            raise ValueError(f"reservation {reservation_id} is live")
        if len({limit.key for limit in limits}) != len(limits):
            raise ValueError("two limits share a node, a dimension and a model")
        parts = tuple(
            Part(self._shares.adopted(limit), limit, amount) for limit in limits if (amount := limit.amount(charge))
        )
        return self._decide(Request(reservation_id, tuple(limits), charge, parts), now_ns)

    def extend(
        self, reservation_id: str, more: Charge, now_ns: int, limits: abc.Iterable[Limit] | None = None
    ) -> Reserved | Denied | Claim:
        """The same for more of a live reservation, `limits` being over it now; None: its own.

        Raises ReservationEndedError, StoreUnavailableError.
        """
        reservation = self._reservations.get(reservation_id)
        if reservation is None:
            raise ReservationEndedError(reservation_id)
        current = reservation.limits_of_more(limits)
        parts = tuple(
            Part(self._shares.adopted(limit), limit, amount) for limit in current if (amount := limit.amount(more))
        )
        request = Request(reservation_id, current, more, parts, is_extension=True)
        return self._decide(request, now_ns)

    def settle(self, reservation_id: str, actual: Charge, now_ns: int) -> bool:
        """Replace the reserved charge by the actual one and end the request; false, and nothing done, if it has ended.

        The difference counts at the limit under which it was reserved, also if that has changed since.
        """
        reservation = self._reservations.pop(reservation_id, None)
        if reservation is None:
            return False
        for held in reservation.held:
            self._shares.unpin(held.limit).settle(held.reserved, held.used(actual), held.limit, now_ns)
        return True

    def release(self, reservation_id: str, now_ns: int) -> bool:
        """Settle with nothing used: the request never ran."""
        return self.settle(reservation_id, NOTHING, now_ns)

    def abandon(self, claim: Claim, now_ns: int) -> None:
        """Nobody waits for the claim any more: what it has or gets goes back."""
        if claim.stage is Stage.WAITING:
            self._waiting.remove(claim)
            claim.undo()
        elif claim.stage is Stage.DECIDED and not claim.request.is_extension:
            self.settle(claim.request.reservation_id, NOTHING, now_ns)
        claim.stage = Stage.CANCELLED

    def adopt(self, limits: abc.Iterable[Limit]) -> None:
        """These numbers count from now on, for what is held here of the limits too."""
        for limit in limits:
            self._shares.adopt(limit)

    def is_known(self, limits: abc.Iterable[Limit], since_ns: int) -> bool:
        """Whether the store has spoken of all of them since then."""
        return all(self._shares.adopted(limit).seen_since(since_ns) for limit in limits)

    def check(self, limits: abc.Iterable[Limit], charge: Charge, now_ns: int) -> tuple[Violation, ...]:
        """Every binding limit that would refuse `charge`, as far as is known here. Nothing is taken or counted.

        Raises StoreUnavailableError.
        """
        binding = [limit for limit in limits if limit.mode is not Mode.SHADOW]
        parts = [
            Part(self._shares.adopted(limit), limit, amount) for limit in binding if (amount := limit.amount(charge))
        ]
        if self._turns.outage is not None:
            self._require_sure(binding, now_ns)
        return find_violations(parts, self._turns.outage, now_ns)

    def peek(self, limits: abc.Iterable[Limit]) -> None:
        """The next turn asks for these, whether or not anything is needed of them."""
        self._peeked.update(self._shares.adopted(limit).key for limit in limits)

    def remaining(self, limit: Limit, now_ns: int) -> Remaining:
        """What one more request could take, as far as is known here; a turn after `peek` makes that fresh."""
        return self._shares.adopted(limit).remaining(now_ns)

    def parts_left(self, is_wanted: abc.Callable[[Limit], bool], now_ns: int) -> abc.Iterator[tuple[Limit, float]]:
        """Of the limits that were used just now and are wanted, what part is left, 0 to 1, as far as is known here."""
        for share in self._shares:
            limit = share.limit
            if is_wanted(limit):
                yield limit, min(1.0, max(0, share.remaining(now_ns).amount) / (limit.burst or limit.limit))

    def next_turn_ns(self, now_ns: int) -> int | None:
        """When a turn should be made for those who wait; None if nobody does."""
        if self._peeked or any(claim.is_urgent for claim in self._waiting):
            return now_ns
        return min((_due_ns(claim, now_ns) for claim in self._waiting), default=None)

    def plan(self, now_ns: int, *, is_last: bool = False) -> Batch | None:
        """The next turn, if there is anything to tell or to ask; see `Turns.plan`."""
        claims, peeked = tuple(self._waiting), self._peeked
        batch = self._turns.plan(claims, peeked, now_ns, is_last=is_last)
        self._waiting, self._peeked = [], set()
        for claim in claims:
            claim.stage, claim.num_turns = Stage.SENT, claim.num_turns + 1
        return batch

    def answer(self, answer: Answer, now_ns: int) -> abc.Sequence[tuple[Claim, Verdict]]:
        """The turn was taken. Returns the claims that it decided."""
        answers = self._turns.answer(answer, now_ns)
        concluded = [(answered.claim, self._conclude(answered, now_ns)) for answered in answers]
        return [(claim, verdict) for claim, verdict in concluded if verdict is not None]

    def fail(self, now_ns: int) -> abc.Sequence[tuple[Claim, Verdict]]:
        """The turn was not taken, or its answer is lost. Everybody who waits gets what this replica may give alone."""
        claims, self._waiting = (*self._turns.fail(now_ns), *self._waiting), []
        decided: list[tuple[Claim, Verdict]] = []
        for claim in claims:
            claim.undo()
            if claim.stage is Stage.CANCELLED:
                continue
            claim.stage = Stage.DECIDED
            try:
                verdict: Verdict | Claim = self._decide(claim.request, now_ns)
            except (StoreUnavailableError, ReservationEndedError) as error:
                verdict = error
            assert not isinstance(verdict, Claim), "in an outage nobody waits"
            decided.append((claim, verdict))
        return decided

    def _decide(self, request: Request, now_ns: int) -> Reserved | Denied | Claim:
        """Raises StoreUnavailableError, ReservationEndedError."""
        outage = self._turns.outage
        if outage is None:
            result = decide(request, now_ns)
            if isinstance(result, Claim):
                self._waiting.append(result)
                return result
            return self._recorded(request, result, now_ns)
        self._require_sure(request.limits, now_ns)
        return self._recorded(request, decide_alone(request, outage, now_ns), now_ns)

    def _require_sure(self, limits: abc.Iterable[Limit], now_ns: int) -> None:
        """In an outage. Raises StoreUnavailableError if the tenant prefers no service to unsure service."""
        is_unsure = self._turns.silence_ns(now_ns) >= FAIL_CLOSED_NS
        if is_unsure and any(limit.fails_closed and limit.mode is not Mode.SHADOW for limit in limits):
            raise StoreUnavailableError

    def _conclude(self, answered: Answered, now_ns: int) -> Verdict | None:
        """The verdict on a claim; None if nobody waits for it, or it goes into another turn."""
        claim = answered.claim
        verdicts = {"is_granted": answered.is_granted, "is_shadow_granted": answered.is_shadow_granted}
        if claim.stage is Stage.CANCELLED:
            give_back_all(claim, now_ns, **verdicts)
            return None
        result: Granted | Denied | None = None
        if answered.is_late:
            give_back_all(claim, now_ns, **verdicts)
        else:
            found = finish(claim, now_ns, **verdicts)
            result = found if isinstance(found, Granted) else Denied(found) if found else None
        if result is None and claim.num_turns >= MAX_TURNS:
            result = momentary(claim.needed or claim.shadow)
        again = result or decide(claim.request, now_ns)
        if isinstance(again, Claim):
            claim.held, claim.needed, claim.shadow, claim.stage = again.held, again.needed, again.shadow, Stage.WAITING
            self._waiting.append(claim)
            return None
        claim.stage = Stage.DECIDED
        try:
            return self._recorded(claim.request, again, now_ns)
        except ReservationEndedError as error:
            return error

    def _recorded(self, request: Request, result: Granted | Denied, now_ns: int) -> Reserved | Denied:
        """A grant is a reservation from here on, or part of one. Raises ReservationEndedError."""
        if isinstance(result, Denied):
            return result
        name = request.reservation_id
        if not request.is_extension:
            assert name not in self._reservations, "ids are made once"
            self._keep(name, Reservation.of(result.charged, request.limits, request.charge), 0)
            return Reserved(name, request.charge, result.shadow_violations)
        reservation = self._reservations.get(name)
        if reservation is None:  # it ended while this waited
            give_back(request.parts, now_ns)
            raise ReservationEndedError(name)
        extended = reservation.extended(request.limits, request.charge)
        self._keep(name, extended, len(reservation.held))
        return Reserved(name, extended.charge, result.shadow_violations)

    def _keep(self, name: str, reservation: Reservation, num_pinned: int) -> None:
        """Its limits are not forgotten before it ends; the first `num_pinned` parts have seen to that."""
        self._reservations[name] = reservation
        for held in reservation.held[num_pinned:]:
            self._shares.pin(held.limit)


def _due_ns(claim: Claim, now_ns: int) -> int:
    """When a claim that is not urgent should be made."""
    asked = (part.share.asked_ns for part in claim.parts)
    return max((ns + SPACING_NS for ns in asked if ns is not None), default=now_ns)
