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
from engine.kernels.ops import finite_rows
from engine.model.info import LoadedModel
from engine.runner.biases import BiasTable
from engine.runner.block_copier import BlockCopier
from engine.runner.inputs import StepInputs
from engine.runner.kv_cache import KvCache
from engine.runner.logprobs import token_logprobs
from engine.runner.penalties import PenaltyTable
from engine.runner.prompt_logprobs import PromptScores, has_wanted, score_prompts
from engine.runner.row_table import RowTable
from engine.runner.sampler import sample, sample_apart
from engine.runner.step_path import StepPath
from engine.runner.token_masks import TokenMasks

NON_FINITE_ERROR = "the model computed values that are not finite for this request"

_WARM_UP_TOKENS = 256


class ModelRunner:
    """Runs on whatever thread calls it, one step at a time. `kv_cache` is public for the tests to look into."""

    def __init__(
        self, model: LoadedModel, config: SchedulerConfig, *, cuda_graphs: bool = True, batch_invariant: bool = False
    ) -> None:
        """`cuda_graphs` says whether `warm_up` records steps that decode only; without effect on a CPU.

        `batch_invariant`: a sequence's logits and tokens have the same bits, whatever is computed beside it and in
        whatever chunks. Raises ValueError where the device does not compute that.
        """
        self.kv_cache = KvCache(model, config)
        self._model = model
        self._config = config
        self._rows = RowTable(config)
        self._penalties = PenaltyTable(config.max_num_seqs, model.config.vocabulary_size, model.device)
        self._biases = BiasTable(config.max_num_seqs)
        self._masks = TokenMasks(config.max_num_seqs, model.config.vocabulary_size)
        self._path = StepPath(
            model, self.kv_cache, self._rows, config, cuda_graphs=cuda_graphs, batch_invariant=batch_invariant
        )
        self._draw = sample_apart if batch_invariant else sample
        self._copier = BlockCopier(self.kv_cache)

    def execute(self, plan: StepPlan) -> StepOutput:
        """Every sampled row is in `accepted`, or in `errors` if its logits are not finite or none of its tokens may be
        drawn, which harms no other row.

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
        self._path.prepare()

    @torch.inference_mode()
    def _compute(self, plan: StepPlan) -> StepOutput:
        self._rows.apply(plan)
        self._penalties.start(plan.started)
        self._biases.start(plan.started)
        self._masks.stop(plan.stopped)
        self._masks.start(plan.started)
        if not plan.rows:
            return StepOutput(plan.step_id)
        inputs = self._path.build(plan)
        if not has_wanted(inputs.chunks, self._rows):
            return self._sample(plan.step_id, self._path.logits(inputs), inputs)
        return self._compute_and_score(plan.step_id, inputs)

    def _compute_and_score(self, step_id: int, inputs: StepInputs) -> StepOutput:
        module, device = self._model.module, self._model.device
        streams = module.model(inputs.batch, self.kv_cache.layers)

        def logits_of(begin: int, end: int) -> Tensor:
            return module.logits(streams, torch.arange(begin, end, device=device))

        scores = score_prompts(logits_of, inputs.chunks, self._rows, NON_FINITE_ERROR)
        return _scored(self._sample(step_id, module.logits(streams, inputs.batch.sampled_index), inputs), scores)

    def _sample(self, step_id: int, logits: Tensor, inputs: StepInputs) -> StepOutput:
        rows = inputs.sampled_rows
        if not len(rows):
            return StepOutput(step_id)
        is_finite = finite_rows(logits)
        on_host = is_finite.cpu().numpy()
        if not on_host.all():
            logits = logits.masked_fill(~is_finite[:, None], 0.0)
        settings = self._rows.sampling[rows]
        adjusted = self._penalties.adjust(logits, rows, settings)
        adjusted, stuck = self._masks.apply(self._biases.adjust(adjusted, rows), rows)
        token_ids = self._draw(adjusted, settings, inputs.sampled_positions)
        self._penalties.record(rows, token_ids)
        logprobs = token_logprobs(logits, token_ids, settings["num_logprobs"])
        accepted = token_ids.cpu().numpy()
        self._rows.append_tokens(rows, inputs.sampled_positions, accepted)
        bad = {**stuck, **dict.fromkeys(np.flatnonzero(~on_host).tolist(), NON_FINITE_ERROR)}
        good = [index for index in range(len(rows)) if index not in bad] if bad else range(len(rows))
        return StepOutput(
            step_id=step_id,
            accepted={int(rows[index]): (int(accepted[index]),) for index in good},
            logprobs={int(rows[index]): (logprobs[index],) for index in good if index in logprobs},
            errors={int(rows[index]): problem for index, problem in bad.items()},
            ended=self._masks.record(rows, accepted),
        )


def _scored(output: StepOutput, scores: PromptScores) -> StepOutput:
    """With what is known of the prompts' tokens. A row without one of them ends, whether it has sampled or not."""
    return replace(
        output,
        accepted={row: token_ids for row, token_ids in output.accepted.items() if row not in scores.errors},
        errors={**output.errors, **scores.errors},
        prompt_logprobs=scores.logprobs,
    )
