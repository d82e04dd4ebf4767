"""Drafts by a smaller model: it says what it would say next, token by token, for all rows at once.

Its cache has a block for each of the target's, under the same id, so that it needs no block manager: what a row owns
there it owns here. A draft may reach beyond the blocks of its row, which are not grown for a proposal: for that each
row has blocks at the end of its own, whose content is not kept. A row that begins anew, after a preemption too, is
computed again from its first token, in chunks; until then it has no drafts.

What it has computed holds for the tokens that it was computed for: what was forced or guessed and came out otherwise is
computed again, and so is all behind it.

It draws by the settings, seed and position of the row, and from what its grammar allows, as the target will: two models
that agree draw the same.
"""

from collections import abc
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.core.config import PreemptionChoice, SchedulerConfig
from engine.core.plan import RowStart, StepPlan
from engine.model.info import LoadedModel
from engine.runner.attention_planner import GatheredPlanner
from engine.runner.inputs import InputBuilder
from engine.runner.kv_cache import KvCache
from engine.runner.paged_planner import PagedPlanner
from engine.runner.row_table import RowTable
from engine.runner.sampler import sample
from engine.runner.token_masks import TokenMasks
from engine.runner.verification import NO_DRAFT


class DraftModel:
    """Writes drafts into `rows`, the target's table. `num_computed` [rows]: tokens whose keys are in its own cache."""

    def __init__(self, model: LoadedModel, config: SchedulerConfig, rows: RowTable, masks: TokenMasks) -> None:
        self._model = model
        self._config = config
        self._target_rows = rows
        self._masks = masks
        self._rows = RowTable(config)
        self._rows.token_ids, self._rows.sampling = rows.token_ids, rows.sampling
        num_own = -(-config.num_draft_tokens // config.block_size) + 1
        first_own = config.num_device_blocks
        self._own_blocks = first_own + np.arange(config.max_num_seqs * num_own).reshape(-1, num_own)
        self._kv_cache = KvCache(model, _with_blocks(config, first_own + self._own_blocks.size))
        is_cpu = model.device.type == "cpu"
        planner = PagedPlanner(model, self._rows) if is_cpu else GatheredPlanner(model, self._kv_cache, self._rows)
        self._inputs = InputBuilder(self._rows, planner, config.block_size, model.device)
        self.num_computed = np.zeros(config.max_num_seqs, dtype=np.int64)
        # Of the last proposal: how many tokens of the row were known, and those behind them, forced or drafted.
        self._num_known = np.zeros(config.max_num_seqs, dtype=np.int64)
        self._guesses = np.full((config.max_num_seqs, config.num_draft_tokens), NO_DRAFT, dtype=np.int64)

    def start(self, started: abc.Iterable[RowStart]) -> None:
        """See Proposer."""
        self.num_computed[[start.row for start in started]] = 0

    def propose(
        self,
        rows: NDArray[np.int64],
        ends: NDArray[np.int64],
        limits: NDArray[np.int64],
        num_known: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """See Proposer."""
        self._forget_wrong(rows, ends)
        self._take_blocks(rows)
        limits = np.minimum(limits, self._model.config.context_tokens - ends)
        counts = self._draft(rows, ends, limits)
        self._remember(rows, num_known, ends + counts)
        return counts

    def _draft(self, rows: NDArray[np.int64], ends: NDArray[np.int64], limits: NDArray[np.int64]) -> NDArray[np.int64]:
        """Each row that has caught up has drafts. Returns how many."""
        counts = np.zeros(len(rows), dtype=np.int64)
        able = np.flatnonzero(limits > 0)
        if not len(able):
            return counts
        caught_up, logits = self._catch_up(rows[able], ends[able])
        drafting = able[caught_up]
        while len(drafting):
            at = ends[drafting] + counts[drafting]
            complete = self._draw(logits, rows[drafting], at)
            counts[drafting] += 1
            goes_on = (counts[drafting] < limits[drafting]) & ~np.isin(rows[drafting], list(complete))
            drafting, at = drafting[goes_on], at[goes_on]
            if len(drafting):
                logits = self._forward(rows[drafting], at, np.ones_like(at), np.ones(len(at), dtype=np.bool_))
                self.num_computed[rows[drafting]] = at + 1
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            self._masks.take_back(row, count)
        return counts

    def _forget_wrong(self, rows: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Of what was computed for the last guesses, only that of those stays that stand where they stood then."""
        before = self._num_known[rows]
        at = before[:, None] + np.arange(self._guesses.shape[1])
        within = np.minimum(at, self._rows.token_ids.shape[1] - 1)
        is_right = (self._rows.token_ids[rows[:, None], within] == self._guesses[rows]) & (at < ends[:, None])
        num_right = np.cumprod(is_right, axis=1).sum(1)
        # The last token is always computed: the first draft is what follows it.
        self.num_computed[rows] = np.minimum(self.num_computed[rows], np.minimum(before + num_right, ends - 1))

    def _take_blocks(self, rows: NDArray[np.int64]) -> None:
        """Each row's blocks are the target's, and behind them its own. Nothing computed in the latter was kept."""
        source, own = self._target_rows, self._rows.block_ids
        own[rows] = source.block_ids[rows]
        at = source.num_blocks[rows][:, None] + np.arange(self._own_blocks.shape[1])
        fits = at < own.shape[1]
        own[np.repeat(rows, fits.sum(1)), at[fits]] = self._own_blocks[rows][fits]

    def _catch_up(self, rows: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], Tensor]:
        """Known tokens are computed, as many as a step may hold. Returns which rows have no more, and their logits."""
        starts = self.num_computed[rows]
        missing = ends - starts
        room = np.maximum(0, self._config.max_num_batched_tokens - (np.cumsum(missing) - missing))
        lengths = np.minimum(missing, room)
        taken = np.flatnonzero(lengths)
        is_last = lengths[taken] == missing[taken]
        logits = self._forward(rows[taken], starts[taken], lengths[taken], is_last)
        self.num_computed[rows[taken]] += lengths[taken]
        return taken[is_last], logits

    def _forward(
        self,
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        samples: NDArray[np.bool_],
    ) -> Tensor:
        """Logits behind the chunks that sample, in their order."""
        columns = (rows, starts, lengths, samples)
        plan = StepPlan(0, (), (), (), *(tuple(column.tolist()) for column in columns))
        inputs = self._inputs.build(plan)
        self._kv_cache.clear(inputs.entered_blocks)
        logits: Tensor = self._model.module(inputs.batch, self._kv_cache.layers)
        return logits

    def _draw(self, logits: Tensor, rows: NDArray[np.int64], at: NDArray[np.int64]) -> frozenset[int]:
        """Each row has a draft more. Returns those whose outputs are complete with it."""
        finite = torch.nan_to_num(logits)  # a draft from what is no number is as good as any
        allowed, _ = self._masks.apply(finite, rows)  # nor does one matter where none is allowed
        token_ids = sample(allowed, self._rows.sampling[rows], at).cpu().numpy()
        self._rows.append_tokens(rows, at, token_ids)
        return self._masks.record(rows, token_ids)

    def _remember(self, rows: NDArray[np.int64], num_known: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """What stands at [num_known, ends) of each row, and what was computed of it in blocks that it keeps."""
        self._num_known[rows] = num_known
        at = num_known[:, None] + np.arange(self._guesses.shape[1])
        guesses = self._rows.token_ids[rows[:, None], np.minimum(at, self._rows.token_ids.shape[1] - 1)]
        self._guesses[rows] = np.where(at < ends[:, None], guesses, NO_DRAFT)
        capacity = self._target_rows.num_blocks[rows] * self._config.block_size
        self.num_computed[rows] = np.minimum(self.num_computed[rows], capacity)


def _with_blocks(config: SchedulerConfig, num_blocks: int) -> SchedulerConfig:
    return replace(config, num_device_blocks=num_blocks, num_host_blocks=0, preemption_mode=PreemptionChoice.AUTO)
