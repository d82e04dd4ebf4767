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
    """chunks            as the plan has them, in its order
    entered_blocks    [n] int64, the blocks whose first slot this step writes, where they must hold zeros behind it
    sampled_rows      [R], the row of each of the logits; rows with drafts have several
    sampled_positions [R], where the token that is sampled there will stand in its sequence
    padded_size       tokens with padding of a step that a recording may compute; 0: no recording is meant for it
    drafted           None: there are no drafts
    """

    batch: ForwardBatch
    chunks: Chunks
    entered_blocks: Tensor
    sampled_rows: NDArray[np.int64]
    sampled_positions: NDArray[np.int64]
    padded_size: int = 0
    drafted: Drafted | None = None


@dataclass(frozen=True, slots=True)
class StepArrays:
    """A step on the host, token by token: [T] each, but for `sampled_index` [R], the tokens whose logits are wanted."""

    chunks: Chunks
    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    slots: Slots
    sampled_index: NDArray[np.int64]
    drafted: Drafted | None = None

    @property
    def sampled_rows(self) -> NDArray[np.int64]:
        return self.chunks.rows[np.searchsorted(self.chunks.offsets, self.sampled_index, side="right") - 1]

    @property
    def sampled_positions(self) -> NDArray[np.int64]:
        return self.positions[self.sampled_index] + 1


def step_arrays(plan: StepPlan, rows: RowTable, block_size: int) -> StepArrays:
    """`plan`, which has at least one chunk and is already applied to `rows`."""
    if len(plan.rows) == plan.num_tokens.count(1):
        return _arrays_of_single_tokens(plan, rows, block_size)
    num_tokens = np.array(plan.num_tokens, dtype=np.int64)
    chunks = Chunks(
        rows=np.array(plan.rows, dtype=np.int64),
        starts=np.array(plan.starts, dtype=np.int64),
        num_tokens=num_tokens,
        offsets=np.cumsum(num_tokens) - num_tokens,
        num_drafts=np.array(plan.num_drafts, dtype=np.int64) if plan.num_drafts else None,
    )
    row_by_token = np.repeat(chunks.rows, num_tokens)
    positions = np.arange(len(row_by_token)) + np.repeat(chunks.starts - chunks.offsets, num_tokens)
    samples = np.array(plan.samples, dtype=np.bool_)
    index, drafted = (chunks.offsets + num_tokens - 1)[samples], None
    if chunks.num_drafts is not None:
        index, drafted = _drafted(chunks.take(np.flatnonzero(samples)), chunks.num_drafts[samples], rows)
    return StepArrays(
        chunks=chunks,
        token_ids=rows.token_ids[row_by_token, positions],
        positions=positions,
        slots=Slots(rows.block_ids[row_by_token, positions // block_size], positions % block_size),
        sampled_index=index,
        drafted=drafted,
    )


def _arrays_of_single_tokens(plan: StepPlan, rows: RowTable, block_size: int) -> StepArrays:
    """The same for the most frequent step by far: each chunk is one token, so that a token has its chunk's number."""
    row_ids, positions = np.array(plan.rows, dtype=np.int64), np.array(plan.starts, dtype=np.int64)
    numbers = np.arange(len(row_ids))
    block, place = np.divmod(positions, block_size)
    return StepArrays(
        chunks=Chunks(row_ids, positions, np.ones_like(numbers), numbers),
        token_ids=rows.token_ids[row_ids, positions],
        positions=positions,
        slots=Slots(rows.block_ids[row_ids, block], place),
        sampled_index=numbers if all(plan.samples) else numbers[np.array(plan.samples, dtype=np.bool_)],
    )


def _drafted(sampled: Chunks, num_drafts: NDArray[np.int64], rows: RowTable) -> tuple[NDArray[np.int64], Drafted]:
    """The tokens of the step behind which one is sampled: each chunk's drafts, and the one before them."""
    counts = num_drafts + 1
    firsts = np.cumsum(counts) - counts
    within = np.arange(int(counts.sum())) - np.repeat(firsts, counts)
    positions = np.repeat(sampled.num_keys - num_drafts, counts) + within
    token_ids = np.full(len(positions), NO_DRAFT)
    is_draft = within < np.repeat(num_drafts, counts)
    token_ids[is_draft] = rows.token_ids[np.repeat(sampled.rows, counts)[is_draft], positions[is_draft]]
    index = np.repeat(sampled.offsets + sampled.num_tokens - counts, counts) + within
    return index, Drafted(firsts, token_ids)


class Planner(Protocol):
    """Says in one form of attention's terms where the tokens of a step find their keys.

    reads_behind_keys  attention reads what lies behind a sequence's last key, so that no block may hold what is left of
                       another sequence
    """

    reads_behind_keys: bool

    def plan(self, chunks: Chunks, slots: Slots) -> ChunkPlan: ...


class InputBuilder:
    """Reads the tokens and blocks of one table of rows."""

    def __init__(self, rows: RowTable, planner: Planner, block_size: int, device: torch.device) -> None:
        self._rows = rows
        self._planner = planner
        self._block_size = block_size
        self._device = device
        self._no_blocks = torch.zeros(0, dtype=torch.int64, device=device)

    def build(self, plan: StepPlan) -> StepInputs:
        """The inputs of `plan`, which has at least one chunk and is already applied to the rows."""
        arrays = step_arrays(plan, self._rows, self._block_size)
        batch = ForwardBatch(
            token_ids=self._tensor(arrays.token_ids),
            positions=self._tensor(arrays.positions),
            attention=self._planner.plan(arrays.chunks, arrays.slots),
            sampled_index=self._tensor(arrays.sampled_index),
        )
        return StepInputs(
            batch=batch,
            chunks=arrays.chunks,
            entered_blocks=self._entered(arrays.slots) if self._planner.reads_behind_keys else self._no_blocks,
            sampled_rows=arrays.sampled_rows,
            sampled_positions=arrays.sampled_positions,
            drafted=arrays.drafted,
        )

    def _entered(self, slots: Slots) -> Tensor:
        return self._tensor(slots.blocks[slots.places == 0])

    def _tensor(self, array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self._device)
