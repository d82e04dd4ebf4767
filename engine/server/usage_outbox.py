"""Usage of ended requests, until whoever keeps the ledger has it. asyncio thread only.

Each request names its ledger. A call for a ledger is given what belongs to it, and what belongs to ledgers that nobody
has called for in `orphan_after_s`: the process that kept one is gone, and what it wrote last went with it. An entry is
with one call at a time, and again for others if that call ends before it has acknowledged. Of too many the oldest go.
"""

import asyncio
import time
from collections import Counter, abc, deque
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from evenflow.engine.v1 import engine_pb2 as pb

log = structlog.get_logger(__name__)

CAPACITY = 100_000  # some 100 MB, which is reached only while no gateway is there
ORPHAN_AFTER_S = 5.0  # a gateway that restarts its connection is back within a second
MAX_TAKEN = 1000


@dataclass(frozen=True, slots=True)
class Account:
    """Where a request's usage goes, and what the ledger wants to hear with it. Empty `ledger_id`: nowhere.

    `sender_id` is who of the tenant sent it, as the gateway says.
    """

    ledger_id: str = ""
    usage_tag: bytes = b""
    sender_id: str = ""


NO_ACCOUNT = Account()


@dataclass(frozen=True, slots=True)
class UsageCounts:
    """Entries that no ledger has acknowledged, and those that were dropped since the engine began."""

    num_waiting: int
    num_dropped: int


class _Entry(NamedTuple):
    ledger_id: str
    generation_id: str
    usage: bytes
    """A StreamUsageResponse without its sequence. Serialized, as messages take three times as much memory."""


