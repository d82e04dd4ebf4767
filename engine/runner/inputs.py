"""From a step's plan to the tensors of one forward pass. Works on whole columns, never on single tokens."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.core.plan import StepPlan
from engine.kernels.ops import ChunkPlan
from engine.model.forward_batch import ForwardBatch
from engine.runner.chunks import Chunks, Slots
from engine.runner.row_table import RowTable
from engine.runner.verification import NO_DRAFT, Drafted


@dataclass(frozen=True, slots=True)
class StepInputs:
    """entered_blocks    [n] int64, the blocks whose first slot this step writes
    sampled_rows      [R], the row of each of the logits; rows with drafts have several
    sampled_positions [R], where the token that is sampled there will stand in its sequence
    drafted           None: there are no drafts
    """

    batch: ForwardBatch
    entered_blocks: Tensor
    sampled_rows: NDArray[np.int64]
    sampled_positions: NDArray[np.int64]
    drafted: Drafted | None = None


class Planner(Protocol):
    """Says in one form of attention's terms where the tokens of a step find their keys."""

    def plan(self, chunks: Chunks, slots: Slots) -> ChunkPlan: ...


class InputBuilder:
    """Reads the tokens and blocks of one table of rows."""

    def __init__(self, rows: RowTable, planner: Planner, block_size: int, device: torch.device) -> None:
        self._rows = rows
        self._planner = planner
        self._block_size = block_size
        self._device = device

    def build(self, plan: StepPlan) -> StepInputs:
        """The inputs of `plan`, which has at least one chunk and is already applied to the rows."""
        num_tokens = np.array(plan.num_tokens, dtype=np.int64)
        chunks = Chunks(
            rows=np.array(plan.rows, dtype=np.int64),
            starts=np.array(plan.starts, dtype=np.int64),
            num_tokens=num_tokens,
            offsets=np.cumsum(num_tokens) - num_tokens,
        )
        row_by_token = np.repeat(chunks.rows, num_tokens)
        positions = np.arange(len(row_by_token)) + np.repeat(chunks.starts - chunks.offsets, num_tokens)
        blocks = self._rows.block_ids[row_by_token, positions // self._block_size]
        in_block = positions % self._block_size
        samples = np.array(plan.samples, dtype=np.bool_)
        sampled = chunks.take(np.flatnonzero(samples)) if not samples.all() else chunks
        index, drafted = sampled.offsets + sampled.num_tokens - 1, None
        if plan.num_drafts:
            index, drafted = self._drafted(sampled, np.array(plan.num_drafts, dtype=np.int64)[samples])
        batch = ForwardBatch(
            token_ids=self._tensor(self._rows.token_ids[row_by_token, positions]),
            positions=self._tensor(positions),
            attention=self._planner.plan(chunks, Slots(blocks, in_block)),
            sampled_index=self._tensor(index),
        )
        return StepInputs(
            batch=batch,
            entered_blocks=self._tensor(blocks[in_block == 0]),
            sampled_rows=row_by_token[index],
            sampled_positions=positions[index] + 1,
            drafted=drafted,
        )

    def _drafted(self, sampled: Chunks, num_drafts: NDArray[np.int64]) -> tuple[NDArray[np.int64], Drafted]:
        """The tokens of the step behind which one is sampled: each chunk's drafts, and the one before them."""
        counts = num_drafts + 1
        firsts = np.cumsum(counts) - counts
        within = np.arange(int(counts.sum())) - np.repeat(firsts, counts)
        positions = np.repeat(sampled.num_keys - num_drafts, counts) + within
        token_ids = np.full(len(positions), NO_DRAFT)
        is_draft = within < np.repeat(num_drafts, counts)
        token_ids[is_draft] = self._rows.token_ids[np.repeat(sampled.rows, counts)[is_draft], positions[is_draft]]
        index = np.repeat(sampled.offsets + sampled.num_tokens - counts, counts) + within
        return index, Drafted(firsts, token_ids)

    def _tensor(self, array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self._device)
