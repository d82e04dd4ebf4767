"""Drafts by a smaller model: it says what it would say next, token by token, for all rows at once.

Its cache has a block for each of the target's, under the same id, so that it needs no block manager: what a row owns
there it owns here. A draft may reach beyond the blocks of its row, which are not grown for a proposal: for that each
row has blocks at the end of its own, whose content is not kept. A row that begins anew, after a preemption too, is
computed again from its first token, in chunks; until then it has no drafts.

It draws by the settings, seed and position of the row, as the target will: two models that agree draw the same.
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


class DraftModel:
    """Writes drafts into `rows`, the target's table. `num_computed` [rows]: tokens whose keys are in its own cache."""

    def __init__(self, model: LoadedModel, config: SchedulerConfig, rows: RowTable) -> None:
        self._model = model
        self._config = config
        self._target_rows = rows
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
        self._ends = np.zeros(config.max_num_seqs, dtype=np.int64)
        self._proposed = np.full((config.max_num_seqs, config.num_draft_tokens), -1, dtype=np.int64)

    def start(self, started: abc.Iterable[RowStart]) -> None:
        """See Proposer."""
        self.num_computed[[start.row for start in started]] = 0

    def propose(self, rows: NDArray[np.int64], ends: NDArray[np.int64], limits: NDArray[np.int64]) -> NDArray[np.int64]:
        """See Proposer."""
        self._forget_wrong(rows, ends)
        self._take_blocks(rows)
        limits = np.minimum(limits, self._model.config.context_tokens - ends)
        counts = np.zeros(len(rows), dtype=np.int64)
        able = np.flatnonzero(limits > 0)
        if not len(able):
            return counts
        caught_up, logits = self._catch_up(rows[able], ends[able])
        drafting = able[caught_up]
        while len(drafting):
            at = ends[drafting] + counts[drafting]
            self._draw(logits, rows[drafting], at)
            counts[drafting] += 1
            goes_on = counts[drafting] < limits[drafting]
            drafting, at = drafting[goes_on], at[goes_on]
            if len(drafting):
                logits = self._forward(rows[drafting], at, np.ones_like(at), np.ones(len(at), dtype=np.bool_))
                self.num_computed[rows[drafting]] = at + 1
        self._remember(rows, ends, counts)
        return counts

    def _forget_wrong(self, rows: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Of what was computed for the last drafts, only that of those stays that have become known tokens."""
        before = self._ends[rows]
        at = before[:, None] + np.arange(self._proposed.shape[1])
        within = np.minimum(at, self._rows.token_ids.shape[1] - 1)
        is_right = (self._rows.token_ids[rows[:, None], within] == self._proposed[rows]) & (at < ends[:, None])
        num_right = np.cumprod(is_right, axis=1).sum(1)
        # The last known token is always computed: the first draft is what follows it.
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

    def _draw(self, logits: Tensor, rows: NDArray[np.int64], at: NDArray[np.int64]) -> None:
        finite = torch.nan_to_num(logits)  # a draft from what is no number is as good as any
        token_ids = sample(finite, self._rows.sampling[rows], at)
        self._rows.append_tokens(rows, at, token_ids.cpu().numpy())

    def _remember(self, rows: NDArray[np.int64], ends: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        self._ends[rows] = ends
        nth = np.arange(self._proposed.shape[1])
        at = np.minimum(ends[:, None] + nth, self._rows.token_ids.shape[1] - 1)
        drafts = self._rows.token_ids[rows[:, None], at]
        self._proposed[rows] = np.where(nth < counts[:, None], drafts, -1)
        capacity = self._target_rows.num_blocks[rows] * self._config.block_size
        self.num_computed[rows] = np.minimum(self.num_computed[rows], capacity)


def _with_blocks(config: SchedulerConfig, num_blocks: int) -> SchedulerConfig:
    return replace(config, num_device_blocks=num_blocks, num_host_blocks=0, preemption_mode=PreemptionChoice.AUTO)
