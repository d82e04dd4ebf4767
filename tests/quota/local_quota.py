"""A quota backend of one process, for what needs no store: the book behind the protocol of the door."""

from collections import abc

from gateway.quota import QuotaBook
from gateway.quota_terms import Charge, Denied, Limit, Remaining, Reserved, Violation


class LocalQuota:
    """Everything in this process. Nothing here waits, so that each call is one step for the event loop."""

    def __init__(self, clock_ns: abc.Callable[[], int]) -> None:
        self._book = QuotaBook()
        self._clock_ns = clock_ns

    @property
    def num_reservations(self) -> int:
        return self._book.num_reservations

    async def reserve(self, reservation_id: str, limits: abc.Sequence[Limit], charge: Charge) -> Reserved | Denied:
        return self._book.reserve(reservation_id, limits, charge, self._clock_ns())

    async def extend(
        self, reservation_id: str, more: Charge, limits: abc.Sequence[Limit] | None = None
    ) -> Reserved | Denied:
        return self._book.extend(reservation_id, more, self._clock_ns(), limits)

    def adopt(self, limits: abc.Iterable[Limit]) -> None:
        """Nothing to do: buckets have no numbers of their own, every call brings them along."""

    def settle(self, reservation_id: str, actual: Charge) -> None:
        self._book.settle(reservation_id, actual, self._clock_ns())

    def release(self, reservation_id: str) -> None:
        self._book.release(reservation_id, self._clock_ns())

    async def check(self, limits: abc.Sequence[Limit], charge: Charge) -> tuple[Violation, ...]:
        return self._book.check(limits, charge, self._clock_ns())

    async def status(self, limits: abc.Sequence[Limit]) -> abc.Sequence[Remaining]:
        return self.known(limits)

    def known(self, limits: abc.Sequence[Limit]) -> abc.Sequence[Remaining]:
        now_ns = self._clock_ns()
        return [self._book.remaining(limit, now_ns) for limit in limits]
