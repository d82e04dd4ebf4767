"""Attention that reads blocks where they lie: what the kernel for processors is told of a step."""

import numpy as np
from numpy.typing import NDArray

from engine.kernels.cpu.attention import PagedChunks
from engine.kernels.cpu.chunk_attention import queries_per_group
from engine.kernels.cpu.packing import KEYS_PER_BLOCK
from engine.kernels.cpu.tile_attention import queries_per_tile
from engine.model.info import LoadedModel
from engine.runner.chunks import Chunks, Slots
from engine.runner.row_table import RowTable

# From about here on packing takes less than reading keys where they lie for every other query (measured, bfloat16).
MIN_PACKED_QUERIES = 8

Columns = NDArray[np.int64]
_NONE: Columns = np.empty((0, 3), dtype=np.int64)


class PagedPlanner:
    """Plans against one table of rows. Only what is planned for chunks of prompts grows with their context.

    Chunks of `min_packed_queries` tokens or more read packed keys; the bits of what a query gets depend on that. Those
    with drafts never do: what is said with drafts is what is said without, token by token.
    """

    reads_behind_keys = False

    def __init__(self, model: LoadedModel, rows: RowTable, min_packed_queries: int = MIN_PACKED_QUERIES) -> None:
        self._rows = rows
        self._min_packed_queries = min_packed_queries
        self._tile = queries_per_tile(model.config.num_queries_per_kv_head, model.config.head_dim)
        self._group = queries_per_group(model.config.num_queries_per_kv_head)

    def plan(self, chunks: Chunks, slots: Slots) -> PagedChunks:
        """Every query of `chunks` in one tile or group."""
        if len(slots.blocks) == len(chunks.rows) and self._min_packed_queries > 1:
            return self._plan_single_tokens(chunks, slots)
        is_packed = chunks.num_tokens >= self._min_packed_queries
        if chunks.num_drafts is not None:
            is_packed &= chunks.num_drafts == 0
        num_blocks = np.where(is_packed, -(-chunks.num_keys // KEYS_PER_BLOCK), 0)
        places = (np.cumsum(num_blocks) - num_blocks) * KEYS_PER_BLOCK
        tile_chunk, tile = _pieces(np.where(is_packed, 0, -(-chunks.num_tokens // self._tile)))
        group_chunk, group = _pieces(np.where(is_packed, -(-chunks.num_tokens // self._group), 0))
        block_chunk, block = _pieces(num_blocks)
        first_key = block * KEYS_PER_BLOCK
        return PagedChunks(
            table=self._rows.block_ids,
            chunks=_table(chunks.rows, chunks.starts, chunks.num_tokens, chunks.offsets),
            slots=_table(slots.blocks, slots.places),
            tiles=_table(tile_chunk, tile * self._tile),
            packed=_table(block_chunk, first_key, places[block_chunk] + first_key),
            groups=_table(group_chunk, group * self._group, places[group_chunk]),
        )

    def _plan_single_tokens(self, chunks: Chunks, slots: Slots) -> PagedChunks:
        """The same for the most frequent step by far: each chunk is one token, and a tile of its own."""
        return PagedChunks(
            table=self._rows.block_ids,
            chunks=_table(chunks.rows, chunks.starts, chunks.num_tokens, chunks.offsets),
            slots=_table(slots.blocks, slots.places),
            tiles=_table(chunks.offsets, np.zeros_like(chunks.offsets)),
            packed=_NONE,
            groups=_NONE,
        )


def _table(*columns: Columns) -> Columns:
    """[n, columns]"""
    table = np.empty((len(columns[0]), len(columns)), dtype=np.int64)
    for number, column in enumerate(columns):
        table[:, number] = column
    return table


def _pieces(num_pieces: Columns) -> tuple[Columns, Columns]:
    """The chunk of each piece, and the piece's number in it."""
    chunk = np.repeat(np.arange(len(num_pieces)), num_pieces)
    return chunk, np.arange(len(chunk)) - np.repeat(np.cumsum(num_pieces) - num_pieces, num_pieces)
