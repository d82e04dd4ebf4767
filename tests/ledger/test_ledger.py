"""From `record` to the table: on disk first, in the table once, whatever is away or dies meanwhile."""

import asyncio
import errno
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gateway import ledger as ledger_module
from gateway.spool.records import frame, scan
from gateway.store.db import Database
from gateway.store.enums import UsageSource
from gateway.store.usage import UsageEvent
from gateway.store.usage_json import decode_event, encode_event
from tests.ledger.events import eventually, make_event, make_ledger, make_uuid7, running, stored_ids

NOWHERE = "postgresql://nobody@127.0.0.1:1/none"
KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from gateway.store.db import Database
from tests.ledger.events import make_event, make_ledger, running

async def main():
    async with running(make_ledger(Database(sys.argv[1]), Path(sys.argv[2]))) as ledger:
        for number in range(int(sys.argv[3])):
            event = make_event()
            ledger.record(event)
            print("recorded", event.generation_id)
        await ledger.on_disk()
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "RETRY_S", 0.01)


def left_by_a_killed_process(url: str, root: Path, num_events: int) -> list[str]:
    """What it recorded before it died, the spool in `root`."""
    command = [sys.executable, "-c", KILLED, url, str(root), str(num_events)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert ran.returncode == -9, ran.stderr
    return [line.split()[1] for line in ran.stdout.splitlines() if line.startswith("recorded")]


def spooled(root: Path) -> list[bytes]:
    return [payload for path in root.rglob("*.seg") for payload in scan(path.read_bytes()).payloads]


async def test_what_is_recorded_gets_into_the_table_and_out_of_the_spool(database: Database, tmp_path: Path) -> None:
    events = [make_event() for _ in range(1200)]
    async with running(make_ledger(database, tmp_path)) as ledger:
        for event in events:
            ledger.record(event)
        await eventually(lambda: not ledger.num_waiting)
        report = await ledger.report()

    assert await stored_ids(database) == sorted(event.generation_id for event in events)
    assert (report.num_records, report.num_bytes, report.oldest_s, report.num_duplicates) == (0, 0, 0.0, 0)
    assert os.listdir(tmp_path) == []


async def test_it_is_on_disk_before_the_database_has_it(tmp_path: Path) -> None:
    async with running(make_ledger(Database(NOWHERE), tmp_path)) as ledger:
        event = make_event()
        ledger.record(event)
        await ledger.on_disk()

        assert [decode_event(payload) for payload in spooled(tmp_path)] == [event]
        assert ledger.num_waiting == 1
        assert (await ledger.report()).oldest_s < 60


async def test_groups_reach_the_disk_at_most_every_50_ms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    num_syncs, sync = 0, os.fdatasync

    def counted(file: int) -> None:
        nonlocal num_syncs
        num_syncs += 1
        sync(file)

    monkeypatch.setattr(os, "fdatasync", counted)
    clock = asyncio.get_running_loop().time
    async with running(make_ledger(Database(NOWHERE), tmp_path, capacity=10_000)) as ledger:
        begun_s = clock()
        for _ in range(200):
            ledger.record(make_event())
            await asyncio.sleep(0.001)
        await ledger.on_disk()
        length_s = clock() - begun_s

    assert num_syncs <= length_s / ledger_module.GATHER_S + 2


async def test_a_killed_processs_usage_is_written_by_its_successor(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    recorded = await asyncio.to_thread(left_by_a_killed_process, NOWHERE, tmp_path, 700)
    async with running(make_ledger(database, tmp_path)) as ledger:
        await ledger.adopted()
        await eventually(lambda: not ledger.num_waiting)

    assert [str(each) for each in await stored_ids(database)] == sorted(recorded)
    assert os.listdir(tmp_path) == []


async def test_usage_that_was_written_and_not_yet_forgotten_is_not_written_twice(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    recorded = await asyncio.to_thread(left_by_a_killed_process, database_url, tmp_path, 30)
    # The spool as it was before the database acknowledged: any part of it may be in the table already.
    left = [decode_event(payload) for payload in spooled(tmp_path)]
    again = [event for event in (make_event(each) for each in await stored_ids(database)) if event not in left]
    async with running(make_ledger(database, tmp_path)) as ledger:
        for event in again:
            ledger.record(event)
        await ledger.adopted()
        await eventually(lambda: not ledger.num_waiting)

    assert [str(each) for each in await stored_ids(database)] == sorted(recorded)
    assert ledger.num_duplicates >= len(again)


async def test_duplicates_are_counted(database: Database, tmp_path: Path) -> None:
    event = make_event()
    async with running(make_ledger(database, tmp_path)) as ledger:
        for _ in range(3):
            ledger.record(event)
        await eventually(lambda: not ledger.num_waiting)

    assert ledger.num_duplicates == 2


async def test_there_is_room_for_what_runs_besides_what_waits(tmp_path: Path) -> None:
    async with running(make_ledger(Database(NOWHERE), tmp_path, capacity=5)) as ledger:
        for _ in range(3):
            ledger.record(make_event())
        await ledger.on_disk()

        assert ledger.has_room(2)
        assert not ledger.has_room(3)


def break_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int, _data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)


async def test_with_disk_and_database_away_no_work_is_taken_until_one_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(make_ledger(Database(NOWHERE), tmp_path)) as ledger:
        with monkeypatch.context() as patch:
            break_the_disk(patch)
            ledger.record(make_event())
            await eventually(lambda: not ledger.has_room(1))
            assert ledger.num_waiting == 1
        await ledger.on_disk()

        assert ledger.has_room(1)
        assert len(spooled(tmp_path)) == 1


async def test_what_the_disk_does_not_take_goes_to_the_database(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = make_event()
    async with running(make_ledger(database, tmp_path)) as ledger:
        with monkeypatch.context() as patch:
            break_the_disk(patch)
            ledger.record(event)
            await ledger.on_disk()
            assert ledger.has_room(1)

    assert await stored_ids(database) == [event.generation_id]


async def test_a_stop_leaves_nothing_unwritten(database: Database, tmp_path: Path) -> None:
    ledger = make_ledger(database, tmp_path)
    await ledger.open()
    events = [make_event() for _ in range(600)]
    for event in events:
        ledger.record(event)
    await ledger.flush(timeout_s=30)
    await ledger.close()

    assert await stored_ids(database) == sorted(event.generation_id for event in events)


async def test_a_stop_without_the_database_leaves_it_to_a_successor(database: Database, tmp_path: Path) -> None:
    ledger = make_ledger(Database(NOWHERE), tmp_path)
    await ledger.open()
    event = make_event()
    ledger.record(event)
    with capture_logs() as logs:
        await ledger.flush(timeout_s=0.05)
    await ledger.close()
    assert any("stays in the spool" in line["event"] for line in logs)
    async with running(make_ledger(database, tmp_path)) as successor:
        await eventually(lambda: successor._has_adopted.is_set() and not successor.num_waiting)

    assert await stored_ids(database) == [event.generation_id]


async def test_a_spool_is_taken_over_while_its_heir_runs_already(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "ADOPTION_INTERVAL_S", 0.02)
    async with running(make_ledger(database, tmp_path)) as heir:
        await heir.adopted()
        recorded = await asyncio.to_thread(left_by_a_killed_process, NOWHERE, tmp_path, 3)
        await eventually(lambda: heir._spool._adopted or heir.num_waiting)
        await eventually(lambda: not heir.num_waiting)

    assert [str(each) for each in await stored_ids(database)] == sorted(recorded)


async def test_records_that_are_no_events_are_left_out_and_said(database: Database, tmp_path: Path) -> None:
    dead = make_ledger(database, tmp_path)
    await dead.open()
    event = make_event()
    payloads = [b"no JSON", b"{}", encode_event(event), b"[]", encode_event(replace(event, generation_id=uuid4()))]
    await dead._on_disk_thread(lambda: dead._spool.append(payloads))
    await dead.close()
    with capture_logs() as logs:
        async with running(make_ledger(database, tmp_path)) as ledger:
            await ledger.adopted()
            await eventually(lambda: not ledger.num_waiting)

    assert await stored_ids(database) == [event.generation_id]
    assert sum("dropped" in line["event"] for line in logs) == 4
    assert ledger.num_dropped == 4


async def test_an_event_of_a_day_that_may_be_gone_is_not_counted_a_second_time(
    database: Database, tmp_path: Path
) -> None:
    old, new = make_event(make_uuid7(1_700_000_000_000)), make_event()
    async with running(make_ledger(database, tmp_path, retention_days=30)) as ledger:
        ledger.record(old)
        ledger.record(new)
        await eventually(lambda: not ledger.num_waiting)
        report = await ledger.report()

    assert await stored_ids(database) == [new.generation_id]
    assert (report.num_dropped, report.num_damaged_bytes) == (1, 0)


TEXTS = st.text(max_size=20)
COUNTS = st.integers(0, 2**62)
EVENTS = st.builds(
    UsageEvent,
    generation_id=st.uuids(),
    organization_id=st.uuids(),
    team_id=st.uuids(),
    key_id=st.uuids(),
    model=TEXTS,
    priority_class=TEXTS,
    input_tokens=COUNTS,
    output_tokens=COUNTS,
    billed_tokens=COUNTS,
    finish_reason=TEXTS,
    source=st.sampled_from(UsageSource),
    finished_at=st.datetimes(timezones=st.just(UTC)),
    policy_revision=COUNTS,
    request_id=TEXTS,
    queue_ns=COUNTS,
    labels=st.dictionaries(TEXTS, TEXTS, max_size=3),
)


@given(EVENTS)
def test_an_event_comes_back_from_disk_as_it_went(event: UsageEvent) -> None:
    (payload,) = scan(frame(encode_event(event))).payloads

    assert decode_event(payload) == event


@given(st.binary(max_size=80) | st.text(max_size=80).map(str.encode))
def test_what_is_no_event_is_refused_and_nothing_else_happens(data: bytes) -> None:
    with pytest.raises(ValueError, match="no usage event"):
        decode_event(data)


def test_an_event_of_another_release_is_read() -> None:
    event = make_event()
    older = encode_event(event).replace(b',"labels":{}', b"")
    newer = encode_event(event).replace(b'{"generation_id"', b'{"colour":"red","generation_id"')

    assert decode_event(older) == decode_event(newer) == event


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=12), st.data())
def test_a_spool_cut_anywhere_and_replayed_any_number_of_times_gives_each_event_once(
    numbers: list[int], data: st.DataObject
) -> None:
    """The table is a set of ids here; with the real one `test_usage_that_was_written...` does the same."""
    events = [make_event() for _ in range(4)]
    whole = b"".join(frame(encode_event(events[number])) for number in numbers)
    cut = data.draw(st.integers(0, len(whole)))
    table: dict[object, UsageEvent] = {}
    for _ in range(data.draw(st.integers(1, 3))):
        for payload in scan(whole[:cut]).payloads:
            event = decode_event(payload)
            assert table.setdefault(event.generation_id, event) == event

    num_whole = len([at for at in range(len(numbers)) if len(frame(encode_event(events[0]))) * (at + 1) <= cut])
    assert set(table) == {events[number].generation_id for number in numbers[:num_whole]}
