"""What a request asks of the limits over it, part by part, and the claim that it is while the store has to be asked."""

from collections import abc
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from gateway.errors import StoreUnavailableError
from gateway.leases.terms import Outbox
from gateway.quota_terms import Charge, Denied, Limit, Mode, Remaining, ReservationEndedError, Reserved, Violation
from gateway.store.quota_buckets import Ask, Grant, StoreKey

Verdict = Reserved | Denied | StoreUnavailableError | ReservationEndedError


@dataclass(frozen=True, slots=True)
class Outage:
    """The store has not answered since `began_ns`; `num_replicas` were there then, 0 if this one has never asked."""

    began_ns: int
    num_replicas: int


class Share(Protocol):
    """What is common to a `RateLease` and a `Holding`; see there. Times are monotonic nanoseconds."""

    key: StoreKey
    limit: Limit
    asked_ns: int | None

    @property
    def is_strict(self) -> bool: ...

    outbox: Outbox

    def adopt(self, limit: Limit) -> None: ...
    def available(self, now_ns: int) -> int: ...
    def take(self, amount: int, now_ns: int) -> None: ...
    def hold(self, amount: int, now_ns: int) -> None: ...
    def unhold(self, amount: int, *, is_spent: bool) -> None: ...
    def note_claim(self, amount: int, now_ns: int) -> None: ...
    def spend_claimed(self, amount: int) -> None: ...
    def settle(self, reserved: int, used: int, under: Limit, now_ns: int) -> None: ...
    def find_violation(self, amount: int, now_ns: int) -> Violation | None: ...
    def find_violation_alone(self, amount: int, outage: Outage, now_ns: int) -> Violation | None: ...
    def charge_alone(self, amount: int, outage: Outage, now_ns: int) -> None: ...
    def seen_since(self, then_ns: int) -> bool: ...
    def remaining(self, now_ns: int) -> Remaining: ...
    def is_due(self, now_ns: int) -> bool: ...
    def is_idle(self, now_ns: int) -> bool: ...
    def ask(self, now_ns: int, *, is_claimed: bool, is_last: bool) -> Ask: ...
    def receive(self, grant: Grant, sent_ns: int, num_replicas: int, now_ns: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Part:
    """`amount` of one limit."""

    share: Share
    limit: Limit
    amount: int

    @property
    def is_shadow(self) -> bool:
        return self.limit.mode is Mode.SHADOW


@dataclass(frozen=True, slots=True)
class Request:
    """One reservation, or one extension of it by `charge`. Limits of which it takes nothing are in no part."""

    reservation_id: str
    limits: tuple[Limit, ...]
    charge: Charge
    parts: tuple[Part, ...]
    is_extension: bool = False


class Stage(Enum):
    """Of a claim. CANCELLED: nobody waits any more, what it still gets goes back."""

    WAITING = auto()
    SENT = auto()
    DECIDED = auto()
    CANCELLED = auto()


@dataclass(slots=True, eq=False)
class Claim:
    """A request that waits for the store. Written by the book.

    held     parts that are taken here, pending
    needed   claimed of binding limits, all or none
    shadow   claimed of limits in SHADOW, on their own: they refuse nobody
    """

    request: Request
    held: tuple[Part, ...]
    needed: tuple[Part, ...]
    shadow: tuple[Part, ...]
    stage: Stage = Stage.WAITING
    num_turns: int = 0

    @property
    def parts(self) -> abc.Sequence[Part]:
        """All that is asked of the store."""
        return (*self.needed, *self.shadow)

    @property
    def is_urgent(self) -> bool:
        """Whether it may not wait for others: it is about slots, budgets, or a limit that is always asked."""
        return any(part.share.is_strict or not part.limit.is_rate for part in self.needed)

    def undo(self) -> None:
        """Nothing is held for it any more."""
        for part in self.held:
            part.share.unhold(part.amount, is_spent=False)
        self.held = ()
