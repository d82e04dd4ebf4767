"""Attention that reads blocks where they lie: what the kernel for processors is told of a step."""

import numpy as np
from numpy.typing import NDArray

from engine.kernels.cpu.attention import PagedChunks
from engine.kernels.cpu.chunk_attention import KEYS_PER_BLOCK, queries_per_group
from engine.kernels.cpu.tile_attention import queries_per_tile
from engine.model.info import LoadedModel
from engine.runner.chunks import Chunks, Slots
from engine.runner.row_table import RowTable

# Packing a key takes as long as three queries that read it where it lies take longer than those that read it packed.
MIN_PACKED_QUERIES = 8

Columns = NDArray[np.int64]


class PagedPlanner:
    """Plans against one table of rows. Only what is planned for chunks of prompts grows with their context.

    Chunks of `min_packed_queries` tokens or more read packed keys; the bits of what a query gets depend on that. Those
    with drafts never do: what is said with drafts is what is said without, token by token.
    """

    def __init__(self, model: LoadedModel, rows: RowTable, min_packed_queries: int = MIN_PACKED_QUERIES) -> None:
        self._rows = rows
        self._min_packed_queries = min_packed_queries
        self._tile = queries_per_tile(model.config.num_queries_per_kv_head, model.config.head_dim)
        self._group = queries_per_group(model.config.num_queries_per_kv_head)

    def plan(self, chunks: Chunks, slots: Slots) -> PagedChunks:
        """Every query of `chunks` in one tile or group."""
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
            chunks=np.stack((chunks.rows, chunks.starts, chunks.num_tokens, chunks.offsets), axis=1),
            slots=np.stack((slots.blocks, slots.places), axis=1),
            tiles=np.stack((tile_chunk, tile * self._tile), axis=1),
            packed=np.stack((block_chunk, first_key, places[block_chunk] + first_key), axis=1),
            groups=np.stack((group_chunk, group * self._group, places[group_chunk]), axis=1),
        )


def _pieces(num_pieces: Columns) -> tuple[Columns, Columns]:
    """The chunk of each piece, and the piece's number in it."""
    chunk = np.repeat(np.arange(len(num_pieces)), num_pieces)
    return chunk, np.arange(len(chunk)) - np.repeat(np.cumsum(num_pieces) - num_pieces, num_pieces)
