"""The limits that this process holds something of, owes something, or has used just now. All others are forgotten."""

from collections import Counter, abc

from gateway.leases.claims import Share
from gateway.leases.holdings import Holding
from gateway.leases.rates import RateLease
from gateway.leases.terms import LeaseCounters
from gateway.quota_terms import Limit
from gateway.store.quota_buckets import StoreKey

MAX_DUE = 1000
"""Limits per turn, beside those that must be in it."""


class Shares:
    """By the key of the store's row."""

    def __init__(self) -> None:
        self.counters = LeaseCounters()
        self._by_key: dict[StoreKey, Share] = {}
        self._num_pins: Counter[StoreKey] = Counter()

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> abc.Iterator[Share]:
        return iter(self._by_key.values())

    def adopted(self, limit: Limit) -> Share:
        """That of the limit, which is this one from now on."""
        share = self._found(limit)
        if share.limit is not limit:
            share.adopt(limit)
        return share

    def adopt(self, limit: Limit) -> None:
        """The limit is this one from now on, if anything is known of it here."""
        share = self._by_key.get(limit.row_key)
        if share is not None:
            share.adopt(limit)

    def pin(self, limit: Limit) -> None:
        """A reservation is under it: its share stays, so that none is ever made of numbers that were valid once."""
        self._num_pins[self._found(limit).key] += 1

    def unpin(self, limit: Limit) -> Share:
        """The reservation ends. Returns the share, whatever its numbers are now."""
        key = limit.row_key
        self._num_pins[key] -= 1
        if not self._num_pins[key]:
            del self._num_pins[key]
        return self._by_key[key]

    def _found(self, limit: Limit) -> Share:
        key = limit.row_key
        share = self._by_key.get(key)
        if share is None:
            share = RateLease(key, limit, self.counters) if limit.is_rate else Holding(key, limit)
            self._by_key[key] = share
        return share

    def of_turn(self, required: abc.Set[StoreKey], now_ns: int, *, is_last: bool) -> tuple[Share, ...]:
        """What the next turn is about, sorted by key: the required ones, and what is due."""
        kept = required | self._num_pins.keys()
        for key in [key for key, share in self._by_key.items() if key not in kept and share.is_idle(now_ns)]:
            del self._by_key[key]
        must, due = [], []
        for key, share in self._by_key.items():
            if is_last or key in required:
                must.append(share)
            elif share.is_due(now_ns):
                due.append(share)
        due.sort(key=_longest_ago)
        return tuple(sorted((*must, *due[:MAX_DUE]), key=lambda share: share.key))


def _longest_ago(share: Share) -> int:
    return share.asked_ns or 0
