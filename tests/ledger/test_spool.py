"""The spool gives back what was appended, in order, whatever end its process or its disk came to."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.spool import MAX_PAYLOAD_BYTES, Spool
from gateway.spool.records import HEADER_BYTES, MARKER, frame, scan
from gateway.spool.segment import DAMAGED_SUFFIX, SUFFIX
from gateway.spool.spool import LOCK_FILE

PAYLOADS = st.lists(st.one_of(st.binary(max_size=40), st.just(MARKER), st.just(frame(b"inner"))), max_size=8)


def opened(root: Path, segment_bytes: int = 1 << 20) -> Spool:
    spool = Spool(root, segment_bytes)
    spool.open()
    return spool


def die(spool: Spool) -> None:
    """What is left of a process that was killed: its locks are free, its files are as they are."""
    for home in spool._homes():
        home.release()


def drained(spool: Spool, limit: int = 3) -> list[bytes]:
    """Everything in the spool, acknowledged as it is read."""
    found: list[bytes] = []
    while batch := spool.head(limit):
        found += batch
        spool.acknowledge(len(batch))
    return found


def files_of(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def segment_of(root: Path) -> Path:
    (path,) = root.rglob(f"*{SUFFIX}")
    return path


@given(PAYLOADS)
def test_what_was_framed_is_scanned_back(payloads: list[bytes]) -> None:
    found = scan(b"".join(map(frame, payloads)))

    assert (list(found.payloads), found.num_torn_bytes, found.num_damaged_bytes) == (payloads, 0, 0)


@settings(max_examples=300)
@given(PAYLOADS, st.data())
def test_a_file_that_ends_anywhere_holds_every_record_before_its_end(
    payloads: list[bytes], data: st.DataObject
) -> None:
    whole = b"".join(map(frame, payloads))
    end = data.draw(st.integers(0, len(whole)))
    ends = [sum(len(frame(payload)) for payload in payloads[: count + 1]) for count in range(len(payloads))]
    num_whole = sum(at <= end for at in ends)

    found = scan(whole[:end])

    assert list(found.payloads[:num_whole]) == payloads[:num_whole]
    # Of a record whose payload looks like a record, that one is found where its own frame was cut.
    assert found.num_torn_bytes + found.num_damaged_bytes <= HEADER_BYTES + 60


@settings(max_examples=300)
@given(st.lists(st.text(max_size=30), min_size=1, max_size=6), st.data())
def test_damage_costs_the_record_that_it_is_in_and_no_other(texts: list[str], data: st.DataObject) -> None:
    payloads = [text.encode() for text in texts]
    whole = bytearray(b"".join(map(frame, payloads)))
    at, flip = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(1, 255))
    whole[at] ^= flip
    starts = [sum(len(frame(payload)) for payload in payloads[:count]) for count in range(len(payloads))]
    hit = max(index for index, start in enumerate(starts) if start <= at)

    found = scan(bytes(whole))

    assert list(found.payloads) == payloads[:hit] + payloads[hit + 1 :]
    assert found.num_torn_bytes + found.num_damaged_bytes == len(frame(payloads[hit]))


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_noise_is_no_record(noise: bytes) -> None:
    assert scan(noise).payloads == ()
    assert scan(noise.replace(MARKER[:1], b"") + frame(b"kept")).payloads == (b"kept",)


def test_zeros_at_the_end_of_a_file_are_no_records(tmp_path: Path) -> None:
    """What a file system shows of an append whose data did not reach the disk."""
    found = scan(frame(b"kept") + bytes(64))

    assert (found.payloads, found.num_torn_bytes) == ((b"kept",), 64)


def test_a_payload_that_could_not_be_read_back_is_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        frame(bytes(MAX_PAYLOAD_BYTES + 1))


class SpoolMachine(RuleBasedStateMachine):
    """Appends, reads, acknowledgements and deaths; the model is one list."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.expected: list[bytes] = []
        self.num_appended = 0
        self.num_heads = 0

    @initialize(segment_bytes=st.sampled_from([1, 60, 200, 1 << 20]))
    def begin(self, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.spool = opened(self.root, segment_bytes)

    @rule(count=st.integers(1, 6))
    def append(self, count: int) -> None:
        payloads = [f"record {self.num_appended + index}".encode() for index in range(count)]
        self.num_appended += count
        self.spool.append(payloads)
        self.expected += payloads

    @rule(limit=st.integers(1, 5), data=st.data())
    def read(self, limit: int, data: st.DataObject) -> None:
        head = self.spool.head(limit)
        assert head == self.expected[: len(head)]
        assert bool(head) == bool(self.expected)
        if head:
            num_acknowledged = data.draw(st.integers(0, len(head)))
            self.spool.acknowledge(num_acknowledged)
            del self.expected[:num_acknowledged]

    @rule()
    def close_and_open(self) -> None:
        self.spool.close()
        self.reopen()

    @rule()
    def be_killed(self) -> None:
        die(self.spool)
        self.reopen()

    @rule(torn=st.binary(min_size=1, max_size=20))
    def be_killed_while_writing(self, torn: bytes) -> None:
        own = self.spool._own
        assert own is not None
        if own.segments:
            with own.segments[-1].path.open("ab") as file:
                file.write(frame(b"never acknowledged to anybody")[: len(torn)])
        self.be_killed()

    def reopen(self) -> None:
        """What comes back may begin with records of the last segment that were acknowledged: those come twice."""
        self.spool = opened(self.root, self.segment_bytes)
        self.spool.adopt()
        found: list[bytes] = []
        for home in self.spool._homes():
            for segment in home.segments:
                found += segment.head(1000)
        assert found[len(found) - len(self.expected) :] == self.expected
        self.expected = found

    @invariant()
    def counts_agree(self) -> None:
        assert self.spool.num_records == len(self.expected)
        assert (self.spool.oldest_unix_s is None) == (not self.expected)

    @precondition(lambda self: not self.expected)
    @rule()
    def nothing_is_left_of_what_was_acknowledged(self) -> None:
        self.spool.head(1)
        assert self.spool.num_bytes == 0
        assert len(list(self.root.iterdir())) == 1

    def teardown(self) -> None:
        self.spool.close()
        shutil.rmtree(self.root)


SpoolMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
test_a_spool_loses_nothing_and_invents_nothing = SpoolMachine.TestCase


def test_records_are_on_disk_when_append_returns(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from gateway.spool import Spool;"
        "spool = Spool(Path(sys.argv[1])); spool.open(); spool.append([b'kept', b'too']);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    heir = opened(tmp_path)

    assert heir.adopt() == 2
    assert drained(heir) == [b"kept", b"too"]
    assert [path.name for path in files_of(tmp_path)] == [LOCK_FILE]
    heir.close()


def test_a_living_processs_spool_is_left_alone(tmp_path: Path) -> None:
    living, other = opened(tmp_path), opened(tmp_path)
    living.append([b"mine"])

    assert other.adopt() == 0
    assert drained(other) == []
    assert drained(living) == [b"mine"]
    living.close()
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_of_two_heirs_one_gets_what_is_left(tmp_path: Path) -> None:
    dead = opened(tmp_path)
    dead.append([b"a", b"b"])
    die(dead)
    heirs = [opened(tmp_path), opened(tmp_path)]

    assert sorted(heir.adopt() for heir in heirs) == [0, 2]
    assert [record for heir in heirs for record in drained(heir)] == [b"a", b"b"]
    for heir in heirs:
        heir.close()


def test_what_is_no_spool_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "directory").mkdir()
    spool = opened(tmp_path)

    assert spool.adopt() == 0
    spool.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["directory", "notes.txt"]


def test_a_spool_that_cannot_be_read_now_is_taken_over_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = opened(tmp_path)
    dead.append([b"kept"])
    die(dead)
    heir = opened(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", unreadable)
        with pytest.raises(OSError, match="I/O"):
            heir.adopt()

    assert heir.adopt() == 1
    assert drained(heir) == [b"kept"]
    heir.close()


def unreadable(_path: Path) -> bytes:
    raise OSError(errno.EIO, "I/O error")


def test_what_is_adopted_comes_before_what_is_new(tmp_path: Path) -> None:
    dead = opened(tmp_path)
    dead.append([b"old"])
    die(dead)
    heir = opened(tmp_path)
    heir.append([b"new"])
    first = heir.head(1)
    heir.adopt()
    heir.acknowledge(1)

    assert first == [b"new"]
    assert drained(heir) == [b"old"]
    heir.close()


def test_a_damaged_file_is_kept_for_whoever_wants_to_look(tmp_path: Path) -> None:
    dead = opened(tmp_path)
    dead.append([b"first", b"second", b"third"])
    die(dead)
    path = segment_of(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"second", b"sec0nd"))
    heir = opened(tmp_path)
    heir.adopt()

    assert drained(heir) == [b"first", b"third"]
    assert heir.num_damaged_bytes == len(frame(b"second"))
    heir.close()
    assert [path.suffix for path in files_of(tmp_path)] == [DAMAGED_SUFFIX]
    assert opened(tmp_path).adopt() == 0


def test_a_disk_that_is_full_refuses_the_whole_group_and_takes_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = opened(tmp_path)
    spool.append([b"before"])

    def full(file: int, data: memoryview) -> int:
        if len(data) <= 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data[:10])

    write = os.write
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        spool.append([b"one", b"two"])
    monkeypatch.undo()
    spool.append([b"one", b"two"])

    assert scan(segment_of(tmp_path).read_bytes()).num_damaged_bytes == 0
    assert drained(spool) == [b"before", b"one", b"two"]
    spool.close()


def test_a_long_queue_is_not_held_in_memory(tmp_path: Path) -> None:
    spool = opened(tmp_path, segment_bytes=2000)
    payloads = [f"record {index:04}".encode() for index in range(1000)]
    for index in range(0, 1000, 10):
        spool.append(payloads[index : index + 10])

    assert spool._own is not None
    assert sum(segment._payloads is not None for segment in spool._own.segments) <= 2
    assert drained(spool, limit=50) == payloads
    spool.close()


def test_only_the_owner_can_read_the_spool(tmp_path: Path) -> None:
    spool = opened(tmp_path / "ledger")
    spool.append([b"x"])

    assert {path.stat().st_mode & 0o077 for path in tmp_path.rglob("*")} == {0}
    spool.close()
