"""The quota backend of many gateways over one Postgres: a book, and the loop that makes its turns.

One turn is under way at a time; whoever asks meanwhile shares the next one. Nothing waits longer than a turn may take:
after that the store is away, and everybody gets what this replica may give alone.
"""

import asyncio
import random
import time
from collections import abc
from dataclasses import replace
from itertools import islice
from uuid import UUID

from uuid_utils.compat import uuid7

from gateway.errors import StoreUnavailableError
from gateway.leases.book import LeaseBook
from gateway.leases.claims import Claim, Verdict
from gateway.leases.terms import NS_PER_S, TURN_TIMEOUT_NS
from gateway.quota_terms import Charge, Denied, Limit, Remaining, ReservationEndedError, Reserved, Violation
from gateway.status import LeaseReport
from gateway.store.outage import DATABASE_ERRORS, Outage
from gateway.store.quota_buckets import QuotaStore

TICK_S = 0.2
"""Between turns in which nobody waits."""

TURN_TIMEOUT_S = TURN_TIMEOUT_NS / NS_PER_S

CHECK_NS = NS_PER_S
"""What a dry run may go by is so old at most."""

RETRY_S = 0.25
"""Between turns while the store is away, give or take a half, so that replicas do not come back as one."""

TIDY_INTERVAL_S = 3600.0

LOST: tuple[type[Exception], ...] = (*DATABASE_ERRORS, TimeoutError)


