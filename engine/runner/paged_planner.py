"""Attention that reads blocks where they lie: what the kernel for processors is told of a step."""

import numpy as np

from engine.kernels.cpu.attention import PagedChunks, queries_per_tile
from engine.model.info import LoadedModel
from engine.runner.chunks import Chunks, Slots
from engine.runner.row_table import RowTable


class PagedPlanner:
    """Plans against one table of rows. Nothing of it grows with the context."""

    def __init__(self, model: LoadedModel, rows: RowTable) -> None:
        self._rows = rows
        self._tile = queries_per_tile(model.config.num_queries_per_kv_head, model.config.head_dim)

    def plan(self, chunks: Chunks, slots: Slots) -> PagedChunks:
        """Every query of `chunks` in one tile."""
        num_tiles = -(-chunks.num_tokens // self._tile)
        chunk = np.repeat(np.arange(len(num_tiles)), num_tiles)
        in_chunk = np.arange(len(chunk)) - np.repeat(np.cumsum(num_tiles) - num_tiles, num_tiles)
        return PagedChunks(
            table=self._rows.block_ids,
            chunks=np.stack((chunks.rows, chunks.starts, chunks.num_tokens, chunks.offsets), axis=1),
            tiles=np.stack((chunk, in_chunk * self._tile), axis=1),
            slots=np.stack((slots.blocks, slots.places), axis=1),
        )
