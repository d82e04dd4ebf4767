"""What the Triton kernels for attention are told of a step. The block tables stay on the device.

Only block ids that are new to a row travel, so that nothing in a step grows with the context.
"""

from collections import abc

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.kernels.triton.chunks import TritonChunks
from engine.kernels.triton.launches import (
    AttentionShape,
    Launches,
    choose_num_splits,
    default_launches,
    queries_per_tile,
)
from engine.model.info import LoadedModel
from engine.runner.chunks import Chunks, Slots
from engine.runner.kv_cache import KvCache
from engine.runner.row_table import RowTable
from engine.runner.step_columns import StepColumns

_NO_POSITION = -1
_NO_SLOT = -1
_INTERPRETED_PROCESSORS = 4


class TritonPlanner:
    """Plans against one table of rows. `launches` may be replaced by better ones before a CUDA graph holds them."""

    def __init__(self, model: LoadedModel, kv_cache: KvCache, rows: RowTable, columns: StepColumns) -> None:
        self.shape = attention_shape(model, kv_cache)
        self.launches: Launches = default_launches(self.shape)
        self._rows = rows
        self._columns = columns
        self._block_slots = kv_cache.block_slots
        self._table = torch.zeros(rows.block_ids.shape, dtype=torch.int32, device=model.device)
        self._num_processors = _num_processors(model.device)
        self._new_blocks: tuple[Tensor, Tensor] | None = None
        rows.log_changes()

    def plan(self, chunks: Chunks, slots: Slots, num_padding: int = 0) -> TritonChunks:
        """Every token in one decode or one tile, and `num_padding` tokens behind them that see and leave nothing.

        It holds once the columns are sent and `update_tables` was called.
        """
        slot_by_token = slots.blocks * self._block_slots + slots.places
        is_decode = chunks.num_tokens == 1
        decodes = np.stack((chunks.rows, chunks.starts, chunks.offsets))[:, is_decode]
        padding = np.full((3, num_padding), _NO_POSITION)
        padding[0], padding[2] = 0, len(slot_by_token) + np.arange(num_padding)
        num_decodes = decodes.shape[1] + num_padding
        return TritonChunks(
            table=self._table,
            slots=self._columns.put(np.pad(slot_by_token, (0, num_padding), constant_values=_NO_SLOT)),
            decodes=self._columns.put(np.concatenate((decodes, padding), axis=1)),
            tiles=self._columns.put(self._tiles(chunks, ~is_decode)),
            num_splits=choose_num_splits(
                num_decodes, self.shape.num_kv_heads, self._table.shape[1] * self.shape.block_size, self._num_processors
            ),
            shape=self.shape,
            launches=self.launches,
        )

    def put_new_blocks(self) -> None:
        """Put the block ids that rows got since the last call; to be called last, because their number varies."""
        changes = self._rows.take_changes()
        if not changes:
            self._new_blocks = None
            return
        width = self._table.shape[1]
        places = np.concatenate([row * width + np.arange(first, first + count) for row, first, count in changes])
        block_ids = self._rows.block_ids.ravel()[places]
        if 2 * len(places) + 4 <= self._columns.num_free:
            self._new_blocks = self._columns.put(places), self._columns.put(block_ids)
        else:  # many rows with long contexts, all at once
            device = self._table.device
            self._new_blocks = torch.from_numpy(places).to(device), torch.from_numpy(block_ids).to(device)

    def update_tables(self) -> None:
        """The tables on the device are those of the rows. The columns have been sent."""
        if self._new_blocks is not None:
            places, block_ids = self._new_blocks
            self._table.view(-1).index_copy_(0, places, block_ids.to(torch.int32))

    def _tiles(self, chunks: Chunks, members: NDArray[np.bool_]) -> NDArray[np.int64]:
        """[4, m], those with most keys first, so that the last programs to end are short ones."""
        rows, starts, num_tokens, offsets = (
            column[members] for column in (chunks.rows, chunks.starts, chunks.num_tokens, chunks.offsets)
        )
        size = queries_per_tile(self.shape, self.launches.prefill)
        num_tiles = -(-num_tokens // size)
        chunk = np.repeat(np.arange(len(num_tiles)), num_tiles)
        first = (np.arange(len(chunk)) - np.repeat(np.cumsum(num_tiles) - num_tiles, num_tiles)) * size
        tiles = np.stack(
            (
                rows[chunk],
                starts[chunk] + first,
                offsets[chunk] + first,
                np.minimum(num_tokens[chunk] - first, size),
            )
        )
        return np.ascontiguousarray(tiles[:, np.argsort(-tiles[1], kind="stable")])


def attention_shape(model: LoadedModel, kv_cache: KvCache) -> AttentionShape:
    """What the kernels are compiled for."""
    config = model.config
    return AttentionShape(
        num_shared=config.num_queries_per_kv_head,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=kv_cache.layers.shape[2],
        dtype=model.dtype,
    )


def num_columns(max_num_seqs: int, max_num_batched_tokens: int, sizes: abc.Sequence[int]) -> int:
    """Numbers that a step's columns may hold: 13 for a token, and as many again for new blocks."""
    num_tokens = max(max_num_batched_tokens, max_num_seqs, *sizes)
    return 2 * 13 * num_tokens + 256


def _num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return _INTERPRETED_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
