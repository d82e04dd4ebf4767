"""Executes a step's plan: one forward pass over all its chunks, then sampling, while blocks change pools beside it.

Owns the rows and the KV cache. Everything it keeps between steps is written here, in `RowTable.apply` and, by another
thread, in the blocks that are being copied. It never decides who runs.
"""

import traceback
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
from engine.kernels.ops import finite_rows
from engine.model.device_memory import is_out_of_memory, release_cached
from engine.model.info import LoadedModel
from engine.runner.biases import BiasTable
from engine.runner.block_copier import BlockCopier
from engine.runner.candidates import Found, are_searched, find_candidates
from engine.runner.guided_drafts import GuidedDrafts
from engine.runner.inputs import StepInputs
from engine.runner.kv_cache import KvCache
from engine.runner.logprobs import token_logprobs
from engine.runner.penalties import PenaltyTable
from engine.runner.prompt_logprobs import PromptScores, has_wanted, score_prompts
from engine.runner.proposers import DraftSource, Proposer, make_proposer
from engine.runner.row_table import RowTable
from engine.runner.sampler import sample, sample_apart
from engine.runner.step_path import StepPath
from engine.runner.token_masks import TokenMasks
from engine.runner.verification import Drafted

NON_FINITE_ERROR = "the model computed values that are not finite for this request"

_WARM_UP_TOKENS = 256
_NOTHING_FOUND = Found({}, {})

T = TypeVar("T")


