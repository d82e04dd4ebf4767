"""Moves blocks between the device pool and the host pool while steps are computed.

One thread does it, copy after copy in the order in which they were started. On a CPU it copies memory itself; on CUDA
it feeds a stream of its own, fenced by events both ways: a copy waits for everything that the compute stream was given
before it was started (a swap-out for the last write, a swap-in for the last read of its blocks), and it is told as
complete only after its own event, so that whatever is planned later reads what it brought. Which blocks may be used
meanwhile is the scheduler's business.
"""

import time
from collections import abc, deque
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from engine.calibration import CopyTiming
from engine.core.plan import BlockCopy, CopyDirection
from engine.core.types import CopyId
from engine.kernels.triton import runs_on
from engine.runner.kv_cache import KvCache

# A step's own inputs wait behind what is in the link's queue: two pieces, under half a millisecond of 50 GB/s.
PIECE_BYTES = 8 << 20
# A copy of its own costs a launch, about 10 us of the link: what half a megabyte takes at 50 GB/s.
LONG_RUN_BYTES = 512 << 10
_GATHER_PROGRAMS = 16  # enough to keep a link of 50 GB/s busy, an eighth of a large card's processors

T = TypeVar("T")
Run = tuple[int, int, int]


class CopyFailedError(RuntimeError):
    """A copy raised, and what its sequence had is lost: `copy_id` is the copy's. It is told as complete all the same,
    because nothing touches its blocks any more."""

    def __init__(self, copy_id: CopyId) -> None:
        super().__init__(f"copy {copy_id} between the device pool and the host pool failed")
        self.copy_id = copy_id


def runs(copy: BlockCopy) -> list[Run]:
    """(first device block, first host block, number of blocks): the fewest, each adjacent in both pools."""
    found: list[Run] = []
    device = host = length = 0
    for device_id, host_id in sorted(zip(copy.device_block_ids, copy.host_block_ids, strict=True)):
        if length and device_id == device + length and host_id == host + length:
            length += 1
            found[-1] = (device, host, length)
        else:
            device, host, length = device_id, host_id, 1
            found.append((device, host, length))
    return found


def pieces(of: abc.Iterable[Run], max_blocks: int) -> abc.Iterator[list[Run]]:
    """The same blocks in the same order, runs cut and gathered into pieces of `max_blocks`; the last one has fewer."""
    piece: list[Run] = []
    room = max_blocks
    for device, host, length in of:
        done = 0
        while done < length:
            num_taken = min(room, length - done)
            piece.append((device + done, host + done, num_taken))
            done += num_taken
            room -= num_taken
            if not room:
                yield piece
                piece, room = [], max_blocks
    if piece:
        yield piece


class Mover(Protocol):
    """How blocks get from one pool to the other on one kind of device."""

    def prepare(self) -> abc.Callable[[BlockCopy], int]:
        """Called when a copy is started, on the thread of the steps. What it returns is called on the copying thread,
        leaves the blocks copied and returns the nanoseconds that the link took."""


class BlockCopier:
    """`on_completed` is called on the copying thread after each copy; everything else belongs to the engine thread."""

    def __init__(self, kv_cache: KvCache) -> None:
        self.on_completed: abc.Callable[[], object] = _ignore
        self._mover: Mover = _mover(kv_cache)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="block-copies")
        self._completed: deque[CopyId] = deque()
        self._timings: deque[CopyTiming] = deque()
        self._failed: deque[CopyFailedError] = deque()

    def start(self, copies: abc.Iterable[BlockCopy]) -> None:
        """The copies are under way; returns at once."""
        for copy in copies:
            try:
                self._thread.submit(self._run, copy, self._mover.prepare())
            except RuntimeError as error:  # no thread, or no event, to be had
                self._fail(copy, error)

    def take_completed(self) -> tuple[CopyId, ...]:
        """The copies that have ended since the last call. Raises CopyFailedError, once for each one that failed, before
        it tells of any."""
        if self._failed:
            raise self._failed.popleft()
        return _drain(self._completed)

    def take_timings(self) -> tuple[CopyTiming, ...]:
        """What the copies took that have ended since the last call."""
        return _drain(self._timings)

    def _run(self, copy: BlockCopy, move: abc.Callable[[BlockCopy], int]) -> None:
        try:
            elapsed_ns = move(copy)
            self._timings.append(CopyTiming(copy.direction, len(copy.device_block_ids), elapsed_ns))
        except Exception as error:  # noqa: BLE001  whatever a device throws: the engine thread must hear of it
            self._fail(copy, error)
            return
        self._completed.append(copy.copy_id)
        self.on_completed()

    def _fail(self, copy: BlockCopy, error: Exception) -> None:
        failure = CopyFailedError(copy.copy_id)
        failure.__cause__ = error
        self._failed.append(failure)
        self._completed.append(copy.copy_id)
        self.on_completed()


