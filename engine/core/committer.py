"""What a step did: computed tokens counted, output tokens emitted, flows charged, sequences ended.

Decides nothing about the next step. A token is charged once: those computed again after a preemption are counted apart.
"""

from collections import abc, defaultdict
from dataclasses import dataclass

from engine.core.beam_rounds import BeamRounds
from engine.core.costs import num_chunk_keys
from engine.core.events import PromptScored, TokensEmitted
from engine.core.flow import Flow
from engine.core.lifecycle import Lifecycle
from engine.core.plan import StepOutput
from engine.core.policy import Service
from engine.core.sequence import Sequence
from engine.core.speculation import settle
from engine.core.step import Step
from engine.core.types import FinishReason, Nanos, SequenceStatus

Granted = abc.Iterable[tuple[Sequence, bool]]
"""Sequences that were granted tokens, each with whether it samples."""


@dataclass(slots=True)
class Tally:
    """What one flow's prompts got in the step that is being committed."""

    num_prefill_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_prefill_keys: int = 0


@dataclass(frozen=True, slots=True)
class End:
    """How a sequence ended in the step that is being committed."""

    seq: Sequence
    reason: FinishReason
    error: str | None = None


class Committer:
    """Applies one output after the other. Changes states only through `lifecycle`.

    tells_tokens  False: only the first TokensEmitted since a sequence came to run is told, for who reads no tokens
    """

    def __init__(self, lifecycle: Lifecycle, beams: BeamRounds) -> None:
        self._lifecycle = lifecycle
        self._beams = beams
        self.tells_tokens = True

    def commit(self, step: Step, samples: abc.Iterable[bool], output: StepOutput, now: Nanos) -> None:
        """The sequences that were granted tokens, each with whether it samples, have got on by `output`."""
        num_outputs: dict[Flow, int] = {}
        prefixes = self._lifecycle.blocks.prefixes
        tallies: defaultdict[Flow, Tally] = defaultdict(Tally)
        ends: list[End] = []
        for seq, does_sample in self._emit(zip(step.granted, samples, strict=True), output, num_outputs):
            if output.prompt_logprobs:
                self._tell_scores(seq, output)
            _advance(seq, tallies, now)
            end = self._take_output(seq, does_sample, output, now)
            if prefixes is not None and (end is None or end.error is None):
                prefixes.get_on(seq)
            if end is not None:
                ends.append(end)
            elif seq.hold_reason is not None and seq not in self._beams.given:
                self._lifecycle.pause(seq, seq.hold_reason, now)
        for seq in self._beams.given:
            num_outputs[seq.flow] += 1
        step.forget_planned()  # charging takes its place: a rank that is taken meanwhile counts neither twice
        self._charge(num_outputs, tallies, step)
        for end in ends:
            if end.error is not None:
                self._lifecycle.blocks.distrust(end.seq)
            if end.seq.status is not SequenceStatus.FINISHED:  # with another of its beams
                self._lifecycle.finish(end.seq, end.reason, now, end.error)
        self._lifecycle.release_ended()
        self._beams.settle(now)

    def _emit(self, granted: Granted, output: StepOutput, num_outputs: dict[Flow, int]) -> Granted:
        """Those that have emitted before and do so again, one token that changes nothing else, have got on, as by
        `_advance` and `_take_output`: the most frequent case by far. Yields the others, each in its turn. `num_outputs`
        counts what all of them emit."""
        errors, logprobs, events = output.errors, output.logprobs, self._lifecycle.events
        accepted_of, finished, tells_tokens = output.accepted.get, SequenceStatus.FINISHED, self.tells_tokens
        new: abc.Callable[..., TokensEmitted] = tuple.__new__  # without a call in Python for each
        for seq, does_sample in granted:
            flow, row, num_tokens = seq.flow, seq.row, seq.num_tokens
            if seq.status is finished:
                continue  # ended while the plan was open: what was computed for it is discarded
            assert row is not None, "a sequence was granted tokens without a row"
            drafting, token_ids = seq.drafting, accepted_of(row, ())
            is_plain = does_sample and seq.has_spoken and num_tokens < seq.num_plain_tokens and row not in errors
            is_plain = is_plain and (drafting is None or not drafting.num_scheduled)
            if is_plain and seq.num_computed_tokens >= seq.num_regained_tokens and len(token_ids) == 1:
                seq.num_scheduled_tokens = 0
                seq.num_computed_tokens = num_tokens
                seq.num_tokens = num_tokens + 1
                seq.output_token_ids += token_ids
                seq.timeline.num_decode_steps += 1
                if drafting is not None:
                    settle(seq, drafting, 1, output.proposed.get(row, 0), output.certain.get(row, 0))
                if tells_tokens:
                    told = logprobs.get(row, ())[:1] if logprobs else ()
                    events.append(new(TokensEmitted, (seq.key, token_ids, told)))
                num_outputs[flow] = num_outputs.get(flow, 0) + 1
            else:
                yield seq, does_sample
                num_outputs[flow] = num_outputs.get(flow, 0) + seq.num_tokens - num_tokens

    def _take_output(self, seq: Sequence, samples: bool, output: StepOutput, now: Nanos) -> End | None:
        row = seq.row
        assert row is not None, "a sequence was granted tokens without a row"
        if row in output.errors:
            return End(seq, FinishReason.ERROR, output.errors[row])
        if not samples:
            return None
        if seq.beam is not None:
            self._beams.take(seq, row, output)
            return None
        token_ids, reason = output.accepted[row], None
        if len(token_ids) > 1 or seq.num_tokens + 1 >= seq.max_num_tokens or seq.request.stop_token_ids:
            token_ids, reason = _accept(seq, token_ids)
        if row in output.ended and len(token_ids) == len(output.accepted[row]):
            reason = FinishReason.STOP
        seq.output_token_ids += token_ids
        seq.num_tokens += len(token_ids)
        if seq.drafting is not None:
            has_drafts = seq.drafting.num_scheduled > 0
            settle(seq, seq.drafting, len(token_ids), output.proposed.get(row, 0), output.certain.get(row, 0))
            if has_drafts:
                self._lifecycle.blocks.trim(seq, seq.num_tokens)
        if seq.timeline.first_token_at is None:
            seq.timeline.first_token_at = now
        if self.tells_tokens or not seq.has_spoken:
            seq.has_spoken = True
            logprobs = output.logprobs.get(row, ())[: len(token_ids)]
            self._lifecycle.events.append(TokensEmitted(seq.key, token_ids, logprobs))
        return None if reason is None else End(seq, reason)

    def _tell_scores(self, seq: Sequence, output: StepOutput) -> None:
        """What is known of the prompt's tokens is told, but for what was before a preemption."""
        assert seq.row is not None, "a sequence was granted tokens without a row"
        start = seq.num_computed_tokens
        # [start, num_scored) was told before · the chunk's first entry is of token start + 1
        fresh = output.prompt_logprobs.get(seq.row, ())[max(0, seq.num_scored_tokens - start) :]
        if fresh:
            seq.num_scored_tokens = max(seq.num_scored_tokens, start) + len(fresh)
            self._lifecycle.events.append(PromptScored(seq.key, fresh))

    def _charge(self, num_outputs: abc.Mapping[Flow, int], tallies: abc.Mapping[Flow, Tally], step: Step) -> None:
        yielding = step.terms.yielding
        services = []
        for flow, num_output in num_outputs.items():  # in the order of the plan's columns, which is fixed
            if flow in tallies or flow in yielding:
                services.append(_service(flow, num_output, tallies.get(flow, Tally()), is_borrowed=flow in yielding))
            else:
                services.append(flow.decodes(num_output))
            flow.account.num_output_tokens += num_output
        self._lifecycle.policy.charge(services)