class ModelRunner:
    """Runs on whatever thread calls it, one step at a time. `kv_cache` is public for the tests to look into."""

    def __init__(
        self,
        model: LoadedModel,
        config: SchedulerConfig,
        drafts: DraftSource | None = None,
        *,
        cuda_graphs: bool = True,
        batch_invariant: bool = False,
    ) -> None:
        """Nothing is proposed without `drafts`.

        `cuda_graphs` says whether `warm_up` records steps that decode only; without effect on a CPU.

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
        self._guided = GuidedDrafts(self._rows, self._masks)
        self._proposer = None if drafts is None else make_proposer(drafts, config, self._rows, self._masks)

    def execute(self, plan: StepPlan) -> StepOutput:
        """Every sampled row is in `accepted` or `candidates`, or in `errors` if its logits are not finite or none of
        its tokens may be drawn, which harms no other row.

        Raises CopyFailedError where a copy of this or an earlier plan did, and MemoryError where the device had none
        left: then the rows of the plan have to start anew, and no other one does.
        """
        if plan.block_copies:
            self.kv_cache.copy_blocks(plan.block_copies)
        self._copier.start(plan.copies)
        try:
            output = self._compute(plan)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            traceback.clear_frames(error.__traceback__)  # they hold what was allocated before it failed
            release_cached(self._model.device)
            raise MemoryError(str(error)) from error
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
        """Compute a prompt and tokens with invented input, so that no request pays for what happens only once.

        Call it before the first plan: it uses the first row and the first blocks, and leaves nothing behind.
        """
        num_tokens = min(_WARM_UP_TOKENS, self._config.max_num_batched_tokens, self._config.max_request_tokens - 2)
        if num_tokens < 1:
            return
        num_blocks = -(-(num_tokens + 1) // self._config.block_size)
        block_ids = tuple(BlockId(block) for block in range(num_blocks))
        token_ids = (0,) * (num_tokens + 1)
        start = RowStart(0, SequenceKey("", 0), token_ids, num_tokens, block_ids, SamplingParams())
        self.execute(StepPlan(0, (), (start,), (), (0,), (0,), (num_tokens,), (True,)))
        # That one was drawn; the likeliest of logits, and the likeliest without logits, are found in other ways.
        for num_logprobs in (0, None):
            again = replace(start, sampling=SamplingParams(temperature=0.0, num_logprobs=num_logprobs))
            self.execute(StepPlan(0, (), (again,), (), (0,), (num_tokens,), (1,), (True,)))
        self._path.prepare()

    @torch.inference_mode()
    def _compute(self, plan: StepPlan) -> StepOutput:
        self._rows.apply(plan)
        if plan.block_copies:
            self._clear_copied(plan)
        self._penalties.start(plan.started)
        self._penalties.record_chosen(plan.chosen)
        self._biases.start(plan.started)
        self._masks.stop(plan.stopped)
        self._masks.start(plan.started)
        if self._proposer is not None:
            self._proposer.start(plan.started)
        if not plan.rows:
            return StepOutput(plan.step_id)
        inputs = self._path.build(plan)
        if has_wanted(inputs.chunks, self._rows):
            output = self._compute_and_score(plan.step_id, inputs)
        elif len(inputs.sampled_rows) and self._rows.is_plain[inputs.sampled_rows].all():
            output = self._take_likeliest(plan.step_id, inputs)
        else:
            output = self._sample(plan.step_id, self._path.logits(inputs), inputs)
        if self._proposer is None or not plan.draft_limits:
            return output
        return self._propose(self._proposer, plan, output)

    def _clear_copied(self, plan: StepPlan) -> None:
        """What a copied block has of another sequence, behind the tokens that its owner goes on from, is gone."""
        targets, size = {target for _, target in plan.block_copies}, self._config.block_size
        for row, start in zip(plan.rows, plan.starts, strict=True):
            block_id = int(self._rows.block_ids[row, start // size])
            if block_id in targets and start % size:
                self.kv_cache.clear_behind(block_id, start % size)

    def _compute_and_score(self, step_id: int, inputs: StepInputs) -> StepOutput:
        module, device = self._model.module, self._model.device
        streams = module.model(inputs.batch, self.kv_cache.layers)

        def logits_of(begin: int, end: int) -> Tensor:
            return module.logits(streams, torch.arange(begin, end, device=device))

        scores = score_prompts(logits_of, inputs.chunks, self._rows, NON_FINITE_ERROR)
        return _scored(self._sample(step_id, module.logits(streams, inputs.batch.sampled_index), inputs), scores)

    def _take_likeliest(self, step_id: int, inputs: StepInputs) -> StepOutput:
        """What `_sample` does where no row asks for more: its logits need not exist for that."""
        sampled, is_finite = (each.cpu().numpy() for each in self._path.likeliest(inputs))
        rows, positions = inputs.sampled_rows, inputs.sampled_positions
        all_finite = is_finite.all()
        if inputs.drafted is not None or not all_finite:
            kept = _kept(sampled, np.flatnonzero(~is_finite).tolist(), inputs.drafted)
            rows, positions, sampled = rows[kept], positions[kept], sampled[kept]
        self._rows.accept(rows, positions, sampled, trims=inputs.drafted is not None)
        accepted = _by_row(rows, sampled.tolist())
        errors = {} if all_finite else _problems(inputs.sampled_rows, is_finite, {}, accepted)
        return StepOutput(step_id, accepted, errors=errors)

    def _sample(self, step_id: int, logits: Tensor, inputs: StepInputs) -> StepOutput:
        rows, positions = inputs.sampled_rows, inputs.sampled_positions
        if not len(rows):
            return StepOutput(step_id)
        is_finite = finite_rows(logits)
        on_host = is_finite.cpu().numpy()
        logits = logits if on_host.all() else logits.masked_fill(~is_finite[:, None], 0.0)
        settings = self._rows.sampling[rows]
        adjusted = self._penalties.adjust(logits, rows, settings, inputs.drafted)
        adjusted, stuck = self._masks.apply(self._biases.adjust(adjusted, rows), rows, inputs.drafted)
        token_ids = self._draw(adjusted, settings, positions)
        sampled = token_ids.cpu().numpy()
        bad = [*np.flatnonzero(~on_host), *stuck]
        searched = are_searched(rows, self._rows)
        found = self._find(logits, adjusted, rows, searched, bad) if searched.any() else _NOTHING_FOUND
        kept = _kept(sampled, [*bad, *np.flatnonzero(searched)], inputs.drafted)
        if len(kept) < len(rows):
            index = torch.from_numpy(kept).to(logits.device)
            logits, token_ids = logits[index], token_ids[index]
        self._penalties.record(rows[kept], token_ids)
        logprobs = token_logprobs(logits, token_ids, settings["num_logprobs"][kept])
        self._rows.accept(rows[kept], positions[kept], sampled[kept], trims=inputs.drafted is not None)
        accepted = _by_row(rows[kept], sampled[kept].tolist())
        return StepOutput(
            step_id=step_id,
            accepted=accepted,
            candidates=found.candidates,
            logprobs={**(_by_row(rows[kept][list(logprobs)], logprobs.values()) if logprobs else {}), **found.logprobs},
            errors=_problems(rows, on_host, stuck, accepted),
            ended=self._masks.record(rows[kept], sampled[kept]),
        )

    def _find(
        self,
        logits: Tensor,
        adjusted: Tensor,
        rows: NDArray[np.int64],
        searched: NDArray[np.bool_],
        bad: abc.Sequence[int],
    ) -> Found:
        """The candidates of those of `rows` that are searched and not bad."""
        good = searched.copy()
        good[bad] = False
        index = np.flatnonzero(good)
        if not len(index):
            return _NOTHING_FOUND
        at = torch.from_numpy(index).to(logits.device)
        return find_candidates(logits[at], adjusted[at], rows[index], self._rows)

    def _propose(self, proposer: Proposer, plan: StepPlan, output: StepOutput) -> StepOutput:
        """`output`, with drafts behind what was accepted. None where that is complete."""
        num_drafts = plan.num_drafts or (0,) * len(plan.rows)
        columns = zip(plan.rows, plan.starts, plan.num_tokens, num_drafts, plan.draft_limits, strict=True)
        wanted = [
            (row, start + num_tokens - of_these + len(output.accepted[row]), limit)
            for row, start, num_tokens, of_these, limit in columns
            if limit and row in output.accepted and row not in output.ended
        ]
        # A limit was planned before drafts were accepted: behind those there may be less room.
        width = self._rows.token_ids.shape[1]
        wanted = [(row, end, min(limit, width - end)) for row, end, limit in wanted if end < width]
        if not wanted:
            return output
        rows, ends, limits = np.array(wanted, dtype=np.int64).T
        counts, certain = self._guided.propose(proposer, rows, ends, limits)
        drafts = list(zip(rows.tolist(), ends.tolist(), counts.tolist(), certain.tolist(), strict=True))
        proposed = {row: self._rows.num_until_stop(row, end, count) for row, end, count, _ in drafts if count}
        forced = {row: min(num_forced, proposed[row]) for row, _, _, num_forced in drafts if num_forced}
        return replace(output, proposed=proposed, certain=forced)


def _problems(
    rows: NDArray[np.int64], is_finite: NDArray[np.bool_], stuck: abc.Mapping[int, str], accepted: abc.Container[int]
) -> dict[int, str]:
    """By row, what keeps it from a token; of a row with drafts it only counts where it has accepted none."""
    found = {int(rows[index]): problem for index, problem in stuck.items()}
    found |= dict.fromkeys(rows[~is_finite].tolist(), NON_FINITE_ERROR)
    return {row: problem for row, problem in found.items() if row not in accepted}


def _kept(sampled: NDArray[np.int64], bad: abc.Sequence[int], drafted: Drafted | None) -> NDArray[np.int64]:
    """Indices of the sampled tokens that are accepted; those that are `bad` never are."""
    is_good = np.ones(len(sampled), dtype=np.bool_)
    is_good[bad] = False
    return np.flatnonzero(is_good) if drafted is None else drafted.kept(sampled, is_good)


def _by_row(rows: NDArray[np.int64], values: abc.Iterable[T]) -> dict[int, tuple[T, ...]]:
    """The values of each row, in order."""
    of_row: dict[int, tuple[T, ...]] = {}
    for row, value in zip(rows.tolist(), values, strict=True):
        of_row[row] = (*of_row[row], value) if row in of_row else (value,)
    return of_row


def _scored(output: StepOutput, scores: PromptScores) -> StepOutput:
    """With what is known of the prompts' tokens. A row without one of them ends, whether it has sampled or not."""
    return replace(
        output,
        accepted={row: token_ids for row, token_ids in output.accepted.items() if row not in scores.errors},
        errors={**output.errors, **scores.errors},
        prompt_logprobs=scores.logprobs,
    )
