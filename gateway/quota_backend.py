"""Where reservations are kept: the seam between the door and the arithmetic.

The door asks and settles; whether the state is in this process or leased from a store that several gateways share is
the backend's affair.
"""

from collections import abc
from typing import Protocol

from gateway.quota_terms import Charge, Denied, Limit, Remaining, Reserved, Violation


class QuotaBackend(Protocol):
    """Holds what live requests may use. Ids are the generations'.

    A call that is cancelled while it waits has reserved nothing, or gives it back by itself.
    """

    @property
    def num_reservations(self) -> int:
        """How many are live in this process."""
        ...

    async def reserve(self, reservation_id: str, limits: abc.Sequence[Limit], charge: Charge) -> Reserved | Denied:
        """Every binding limit is charged, or none and the verdict names every one that refuses.

        Limits in SHADOW refuse nobody. Raises UnavailableError where the state cannot be reached and may not be
        guessed.
        """
        ...

    async def extend(
        self, reservation_id: str, more: Charge, limits: abc.Sequence[Limit] | None = None
    ) -> Reserved | Denied:
        """The same for more of a live reservation, `limits` being over it now; None: those that it was made with.

        Raises ReservationEndedError, and UnavailableError.
        """
        ...

    def adopt(self, limits: abc.Iterable[Limit]) -> None:
        """These numbers count from now on, also for what is held already. Never waits, never fails."""
        ...

    def settle(self, reservation_id: str, actual: Charge) -> None:
        """`actual` is charged in place of what was reserved. Idempotent; never waits, never fails."""
        ...

    def release(self, reservation_id: str) -> None:
        """Nothing was used. Idempotent; never waits, never fails."""
        ...

    async def check(self, limits: abc.Sequence[Limit], charge: Charge) -> tuple[Violation, ...]:
        """Every binding limit that `reserve` would name, by what was known a moment ago. Nothing is held or counted.

        Raises UnavailableError where `reserve` would.
        """
        ...

    async def status(self, limits: abc.Sequence[Limit]) -> abc.Sequence[Remaining]:
        """What is left of each, in their order."""
        ...

    def known(self, limits: abc.Sequence[Limit]) -> abc.Sequence[Remaining]:
        """The same as far as is known in this process; never waits."""
        ...
