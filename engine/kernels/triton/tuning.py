"""Measures how the attention kernels are best cut on this card, once: the choice is kept on disk.

An entry is found by everything that decides it: the card, Triton, our kernels' source and the shape. What cannot be
read is measured again, and what cannot be written is measured at each start. Nothing here can fail a start.
"""

import hashlib
import itertools
import json
import os
import statistics
import tempfile
import time
from collections import abc
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.runtime.errors import OutOfResources

from engine.kernels.triton import attention
from engine.kernels.triton.chunks import TritonChunks
from engine.kernels.triton.launches import (
    AttentionShape,
    Launch,
    Launches,
    choose_num_splits,
    default_launches,
    queries_per_tile,
)

BUDGET_S = 20.0  # of each start that finds no entry; what was not measured by then is not chosen
_NUM_DECODES, _NUM_KEYS = 32, 1024
_PROMPT = 2048
_REPETITIONS = 10

_UNFIT = (OutOfResources, triton.CompilationError, RuntimeError)  # RuntimeError: what Triton's passes end with
Measure = abc.Callable[[Launch], float]
Work = abc.Callable[[], object]


def candidates(base: Launch, *, is_prefill: bool) -> list[Launch]:
    """`base` first, then what may be better on some card."""
    found = [base]
    for keys in (32, 64, 128):
        for rows in sorted({base.rows, 2 * base.rows}) if is_prefill else (base.rows,):
            for num_warps, num_stages in ((4, 2), (4, 3), (8, 3)) if is_prefill else ((2, 3), (4, 2), (4, 4)):
                found.append(Launch(rows, keys, num_warps, num_stages))
    return list(dict.fromkeys(found))


def fastest(of: abc.Iterable[Launch], measure: Measure, deadline: float) -> Launch:
    """The launch of the least time; the first one if nothing was measured. Those that do not fit the card are passed
    over, and none is begun behind `deadline`, by the monotonic clock."""
    best: Launch | None = None
    first: Launch | None = None
    least = float("inf")
    for launch in of:
        first = first or launch
        if time.monotonic() > deadline:
            break
        with suppress(*_UNFIT):
            elapsed = measure(launch)
            if elapsed < least:
                best, least = launch, elapsed
    if best is None and first is None:
        raise ValueError("there is nothing to choose from")
    return best or first  # type: ignore[return-value]  # one of them is there


class TuningFile:
    """Launches by key, in `folder`; None: nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / "attention-launches.json"

    def read(self, key: str) -> Launches | None:
        """What was written for `key`; None if there is no such entry that makes sense."""
        try:
            entry = self._entries()[key]
            return Launches(Launch(**entry["prefill"]), Launch(**entry["decode"]))
        except (KeyError, TypeError):
            return None

    def write(self, key: str, launches: Launches) -> None:
        """Keep them, beside all others that are there, as far as the folder can be written."""
        if self._path is None:
            return
        entries = self._entries() | {key: asdict(launches)}
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self._path.parent, prefix=".new-")
            with os.fdopen(descriptor, "w") as file:
                json.dump(entries, file, indent=1, sort_keys=True)
            os.replace(name, self._path)

    def _entries(self) -> dict[str, Any]:  # Any: JSON that anybody may have edited
        if self._path is None:
            return {}
        try:
            entries = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return entries if isinstance(entries, dict) else {}


def key_of(shape: AttentionShape, card: str) -> str:
    """Of the entry for `shape` on a card of this name."""
    kernels = hashlib.sha256(Path(attention.__file__).read_bytes()).hexdigest()[:12]
    sizes = f"{shape.num_shared}x{shape.num_kv_heads}x{shape.head_dim}/{shape.block_size}"
    return f"{card} triton-{triton.__version__} {kernels} {sizes} {str(shape.dtype).removeprefix('torch.')}"


def tuned_launches(shape: AttentionShape, device: torch.device, folder: Path | None) -> Launches:
    """What is fastest on the CUDA device, from the file in `folder` or measured now."""
    file, key = TuningFile(folder), key_of(shape, torch.cuda.get_device_name(device))
    if (known := file.read(key)) is not None:
        return known
    started_at = time.monotonic()
    num_processors = torch.cuda.get_device_properties(device).multi_processor_count
    scene = TuningScene(shape, device, num_processors, cuda_ms)
    base = default_launches(shape)
    decode = fastest(candidates(base.decode, is_prefill=False), scene.decode_ms, started_at + BUDGET_S / 2)
    prefill = fastest(candidates(base.prefill, is_prefill=True), scene.prefill_ms, started_at + BUDGET_S)
    launches = Launches(prefill, decode)
    file.write(key, launches)
    return launches


def cuda_ms(work: Work) -> float:
    """Milliseconds of the median of some repetitions, by the device's events."""
    work()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(_REPETITIONS + 1)]  # type: ignore[no-untyped-call]  # torch
    events[0].record()
    for event in events[1:]:
        work()
        event.record()
    events[-1].synchronize()
    return float(statistics.median(before.elapsed_time(after) for before, after in itertools.pairwise(events)))


class TuningScene:
    """Random keys in blocks that lie all over a pool, a prompt and some decodes that attend to them. `clock` says how
    many milliseconds a call takes."""

    def __init__(
        self, shape: AttentionShape, device: torch.device, num_processors: int, clock: abc.Callable[[Work], float]
    ) -> None:
        width = -(-max(_PROMPT, _NUM_KEYS) // shape.block_size)
        num_blocks = -(-_NUM_DECODES * _NUM_KEYS // shape.block_size)
        slot = (shape.block_size, 2, shape.num_kv_heads, shape.head_dim)
        self._shape, self._device, self._num_processors, self._clock = shape, device, num_processors, clock
        self._cached = torch.randn((num_blocks, *slot), device=device).to(shape.dtype)
        self._table = torch.randint(num_blocks, (_NUM_DECODES, width), dtype=torch.int32, device=device)

    def decode_ms(self, launch: Launch) -> float:
        """Of a token of each row behind all its keys."""
        rows = torch.arange(_NUM_DECODES, device=self._device)
        decodes = torch.stack((rows, torch.full_like(rows, _NUM_KEYS - 1), rows))
        return self._time(_NUM_DECODES, self._plan(launch, decodes=decodes))

    def prefill_ms(self, launch: Launch) -> float:
        """Of a whole prompt."""
        size = queries_per_tile(self._shape, launch)
        first = torch.arange(0, _PROMPT, size, device=self._device).flip(0)
        counts = torch.clamp(_PROMPT - first, max=size)
        return self._time(
            _PROMPT, self._plan(launch, tiles=torch.stack((torch.zeros_like(first), first, first, counts)))
        )

    def _plan(self, launch: Launch, *, decodes: Tensor | None = None, tiles: Tensor | None = None) -> TritonChunks:
        none = torch.zeros((4, 0), dtype=torch.int64, device=self._device)
        return TritonChunks(
            table=self._table,
            slots=none[0],
            decodes=none[:3] if decodes is None else decodes,
            tiles=none if tiles is None else tiles,
            num_splits=choose_num_splits(_NUM_DECODES, self._shape.num_kv_heads, _NUM_KEYS, self._num_processors),
            shape=self._shape,
            launches=Launches(launch, launch),
        )

    def _time(self, num_tokens: int, plan: TritonChunks) -> float:
        num_heads = self._shape.num_kv_heads * self._shape.num_shared
        queries = torch.randn((num_tokens, num_heads, self._shape.head_dim), device=self._device).to(self._shape.dtype)
        return self._clock(partial(attention.paged_attention, queries, self._cached, plan))
