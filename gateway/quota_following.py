"""A changed limit governs what already runs: who is live here, and what is over it now.

What is held of a limit takes its new numbers as soon as this process has read them, and generations that wait for
quota ask again. A grant that ends is no change of the tables, so that everybody is looked at once a second, too.
"""

import asyncio
import contextlib
from collections import abc
from dataclasses import dataclass
from datetime import datetime

from gateway.admission_terms import current_limits
from gateway.auth import Principal
from gateway.quota_backend import QuotaBackend
from gateway.quota_slices import OutputSlices
from gateway.quota_terms import Limit
from gateway.store.cache import TenancyCache

LOOK_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class _Live:
    principal: Principal
    model: str
    slices: OutputSlices | None


class LiveQuota:
    """The live reservations of one process."""

    def __init__(self, cache: TenancyCache, quota: QuotaBackend, now: abc.Callable[[], datetime]) -> None:
        self._cache = cache
        self._quota = quota
        self._now = now
        self._live: dict[str, _Live] = {}

    def __len__(self) -> int:
        return len(self._live)

    def add(self, generation_id: str, principal: Principal, model: str, slices: OutputSlices | None) -> None:
        """It has been admitted."""
        self._live[generation_id] = _Live(principal, model, slices)

    def remove(self, generation_id: str) -> bool:
        """It has ended; false if it had before."""
        return self._live.pop(generation_id, None) is not None

    def limits_over(self, principal: Principal, model: str) -> tuple[Limit, ...] | None:
        """Those over its requests for `model` now; None where nobody can tell."""
        return current_limits(self._cache.current, principal, model, self._now())

    async def run(self) -> None:
        """Until cancelled."""
        revision = self._cache.current.revision
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_INTERVAL_S):
                    await self._cache.newer_than(revision)
            is_changed = self._cache.current.revision != revision
            revision = self._cache.current.revision
            self.follow(wakes=is_changed)

    def follow(self, *, wakes: bool) -> None:
        """What is held takes its numbers of now; with `wakes`, whoever waits for quota asks again."""
        asked = {(live.principal.name, live.model): live for live in self._live.values()}
        for live in asked.values():
            self._quota.adopt(self.limits_over(live.principal, live.model) or ())
        for live in self._live.values():
            if wakes and live.slices is not None:
                live.slices.wake()
