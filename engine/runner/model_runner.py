"""Executes a step's plan: one forward pass over all its chunks, then sampling, while blocks change pools beside it.

Owns the rows and the KV cache. Everything it keeps between steps is written here, in `RowTable.apply` and, by another
thread, in the blocks that are being copied. It never decides who runs.
"""

from collections import abc
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.calibration import CopyTiming
from engine.core.config import SchedulerConfig
from engine.core.plan import RowStart, StepOutput, StepPlan
from engine.core.types import BlockId, CopyId, SamplingParams, SequenceKey
from engine.model.info import LoadedModel
from engine.runner.attention_planner import GatheredPlanner
from engine.runner.block_copier import BlockCopier
from engine.runner.inputs import InputBuilder, StepInputs
from engine.runner.kv_cache import KvCache
from engine.runner.logprobs import token_logprobs
from engine.runner.paged_planner import PagedPlanner
from engine.runner.penalties import PenaltyTable
from engine.runner.proposers import DraftSource, Proposer, make_proposer
from engine.runner.row_table import RowTable
from engine.runner.sampler import sample

NON_FINITE_ERROR = "the model computed values that are not finite for this request"

_WARM_UP_TOKENS = 256

T = TypeVar("T")


class ModelRunner:
    """Runs on whatever thread calls it, one step at a time. `kv_cache` is public for the tests to look into."""

    def __init__(self, model: LoadedModel, config: SchedulerConfig, drafts: DraftSource | None = None) -> None:
        """Nothing is proposed without `drafts`."""
        self.kv_cache = KvCache(model, config)
        self._model = model
        self._config = config
        self._rows = RowTable(config)
        self._penalties = PenaltyTable(config.max_num_seqs, model.config.vocabulary_size, model.device)
        is_cpu = model.device.type == "cpu"
        planner = PagedPlanner(model, self._rows) if is_cpu else GatheredPlanner(model, self.kv_cache, self._rows)
        self._inputs = InputBuilder(self._rows, planner, config.block_size, model.device)
        self._copier = BlockCopier(self.kv_cache)
        self._proposer: Proposer | None = None if drafts is None else make_proposer(drafts, config, self._rows)

    def execute(self, plan: StepPlan) -> StepOutput:
        """Every sampled row is in `accepted`, or in `errors` if its logits are not finite, which harms no other row.

        Raises CopyFailedError where a copy of this or an earlier plan did.
        """
        self._copier.start(plan.copies)
        output = self._compute(plan)
        completed_copies = self.take_completed()
        return replace(output, completed_copies=completed_copies) if completed_copies else output

    def take_completed(self) -> tuple[CopyId, ...]:
        """The copies that have ended and were not told of yet. Raises CopyFailedError."""
        return self._copier.take_completed()

    def take_copy_timings(self) -> tuple[CopyTiming, ...]:
        """What the copies took that have ended since the last call."""
        return self._copier.take_timings()

    def wake_on_completion(self, wake: abc.Callable[[], object]) -> None:
        """From now on `wake` is called after each copy, on another thread: there is something to take."""
        self._copier.on_completed = wake

    def warm_up(self) -> None:
        """Compute a prompt and a token with invented input, so that no request pays for what happens only once.

        Call it before the first plan: it uses the first row and the first blocks, and leaves nothing behind.
        """
        num_tokens = min(_WARM_UP_TOKENS, self._config.max_num_batched_tokens, self._config.max_request_tokens - 2)
        if num_tokens < 1:
            return
        num_blocks = -(-(num_tokens + 1) // self._config.block_size)
        block_ids = tuple(BlockId(block) for block in range(num_blocks))
        start = RowStart(0, SequenceKey("", 0), (0,) * num_tokens, num_tokens, block_ids, SamplingParams())
        self.execute(StepPlan(0, (), (start,), (), (0,), (0,), (num_tokens,), (True,)))
        self.execute(StepPlan(0, (), (), (), (0,), (num_tokens,), (1,), (True,)))

    @torch.inference_mode()
    def _compute(self, plan: StepPlan) -> StepOutput:
        self._rows.apply(plan)
        self._penalties.start(plan.started)
        if self._proposer is not None:
            self._proposer.start(plan.started)
        if not plan.rows:
            return StepOutput(plan.step_id)
        inputs = self._inputs.build(plan)
        self.kv_cache.clear(inputs.entered_blocks)
        logits = self._model.module(inputs.batch, self.kv_cache.layers)
        output = self._sample(plan.step_id, logits, inputs)
        if self._proposer is None or not plan.draft_limits:
            return output
        return replace(output, proposed=self._propose(self._proposer, plan, output))

    def _sample(self, step_id: int, logits: Tensor, inputs: StepInputs) -> StepOutput:
        rows, positions = inputs.sampled_rows, inputs.sampled_positions
        if not len(rows):
            return StepOutput(step_id)
        is_finite = logits.sum(-1).isfinite()
        if not bool(is_finite.all()):
            logits = logits.masked_fill(~is_finite[:, None], 0.0)
        settings = self._rows.sampling[rows]
        adjusted = self._penalties.adjust(logits, rows, settings, inputs.drafted)
        token_ids = sample(adjusted, settings, positions)
        sampled, is_good = token_ids.cpu().numpy(), is_finite.cpu().numpy()
        drafted = inputs.drafted
        kept = np.flatnonzero(is_good) if drafted is None else drafted.kept(sampled, is_good)
        if len(kept) < len(rows):
            index = torch.from_numpy(kept).to(logits.device)
            logits, token_ids = logits[index], token_ids[index]
        self._penalties.record(rows[kept], token_ids)
        logprobs = token_logprobs(logits, token_ids, settings["num_logprobs"][kept])
        self._rows.append_tokens(rows[kept], positions[kept], sampled[kept])
        if drafted is not None:
            self._rows.trim(rows[kept], positions[kept] + 1)
        accepted = _by_row(rows[kept], sampled[kept].tolist())
        return StepOutput(
            step_id=step_id,
            accepted=accepted,
            logprobs=_by_row(rows[kept][list(logprobs)], logprobs.values()) if logprobs else {},
            errors={row: NON_FINITE_ERROR for row in rows.tolist() if row not in accepted},
        )

    def _propose(self, proposer: Proposer, plan: StepPlan, output: StepOutput) -> dict[int, int]:
        """Drafts behind what was accepted; how many by row."""
        num_drafts = plan.num_drafts or (0,) * len(plan.rows)
        columns = zip(plan.rows, plan.starts, plan.num_tokens, num_drafts, plan.draft_limits, strict=True)
        wanted = [
            (row, start + num_tokens - of_these + len(output.accepted[row]), limit)
            for row, start, num_tokens, of_these, limit in columns
            if limit and row in output.accepted
        ]
        if not wanted:
            return {}
        rows, ends, limits = np.array(wanted, dtype=np.int64).T
        counts = proposer.propose(rows, ends, limits)
        proposed = zip(rows.tolist(), ends.tolist(), counts.tolist(), strict=True)
        return {row: self._rows.num_until_stop(row, end, count) for row, end, count in proposed if count}


def _by_row(rows: NDArray[np.int64], values: abc.Iterable[T]) -> dict[int, tuple[T, ...]]:
    """The values of each row, in order."""
    of_row: dict[int, tuple[T, ...]] = {}
    for row, value in zip(rows.tolist(), values, strict=True):
        of_row[row] = (*of_row[row], value) if row in of_row else (value,)
    return of_row