class UsageOutbox:
    """What is not acknowledged yet, in the order in which it ended."""

    def __init__(
        self,
        capacity: int = CAPACITY,
        orphan_after_s: float = ORPHAN_AFTER_S,
        clock: abc.Callable[[], float] = time.monotonic,
    ) -> None:
        self._capacity = capacity
        self._orphan_after_s = orphan_after_s
        self._clock = clock
        self._entries: dict[int, _Entry] = {}
        self._numbers: dict[str, int] = {}  # of entries, by generation
        # Numbers of entries that no call has, by ledger; some of them may have been dropped.
        self._free: dict[str, deque[int]] = {}
        self._num_calls: Counter[str] = Counter()
        self._gone_since_s: dict[str, float] = {}
        self._next_number = 0
        self._changed = asyncio.Event()
        self.num_dropped = 0
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def counts(self) -> UsageCounts:
        return UsageCounts(len(self._entries), self.num_dropped)

    def add(self, ledger_id: str, usage: pb.StreamUsageResponse) -> None:
        """`usage` is kept for the ledger; `sequence` is filled in by the call that tells it."""
        if len(self._entries) >= self._capacity:
            self._drop_oldest()
        self._entries[self._next_number] = _Entry(ledger_id, usage.generation_id, usage.SerializeToString())
        self._numbers[usage.generation_id] = self._next_number
        self._offer(ledger_id, self._next_number)
        self._next_number += 1
        self._wake()

    def note_kept(self, generation_id: str, num_kept_tokens: int) -> None:
        """The output ended with its `num_kept_tokens`-th token. Nothing happens where a ledger has it already."""
        number = self._numbers.get(generation_id)
        if number is not None:
            usage = pb.StreamUsageResponse.FromString(self._entries[number].usage)
            keep(usage, num_kept_tokens)
            self._entries[number] = self._entries[number]._replace(usage=usage.SerializeToString())

    def open(self, ledger_id: str) -> "UsageCall":
        """A call for the ledger, to be closed."""
        self._num_calls[ledger_id] += 1
        self._gone_since_s.pop(ledger_id, None)
        return UsageCall(self, ledger_id)

    def close(self) -> None:
        """Every call ends."""
        self.is_closed = True
        self._wake()

    def claim(self, ledger_id: str) -> list[tuple[int, bytes]]:
        """What is there now for a call of the ledger, which has it from here on."""
        claimed: list[tuple[int, bytes]] = []
        for each in self._claimable(ledger_id):
            numbers = self._free[each]
            while numbers and len(claimed) < MAX_TAKEN:
                number = numbers.popleft()
                if number in self._entries:
                    claimed.append((number, self._entries[number].usage))
            if not numbers:
                del self._free[each]
                self._gone_since_s.pop(each, None)
        return claimed

    def settle(self, numbers: abc.Iterable[int]) -> None:
        """The entries are in a ledger."""
        for number in numbers:
            if number in self._entries:
                self._forget(number)

    def release(self, ledger_id: str, numbers: abc.Iterable[int]) -> None:
        """A call of the ledger is over; it did not acknowledge these entries."""
        self._num_calls[ledger_id] -= 1
        if not self._num_calls[ledger_id]:
            del self._num_calls[ledger_id]
            if ledger_id in self._free:
                self._gone_since_s[ledger_id] = self._clock()
        for number in reversed(tuple(numbers)):  # they are older than what is free
            if number in self._entries:
                self._offer(self._entries[number].ledger_id, number, is_oldest=True)
        self._wake()

    async def changed(self) -> None:
        """Returns when there may be more to claim: something was added or released, or a ledger was given up."""
        waits_s = [self._orphaned_at_s(each) - self._clock() for each in self._free if each not in self._num_calls]
        try:
            async with asyncio.timeout(max(0.0, min(waits_s)) if waits_s else None):
                await self._changed.wait()
        except TimeoutError:
            return

    def _claimable(self, ledger_id: str) -> list[str]:
        now_s = self._clock()
        return [
            each
            for each in self._free
            if each == ledger_id or (each not in self._num_calls and self._orphaned_at_s(each) <= now_s)
        ]

    def _orphaned_at_s(self, ledger_id: str) -> float:
        return self._gone_since_s[ledger_id] + self._orphan_after_s

    def _offer(self, ledger_id: str, number: int, *, is_oldest: bool = False) -> None:
        numbers = self._free.setdefault(ledger_id, deque())
        if is_oldest:
            numbers.appendleft(number)
        else:
            numbers.append(number)
        if ledger_id not in self._num_calls:
            self._gone_since_s.setdefault(ledger_id, self._clock())

    def _drop_oldest(self) -> None:
        number = next(iter(self._entries))
        ledger_id = self._forget(number)
        if (numbers := self._free.get(ledger_id)) and numbers[0] == number:
            numbers.popleft()
        if not self.num_dropped:
            log.error("usage is dropped that no gateway has acknowledged", num_kept=self._capacity)
        self.num_dropped += 1

    def _forget(self, number: int) -> str:
        """The ledger that the entry was for."""
        entry = self._entries.pop(number)
        self._numbers.pop(entry.generation_id, None)
        return entry.ledger_id

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def keep(usage: pb.StreamUsageResponse, num_kept_tokens: int) -> None:
    """Of the output of `usage` so many tokens belong to the request."""
    usage.kept_output_tokens = max(0, min(num_kept_tokens, usage.usage.output_tokens))


class UsageCall:
    """One caller's share of the outbox. Sequences count from 1 in each call."""

    def __init__(self, outbox: UsageOutbox, ledger_id: str) -> None:
        self._outbox = outbox
        self._ledger_id = ledger_id
        self._told: deque[tuple[int, int]] = deque()  # (sequence, number of the entry)
        self._sequence = 0

    async def take(self) -> list[bytes]:
        """Messages of what this call was not told yet, at least one; nothing where the outbox is closed."""
        while not self._outbox.is_closed:
            if claimed := self._outbox.claim(self._ledger_id):
                return [self._tell(number, usage) for number, usage in claimed]
            await self._outbox.changed()
        return []

    def acknowledge(self, sequence: int) -> None:
        """The ledger has everything that this call was told up to `sequence`."""
        settled = []
        while self._told and self._told[0][0] <= sequence:
            settled.append(self._told.popleft()[1])
        self._outbox.settle(settled)

    def note_kept(self, generation_id: str, num_kept_tokens: int) -> None:
        """As UsageOutbox.note_kept."""
        self._outbox.note_kept(generation_id, num_kept_tokens)

    def close(self) -> None:
        """What was told and not acknowledged is told again to others."""
        self._outbox.release(self._ledger_id, [number for _, number in self._told])
        self._told.clear()

    def _tell(self, number: int, usage: bytes) -> bytes:
        self._sequence += 1
        self._told.append((self._sequence, number))
        # One serialized message after another is both of them merged.
        return usage + pb.StreamUsageResponse(sequence=self._sequence).SerializeToString()