class LeasedQuota:
    """See QuotaBackend. Use as: `run` until cancelled; `close` gives back what is held."""

    def __init__(
        self,
        store: QuotaStore,
        replica: UUID | None = None,
        clock_ns: abc.Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._store = store
        self._book = LeaseBook(replica or uuid7())
        self._clock_ns = clock_ns
        self._futures: dict[int, asyncio.Future[Verdict]] = {}
        self._is_needed = asyncio.Event()
        self._turning = asyncio.Lock()
        self._turn_ended = asyncio.Event()
        self._outage = Outage("quotas cannot be shared")
        self._is_closed = False
        self._refresh_s = 0.0

    @property
    def num_reservations(self) -> int:
        return self._book.num_reservations

    def report(self) -> LeaseReport:
        """For the metrics."""
        counters = self._book.counters
        return LeaseReport(
            granted=counters.granted,
            returned=counters.returned,
            expired=counters.expired,
            missed=counters.missed,
            overdrawn=counters.overdrawn,
            refresh_s=self._refresh_s,
            num_replicas=self._book.num_replicas,
        )

    def parts_left(self, is_wanted: abc.Callable[[Limit], bool], max_limits: int) -> abc.Sequence[tuple[Limit, float]]:
        """See `LeaseBook.parts_left`; of at most `max_limits`."""
        return list(islice(self._book.parts_left(is_wanted, self._clock_ns()), max_limits))

    async def reserve(self, reservation_id: str, limits: abc.Sequence[Limit], charge: Charge) -> Reserved | Denied:
        return await self._decided(self._book.reserve(reservation_id, limits, charge, self._clock_ns()))

    async def extend(
        self, reservation_id: str, more: Charge, limits: abc.Sequence[Limit] | None = None
    ) -> Reserved | Denied:
        return await self._decided(self._book.extend(reservation_id, more, self._clock_ns(), limits))

    def adopt(self, limits: abc.Iterable[Limit]) -> None:
        self._book.adopt(limits)

    def settle(self, reservation_id: str, actual: Charge) -> None:
        self._book.settle(reservation_id, actual, self._clock_ns())

    def release(self, reservation_id: str) -> None:
        self._book.release(reservation_id, self._clock_ns())

    async def status(self, limits: abc.Sequence[Limit]) -> abc.Sequence[Remaining]:
        """As of now; where the store is away, as far as is known here."""
        await self._look(limits)
        return self.known(limits)

    async def check(self, limits: abc.Sequence[Limit], charge: Charge) -> tuple[Violation, ...]:
        """Looks at a limit once a second at most, however often it is asked."""
        if not self._book.is_known(limits, self._clock_ns() - CHECK_NS):
            await self._look(limits)
        return self._book.check(limits, charge, self._clock_ns())

    async def _look(self, limits: abc.Sequence[Limit]) -> None:
        """What is known of them is as of now, if the store is there."""
        if not self._book.is_cut_off and not self._is_closed:
            self._book.peek(limits)
            turn_ended = self._turn_ended
            self._is_needed.set()
            await turn_ended.wait()

    def known(self, limits: abc.Sequence[Limit]) -> abc.Sequence[Remaining]:
        now_ns = self._clock_ns()
        return [self._book.remaining(limit, now_ns) for limit in limits]

    async def run(self) -> None:
        """Make turns, and now and then have the store tidied, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._make_turns())
            group.create_task(self._tidy())

    async def close(self) -> None:
        """Nothing is held here any more, if the store can be told. What settles after this stays untold."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._book.is_cut_off:
            await self._turn()
        if not self._book.is_cut_off:
            await self._turn(is_last=True)
        for future in self._futures.values():
            if not future.done():
                future.set_exception(StoreUnavailableError())
        self._turn_ended.set()
        await self._store.close()

    async def _make_turns(self) -> None:
        while True:
            await self._wait()
            if not self._is_closed:
                await self._turn()

    async def _tidy(self) -> None:
        outage = Outage("idle quotas not forgotten")
        while True:
            await asyncio.sleep(TIDY_INTERVAL_S * random.uniform(0.5, 1.5))  # noqa: S311 - so that replicas take turns
            try:
                await self._store.tidy()
                outage.end()
            except DATABASE_ERRORS as error:
                outage.note(error)

    async def _decided(self, verdict: Reserved | Denied | Claim) -> Reserved | Denied:
        if not isinstance(verdict, Claim):
            return verdict
        if self._is_closed:  # no turn will be made for it
            self._book.abandon(verdict, self._clock_ns())
            raise StoreUnavailableError
        future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._futures[id(verdict)] = future
        self._is_needed.set()
        try:
            decided = await future
        except (asyncio.CancelledError, StoreUnavailableError):
            self._book.abandon(verdict, self._clock_ns())
            raise
        finally:
            del self._futures[id(verdict)]
        if isinstance(decided, StoreUnavailableError | ReservationEndedError):
            raise decided
        return replace(decided, is_lease_miss=True) if isinstance(decided, Reserved) else decided

    async def _wait(self) -> None:
        """Return when the next turn is due."""
        pause_s = RETRY_S * random.uniform(0.5, 1.5) if self._book.is_cut_off else TICK_S  # noqa: S311
        until_ns = self._clock_ns() + round(pause_s * NS_PER_S)
        while True:
            self._is_needed.clear()
            now_ns = self._clock_ns()
            needed_ns = self._book.next_turn_ns(now_ns)
            at_ns = until_ns if needed_ns is None else min(until_ns, needed_ns)
            if at_ns <= now_ns:
                return
            try:
                async with asyncio.timeout((at_ns - now_ns) / NS_PER_S):
                    await self._is_needed.wait()
            except TimeoutError:
                return

    async def _turn(self, *, is_last: bool = False) -> None:
        async with self._turning:
            turn_ended, self._turn_ended = self._turn_ended, asyncio.Event()
            sent_ns = self._clock_ns()
            batch = self._book.plan(sent_ns, is_last=is_last)
            if batch is None:
                turn_ended.set()
                return
            try:
                async with asyncio.timeout(TURN_TIMEOUT_S):
                    answer = await self._store.exchange(batch)
            except LOST as error:
                self._outage.note(error)
                self._tell(self._book.fail(self._clock_ns()))
            except asyncio.CancelledError:
                self._tell(self._book.fail(self._clock_ns()))
                raise
            else:
                self._outage.end()
                self._refresh_s = (self._clock_ns() - sent_ns) / NS_PER_S
                self._tell(self._book.answer(answer, self._clock_ns()))
            finally:
                turn_ended.set()

    def _tell(self, decided: abc.Iterable[tuple[Claim, Verdict]]) -> None:
        for claim, verdict in decided:
            future = self._futures.get(id(claim))
            if future is not None and not future.done():
                future.set_result(verdict)