class MemoryMover:
    """Both pools are main memory. numpy copies with one thread and without the interpreter's lock; torch would take the
    steps' compute threads for it."""

    def __init__(self, kv_cache: KvCache) -> None:
        self._device, self._host = _bytes_by_block(kv_cache.blocks), _bytes_by_block(kv_cache.host_blocks)

    def prepare(self) -> abc.Callable[[BlockCopy], int]:
        return self._move

    def _move(self, copy: BlockCopy) -> int:
        started_at = time.perf_counter_ns()
        for device, host, length in runs(copy):
            on_device, on_host = self._device[device : device + length], self._host[host : host + length]
            if copy.direction is CopyDirection.OUT:
                np.copyto(on_host, on_device)
            else:
                np.copyto(on_device, on_host)
        return time.perf_counter_ns() - started_at


class StreamMover:
    """The host pool is page-locked, the copies run on a stream of their own, at most two pieces ahead of the thread."""

    def __init__(self, kv_cache: KvCache) -> None:
        device = kv_cache.blocks.device
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch
        self._piece_blocks = max(1, PIECE_BYTES // kv_cache.blocks[0].nbytes)
        self._copier = PieceCopier(kv_cache, gathers=runs_on(device.type))
        self._warm_up(has_host=len(kv_cache.host_blocks) > 0)

    def prepare(self) -> abc.Callable[[BlockCopy], int]:
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch
        ready.record(torch.cuda.current_stream(self._device))
        return lambda copy: self._move(copy, ready)

    def _warm_up(self, *, has_host: bool) -> None:
        """Kernels are compiled before the first copy needs them. It moves what is in blocks that nobody owns yet."""
        if has_host and runs_on(self._device.type):
            held = [self._copier.gather(direction, [(0, 0, 1)]) for direction in CopyDirection]
            torch.cuda.synchronize(self._device)
            del held

    def _move(self, copy: BlockCopy, ready: torch.cuda.Event) -> int:
        ready.synchronize()  # the time is that of the link alone
        started_at = time.perf_counter_ns()
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            previous = ready
            held: deque[object] = deque(maxlen=2)  # what the pieces that are under way read
            for piece in pieces(runs(copy), self._piece_blocks):
                held.append(self._copier.copy(copy.direction, piece))
                done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch
                done.record(self._stream)
                previous.synchronize()
                previous = done
            previous.synchronize()
        return time.perf_counter_ns() - started_at


class PieceCopier:
    """Copies a piece on the current stream: long runs one by one, by the device's copy engines, which leave its
    processors to the steps; scattered blocks all in one launch of a kernel, because each copy costs what half a
    megabyte does."""

    def __init__(self, kv_cache: KvCache, *, gathers: bool) -> None:
        """`gathers` says whether there is such a kernel here."""
        self._kv_cache = kv_cache
        self._gathers = gathers
        self._block_bytes = kv_cache.blocks[0].nbytes

    def copy(self, direction: CopyDirection, piece: list[Run]) -> object:
        """The piece is under way. What is returned must be kept until it has ended."""
        num_blocks = sum(length for _, _, length in piece)
        if self._gathers and len(piece) > 1 and num_blocks * self._block_bytes < len(piece) * LONG_RUN_BYTES:
            return self.gather(direction, piece)
        for run in piece:
            self.copy_run(direction, run)
        return None

    def copy_run(self, direction: CopyDirection, run: Run) -> None:
        """One run, as one copy."""
        device, host, length = run
        on_device = self._kv_cache.blocks[device : device + length]
        on_host = self._kv_cache.host_blocks[host : host + length]
        if direction is CopyDirection.OUT:
            on_host.copy_(on_device, non_blocking=True)
        else:
            on_device.copy_(on_host, non_blocking=True)

    def gather(self, direction: CopyDirection, piece: list[Run]) -> object:
        """Any number of runs, as one launch; it reads the block ids where they are returned."""
        from engine.kernels.triton.cache import copy_blocks  # where there is a kernel only

        device_pool, host_pool = self._kv_cache.blocks, self._kv_cache.host_blocks
        pairs = [(device + index, host + index) for device, host, length in piece for index in range(length)]
        on_device, on_host = (
            torch.tensor(ids, dtype=torch.int64, pin_memory=host_pool.is_pinned()) for ids in zip(*pairs, strict=True)
        )
        if direction is CopyDirection.OUT:
            copy_blocks(device_pool, host_pool, on_device, on_host, _GATHER_PROGRAMS)
        else:
            copy_blocks(host_pool, device_pool, on_host, on_device, _GATHER_PROGRAMS)
        return on_device, on_host


def _mover(kv_cache: KvCache) -> Mover:
    return StreamMover(kv_cache) if kv_cache.blocks.device.type == "cuda" else MemoryMover(kv_cache)


def _bytes_by_block(blocks: Tensor) -> "np.ndarray[tuple[int, int], np.dtype[np.uint8]]":
    by_block = blocks.reshape(blocks.shape[0], blocks[0:1].numel())
    array: np.ndarray[tuple[int, int], np.dtype[np.uint8]] = by_block.view(torch.uint8).numpy()
    return array


def _drain(items: deque[T]) -> tuple[T, ...]:
    return tuple(items.popleft() for _ in range(len(items)))


def _ignore() -> None:
    """Nobody waits."""
