"""What was used is written, or kept: whatever cuts a batch off, the next one has it."""

import asyncio
from collections import abc
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from gateway.auth import LastUsed, last_used
from gateway.store.errors import DatabaseUnavailableError
from gateway.store.key_hashes import HashRenewal
from gateway.store.records import KeySecret


class Table:
    """Where a batch is written when `opened` is set, unless it fails."""

    def __init__(self) -> None:
        self.reached, self.opened = asyncio.Event(), asyncio.Event()
        self.failure: BaseException | None = None
        self.uses: list[tuple[UUID, datetime]] = []
        self.renewals: list[HashRenewal] = []

    async def touch(self, _database: object, uses: abc.Mapping[UUID, datetime]) -> None:
        await self._write()
        self.uses += uses.items()

    async def renew(self, _database: object, renewals: abc.Sequence[HashRenewal]) -> None:
        await self._write()
        self.renewals += renewals

    async def _write(self) -> None:
        self.reached.set()
        await self.opened.wait()
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    table = Table()
    monkeypatch.setattr(last_used, "touch_last_used", table.touch)
    monkeypatch.setattr(last_used, "renew_hashes", table.renew)
    return table


@pytest.fixture
def used(table: Table) -> LastUsed:
    """A key that was used, and one whose hash is to be renewed."""
    used = LastUsed(None)
    used.note(uuid4())
    used.renew(uuid4(), b"old", KeySecret(b"new", 2))
    return used


@pytest.mark.parametrize("failure", [DatabaseUnavailableError("away"), RuntimeError("bug"), None])
async def test_a_batch_that_is_cut_off_is_in_the_next_one(
    used: LastUsed, table: Table, failure: Exception | None
) -> None:
    table.failure = failure
    flushing = asyncio.create_task(used.flush())
    await table.reached.wait()
    if failure is None:
        flushing.cancel()
    table.opened.set()
    await asyncio.wait([flushing])
    is_raised = not flushing.cancelled() and flushing.exception() is not None
    table.failure = None
    await used.flush()

    assert is_raised == isinstance(failure, RuntimeError)
    assert (len(table.uses), len(table.renewals)) == (1, 1)


async def test_a_flush_beside_another_returns_when_what_that_one_took_is_written(table: Table) -> None:
    used = LastUsed(None)
    used.note(uuid4())
    first = asyncio.create_task(used.flush())
    await table.reached.wait()
    second = asyncio.create_task(used.flush())
    await asyncio.wait([second], timeout=0.05)
    was_done = second.done()
    table.opened.set()
    await second

    assert not was_done
    assert first.done()
    assert len(table.uses) == 1


async def test_written_is_when_a_key_was_used_not_when_the_batch_was(table: Table) -> None:
    times_s = iter((100.0, 110.0, 120.0))
    used, key_id, other = LastUsed(None, lambda: next(times_s)), uuid4(), uuid4()
    for noted in (key_id, other, key_id):
        used.note(noted)
    table.opened.set()
    await used.flush()

    assert dict(table.uses) == {key_id: moment(120), other: moment(110)}


async def test_key_that_is_used_again_while_a_batch_fails_keeps_its_later_time(table: Table) -> None:
    now_s, table.failure = 100.0, DatabaseUnavailableError("away")
    used, key_id = LastUsed(None, lambda: now_s), uuid4()
    used.note(key_id)
    flushing = asyncio.create_task(used.flush())
    await table.reached.wait()
    now_s = 130.0
    used.note(key_id)
    table.opened.set()
    await flushing
    table.failure = None
    await used.flush()

    assert table.uses == [(key_id, moment(130))]


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