def _service(flow: Flow, num_output: int, tally: Tally, *, is_borrowed: bool) -> Service:
    account, num_prefill, num_recomputed = flow.account, tally.num_prefill_tokens, tally.num_recomputed_tokens
    account.num_prefill_tokens += num_prefill
    account.num_recomputed_tokens += num_recomputed
    if is_borrowed:
        account.num_borrowed_tokens += num_prefill + num_output
    return Service(flow, num_prefill, num_output, num_recomputed, is_borrowed, tally.num_prefill_keys)


def _advance(seq: Sequence, tallies: defaultdict[Flow, Tally], now: Nanos) -> None:
    """The scheduled tokens of `seq` are computed; those computed for the first time count as service."""
    start = seq.num_computed_tokens
    end = start + seq.num_scheduled_tokens
    seq.num_computed_tokens = end
    seq.num_scheduled_tokens = 0
    if seq.timeline.first_token_at is None:
        seq.timeline.num_prefill_steps += 1
    else:
        seq.timeline.num_decode_steps += 1
    # [start, first_new) lost work · [first_new, end) all prompt, or all output, which counted when it was emitted
    first_new = min(end, max(start, seq.num_regained_tokens))
    if first_new > start:
        seq.num_recomputed_tokens += first_new - start
        tallies[seq.flow].num_recomputed_tokens += first_new - start
        if end >= seq.num_regained_tokens:
            seq.timeline.end_move(now)
    if first_new < seq.num_prompt_tokens:
        num_new, tally = end - first_new, tallies[seq.flow]
        tally.num_prefill_tokens += num_new
        tally.num_prefill_keys += num_chunk_keys(first_new, num_new)


def _accept(seq: Sequence, token_ids: tuple[int, ...]) -> tuple[tuple[int, ...], FinishReason | None]:
    """Of the sampled tokens, those up to the end of the sequence, and why it ends there; None if it does not."""
    num_left = seq.request.max_output_tokens - seq.num_output_tokens
    if seq.num_scheduled_drafts:  # a grant that was taken back meanwhile holds the sequence where it would have without
        token_ids = token_ids[: max(1, seq.num_grantable)]
    for num_accepted, token_id in enumerate(token_ids, start=1):
        if token_id in seq.request.stop_token_ids:
            return token_ids[:num_accepted], FinishReason.STOP
        if num_accepted == num_left:
            return token_ids[:num_accepted], FinishReason.LENGTH
    return token_ids, None
