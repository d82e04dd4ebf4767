"""Following changed limits in the background: it ends whenever it is cancelled."""

import asyncio
from datetime import UTC, datetime

import pytest

from gateway.quota_following import LiveQuota
from gateway.store.snapshot import EMPTY_SNAPSHOT, TenancySnapshot
from tests.quota.local_quota import LocalQuota


class Announced:
    """A cache whose next snapshot is announced by a test."""

    current: TenancySnapshot = EMPTY_SNAPSHOT

    def __init__(self) -> None:
        self.advanced = asyncio.Event()

    async def newer_than(self, _revision: int) -> TenancySnapshot:
        await self.advanced.wait()
        return self.current


@pytest.mark.parametrize("num_turns", range(5))
async def test_it_ends_when_it_is_cancelled_while_a_change_comes(num_turns: int) -> None:
    cache = Announced()
    following = asyncio.create_task(LiveQuota(cache, LocalQuota(lambda: 0), lambda: datetime.now(UTC)).run())
    await asyncio.sleep(0.01)
    cache.advanced.set()
    cache.advanced.clear()
    for _ in range(num_turns):
        await asyncio.sleep(0)

    following.cancel()

    await asyncio.wait([following], timeout=0.5)
    assert following.cancelled()
