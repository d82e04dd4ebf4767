"""Executes a step's plan: one forward pass over all its chunks, then sampling, while blocks change pools beside it.

Owns the rows and the KV cache. Everything it keeps between steps is written here, in `RowTable.apply` and, by another
thread, in the blocks that are being copied. It never decides who runs.
"""

from collections import abc
from dataclasses import replace

import numpy as np
import torch
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
from engine.runner.row_table import RowTable
from engine.runner.sampler import sample

NON_FINITE_ERROR = "the model computed values that are not finite for this request"

_WARM_UP_TOKENS = 256


class ModelRunner:
    """Runs on whatever thread calls it, one step at a time. `kv_cache` is public for the tests to look into."""

    def __init__(self, model: LoadedModel, config: SchedulerConfig) -> None:
        self.kv_cache = KvCache(model, config)
        self._model = model
        self._config = config
        self._rows = RowTable(config)
        self._penalties = PenaltyTable(config.max_num_seqs, model.config.vocabulary_size, model.device)
        is_cpu = model.device.type == "cpu"
        planner = PagedPlanner(model, self._rows) if is_cpu else GatheredPlanner(model, self.kv_cache, self._rows)
        self._inputs = InputBuilder(self._rows, planner, config.block_size, model.device)
        self._copier = BlockCopier(self.kv_cache)

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
        if not plan.rows:
            return StepOutput(plan.step_id)
        inputs = self._inputs.build(plan)
        self.kv_cache.clear(inputs.entered_blocks)
        logits = self._model.module(inputs.batch, self.kv_cache.layers)
        return self._sample(plan.step_id, logits, inputs)

    def _sample(self, step_id: int, logits: Tensor, inputs: StepInputs) -> StepOutput:
        rows = inputs.sampled_rows
        if not len(rows):
            return StepOutput(step_id)
        is_finite = logits.sum(-1).isfinite()
        if not bool(is_finite.all()):
            logits = logits.masked_fill(~is_finite[:, None], 0.0)
        settings = self._rows.sampling[rows]
        adjusted = self._penalties.adjust(logits, rows, settings)
        token_ids = sample(adjusted, settings, inputs.sampled_positions)
        self._penalties.record(rows, token_ids)
        logprobs = token_logprobs(logits, token_ids, settings["num_logprobs"])
        accepted = token_ids.cpu().numpy()
        self._rows.append_tokens(rows, inputs.sampled_positions, accepted)
        good = np.flatnonzero(is_finite.cpu().numpy()).tolist()
        bad = np.flatnonzero(~is_finite.cpu().numpy()).tolist()
        return StepOutput(
            step_id=step_id,
            accepted={int(rows[index]): (int(accepted[index]),) for index in good},
            logprobs={int(rows[index]): (logprobs[index],) for index in good if index in logprobs},
            errors={int(rows[index]): NON_FINITE_ERROR for index in bad},
        )
