"""Attention that gathers blocks: which chunks of a step are attended together, and the index tensors for it.

One call per chunk would drown in call overhead, one call for all would gather and multiply padding. Chunks of
similar size share a call as long as the padding costs less than the call that it saves.
"""

from collections import abc

import numpy as np
import torch
from numpy.typing import NDArray

from engine.kernels.attention import AttentionGroup, GatheredChunks, PaddedQueries
from engine.model.info import LoadedModel
from engine.runner.chunks import Chunks, Slots
from engine.runner.kv_cache import KvCache
from engine.runner.row_table import RowTable

# One unit is a key that is gathered and attended by one decoding query, about 0.1 us per layer on two Zen 4 cores;
# each further query on that key adds a sixth, and a call of its own costs as much as 600 keys (measured, bfloat16).
_QUERIES_PER_UNIT = 6
_CALL_COST = 600.0

GATHERED_BYTES = 8 << 20  # of one layer, for one attention call: what it gathers should stay in the last-level cache


def group_chunks(num_queries: abc.Sequence[int], num_keys: abc.Sequence[int], max_keys: int) -> list[list[int]]:
    """Partition the chunks, given by their sizes, into groups that are each padded to their largest member.

    No group of several chunks gathers more than `max_keys` keys, padding included. Members are in ascending order.
    """
    groups: list[list[int]] = []
    width = height = 0  # queries and keys that the last group is padded to
    for chunk in sorted(range(len(num_keys)), key=lambda chunk: (-num_queries[chunk], -num_keys[chunk])):
        size = len(groups[-1]) if groups else 0
        padded_height = max(height, num_keys[chunk])
        together = (size + 1) * _cost(width, padded_height)
        apart = size * _cost(width, height) + _cost(num_queries[chunk], num_keys[chunk]) + _CALL_COST
        if size and together <= apart and (size + 1) * padded_height <= max_keys:
            groups[-1].append(chunk)
            height = padded_height
        else:
            groups.append([chunk])
            width, height = num_queries[chunk], num_keys[chunk]
    return [sorted(group) for group in groups]


def _cost(num_queries: int, num_keys: int) -> float:
    return num_keys * (_QUERIES_PER_UNIT - 1 + num_queries) / _QUERIES_PER_UNIT


class GatheredPlanner:
    """Plans against one cache and one table of rows, for devices that have no kernel of their own."""

    reads_behind_keys = True

    def __init__(self, model: LoadedModel, kv_cache: KvCache, rows: RowTable) -> None:
        """The scratch memory that is gathered into holds the longest request."""
        self._kv_cache = kv_cache
        self._rows = rows
        _, self._block_size, *per_slot = kv_cache.layers[0].shape
        num_gathered = max(rows.block_ids.shape[1], GATHERED_BYTES // kv_cache.layers[0, 0].nbytes)
        shape = (num_gathered, self._block_size, *per_slot)
        self._gathered = torch.zeros(shape, dtype=model.dtype, device=model.device)
        self._num_shared = model.config.num_queries_per_kv_head
        self._window = model.config.sliding_window
        self._dtype = model.dtype
        self._device = model.device

    def plan(self, chunks: Chunks, slots: Slots) -> GatheredChunks:
        """Every chunk in one group. Reads block ids of `chunks` only, and only those that hold keys."""
        num_gathered = -(-chunks.num_keys // self._block_size) * self._block_size  # whole blocks are gathered
        max_keys = self._gathered.shape[0] * self._block_size
        groups = group_chunks(chunks.num_tokens.tolist(), num_gathered.tolist(), max_keys)
        return GatheredChunks(
            groups=tuple(self._group(chunks.take(group), is_whole_step=len(groups) == 1) for group in groups),
            gathered=self._gathered,
            slot_mapping=self._tensor(slots.blocks * self._kv_cache.block_slots + slots.places),
        )

    def _group(self, chunks: Chunks, *, is_whole_step: bool) -> AttentionGroup:
        num_queries, num_keys = int(chunks.num_tokens.max()), int(chunks.num_keys.max())
        is_padded = int(chunks.num_tokens.min()) < num_queries
        mask = self._mask(chunks, num_queries, num_keys, None)
        is_windowed = self._window is not None and num_keys > self._window
        return AttentionGroup(
            num_chunks=len(chunks.rows),
            num_keys=num_keys,
            block_ids=self._tensor(self._block_ids(chunks, num_keys)),
            mask=mask,
            queries=self._padded_queries(chunks, num_queries) if is_padded or not is_whole_step else None,
            window_mask=self._mask(chunks, num_queries, num_keys, self._window) if is_windowed else mask,
        )

    def _padded_queries(self, chunks: Chunks, num_queries: int) -> PaddedQueries:
        query, last = np.arange(num_queries), chunks.num_tokens[:, None] - 1
        source = (chunks.offsets[:, None] + np.minimum(query, last)).ravel()
        is_real = np.flatnonzero(query <= last)
        return PaddedQueries(self._tensor(source), self._tensor(is_real), self._tensor(source[is_real]))

    def _block_ids(self, chunks: Chunks, num_keys: int) -> NDArray[np.int64]:
        """[N * M]; what lies behind a chunk's last key is the null block, even where its row owns more blocks."""
        table = self._rows.block_ids[chunks.rows, : -(-num_keys // self._block_size)]
        num_needed = -(-chunks.num_keys // self._block_size)
        is_needed = np.arange(table.shape[1]) < num_needed[:, None]
        return np.where(is_needed, table, self._kv_cache.null_block).ravel()

    def _mask(self, chunks: Chunks, num_queries: int, num_keys: int, window: int | None) -> torch.Tensor | None:
        if num_queries == 1 and int(chunks.num_keys.min()) == num_keys and window is None:
            return None
        positions = self._tensor(chunks.starts[:, None] + np.arange(num_queries))[:, :, None]
        keys = torch.arange(num_keys, device=self._device)
        is_hidden = keys > positions  # [N, Q, L]
        if window is not None:
            is_hidden |= keys <= positions - window
        mask = torch.zeros(is_hidden.shape, dtype=self._dtype, device=self._device)
        mask.masked_fill_(is_hidden, -torch.inf)
        return mask.repeat_interleave(self._num_shared, dim=1)[:, None]

    def _tensor(self, array: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)
