"""A replica's turns at the store: what goes into one, its number, and what it means that one was answered or was not.

A turn whose answer is lost may have been taken. The next one asks for nothing but that, until it is answered: either it
had been taken, or it never will be, so that reports count once and debts go ahead of new claims. What was granted
in it is lost, and heals as what a crashed replica held does.
"""

from collections import abc
from dataclasses import dataclass
from uuid import UUID

from gateway.leases.claims import Claim, Outage, Share
from gateway.leases.shares import Shares
from gateway.leases.terms import HELD_NS, LEASE_NS, NS_PER_S
from gateway.store.quota_buckets import Answer, Batch, StoreClaim, StoreKey

HEARTBEAT_NS = NS_PER_S


@dataclass(frozen=True, slots=True)
class _Turn:
    sent_ns: int
    shares: tuple[Share, ...]
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """A claim and its verdicts. `is_late`: what was granted may not be spent any more."""

    claim: Claim
    is_granted: bool
    is_shadow_granted: bool
    is_late: bool


class Turns:
    """One at a time; `now_ns` is monotonic."""

    def __init__(self, replica: UUID, shares: Shares) -> None:
        self._replica = replica
        self._shares = shares
        self._number = 0
        self._unconfirmed: tuple[Share, ...] | None = None
        self._turn: _Turn | None = None
        self._sent_ns: int | None = None
        self._answered_ns: int | None = None
        self._num_replicas = 0
        self.outage: Outage | None = None

    def silence_ns(self, now_ns: int) -> int:
        """Since the store last answered; since for ever, where it never has."""
        return now_ns - (self._answered_ns if self._answered_ns is not None else -(1 << 62))

    @property
    def num_replicas(self) -> int:
        """That live, with this one, by the store's last answer. 0: there was none."""
        return self._num_replicas

    def plan(self, claims: tuple[Claim, ...], peeked: abc.Set[StoreKey], now_ns: int, *, is_last: bool) -> Batch | None:
        """The next turn, with these claims in it; None if there is nothing to tell or to ask.

        The last one gives everything back and takes this replica off the list.
        """
        assert self._turn is None, "one turn at a time"
        if self._unconfirmed is not None:
            assert not claims, "nobody waits for a store that is away"
            self._turn, self._sent_ns = _Turn(now_ns, (), ()), now_ns
            return Batch(self._replica, self._number + 1, HELD_NS, is_question=True)
        claimed = {part.share.key for claim in claims for part in claim.parts}
        shares = self._shares.of_turn(claimed | peeked, now_ns, is_last=is_last)
        has_just_told = self._sent_ns is not None and now_ns - self._sent_ns < HEARTBEAT_NS
        if not shares and has_just_told and not is_last:
            return None
        self._number += 2
        asks = tuple(share.ask(now_ns, is_claimed=share.key in claimed, is_last=is_last) for share in shares)
        self._turn, self._sent_ns = _Turn(now_ns, shares, claims), now_ns
        return Batch(self._replica, self._number, HELD_NS, asks, _store_claims(shares, claims), is_last)

    def answer(self, answer: Answer, now_ns: int) -> abc.Sequence[Answered]:
        """The turn was taken: every limit in it knows what it got."""
        turn, self._turn = self._turn, None
        assert turn is not None, "an answer ends a turn"
        for share in self._unconfirmed or ():
            if answer.is_new:
                share.outbox.restore()
            else:
                share.outbox.confirm()
        self._unconfirmed, self.outage = None, None
        self._answered_ns = now_ns
        self._num_replicas = answer.num_replicas or self._num_replicas
        for share, grant in zip(turn.shares, answer.grants, strict=True):
            share.receive(grant, turn.sent_ns, answer.num_replicas, now_ns)
        is_late = now_ns - turn.sent_ns >= LEASE_NS
        verdicts = zip(turn.claims, answer.verdicts[::2], answer.verdicts[1::2], strict=True)
        return [Answered(claim, needed, shadow, is_late) for claim, needed, shadow in verdicts]

    def fail(self, now_ns: int) -> tuple[Claim, ...]:
        """The turn was not taken, or its answer is lost. Returns the claims that were in it."""
        turn, self._turn = self._turn, None
        assert turn is not None, "a failure ends a turn"
        if self._unconfirmed is None:
            self._unconfirmed = turn.shares
        if self.outage is None:
            self.outage = Outage(now_ns, self._num_replicas)
        return turn.claims


def _store_claims(shares: tuple[Share, ...], claims: abc.Iterable[Claim]) -> tuple[StoreClaim, ...]:
    """Two for each: of what must be had, and of limits in SHADOW. An empty one is always granted."""
    position = {share.key: index for index, share in enumerate(shares)}
    return tuple(
        tuple((position[part.share.key], part.amount) for part in parts)
        for claim in claims
        for parts in (claim.needed, claim.shadow)
    )
