"""What becomes of client request ids reaches the table, whoever writes it and whatever happens meanwhile."""

import asyncio
from collections import abc
from uuid import uuid4

import pytest

from gateway.servicer import request_ids
from gateway.servicer.request_ids import RequestIds
from gateway.store.generations import RequestClaim, RequestKey


class SlowTable:
    """Each statement takes effect when `opened` is set."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.num_statements = 0
        self.written: list[RequestClaim] = []

    async def __call__(self, _database: object, claims: abc.Sequence[RequestClaim]) -> None:
        if not claims:
            return
        self.num_statements += 1
        await self.opened.wait()
        self.written += claims


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> SlowTable:
    table = SlowTable()
    monkeypatch.setattr(request_ids, "WRITE_EVERY_S", 0)
    for name in ("finish_requests", "forget_requests"):
        monkeypatch.setattr(request_ids, name, table)
    return table


def end_one(ids: RequestIds, *, is_billed: bool) -> RequestClaim:
    """A generation under an id has ended."""
    row = RequestClaim(RequestKey(uuid4(), uuid4()), b"", uuid4(), uuid4(), "here")
    ids._by_generation[str(row.generation_id)] = row
    ids.ended(str(row.generation_id), is_billed=is_billed)
    return row


@pytest.mark.parametrize("is_billed", [True, False])
async def test_a_flush_beside_the_writer_writes_each_row_once_and_loses_none(
    table: SlowTable, *, is_billed: bool
) -> None:
    ids = RequestIds(None, None, None, (), "here")
    rows = [end_one(ids, is_billed=is_billed) for _ in range(3)]
    running = asyncio.create_task(ids._write_forever())
    while not table.num_statements:  # noqa: ASYNC110 - the writer announces nothing
        await asyncio.sleep(0)
    flushing = asyncio.create_task(ids.flush(timeout_s=10))
    await asyncio.sleep(0)
    rows += [end_one(ids, is_billed=is_billed) for _ in range(3)]
    table.opened.set()
    await flushing
    is_running = not running.done()
    running.cancel()
    await asyncio.wait([running])

    assert is_running
    assert (table.written, ids.num_waiting) == (rows, 0)
