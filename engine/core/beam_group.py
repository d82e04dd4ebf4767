"""The beams of one request: what each of them adds to a sequence, and what they count together.

To everybody outside the core they are one request: it is charged and granted the tokens of all beams, it is preempted
while one of them is, and ends once. Each beam is a sequence of its own, which is planned, moved and computed again by
itself; one whose candidates are in is held until those of all others are.
"""

import math
from collections import abc
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from engine.core.beams import BeamSearch, Tip
from engine.core.events import BeamFound, Preempted, Resumed, Timings, Usage
from engine.core.plan import Candidate, TokenLogprobs
from engine.core.timeline import Timeline
from engine.core.types import Nanos, PauseReason, PreemptionMode, Request, SequenceKey

if TYPE_CHECKING:  # a sequence has a beam
    from engine.core.sequence import Sequence


@dataclass(slots=True, eq=False)
class BeamGroup:
    """What the beams of a request share. Written by Lifecycle and BeamRounds.

    members            the beams, each at a place that it keeps while it goes on; the first stands for the request
    pauses             when the request was preempted
    num_round_tokens   output tokens that the round under way is charged for: one for each beam
    num_output_tokens  charged in the rounds before it
    num_given          of this round's, already charged
    num_made           sequences that the search has had
    num_found_tokens   prompt tokens that its first sequence found in the cache; None while that is the only one
    num_recomputed_tokens  of sequences that are no beams any more
    num_suspended      beams that are preempted, as far as anybody is told
    """

    search: BeamSearch
    pauses: Timeline
    members: "list[Sequence]" = field(default_factory=list)
    num_round_tokens: int = 1
    num_output_tokens: int = 0
    num_given: int = 0
    num_made: int = 1
    num_found_tokens: int | None = None
    num_recomputed_tokens: int = 0
    num_preemptions: int = 0
    num_suspended: int = 0

    @property
    def num_charged(self) -> int:
        """Output tokens so far."""
        return self.num_output_tokens + self.num_given

    @property
    def is_complete(self) -> bool:
        """Every beam has given its candidates."""
        return all(seq.beam is not None and seq.beam.candidates is not None for seq in self.members)

    @property
    def foremost(self) -> "Sequence":
        """The beam that tells best how far the request is: one that the others wait for."""
        waited_for = (seq for seq in self.members if seq.beam is not None and seq.beam.candidates is None)
        return next(waited_for, self.members[0])

    def new_key(self) -> SequenceKey:
        """That of a sequence that the search has not had yet."""
        self.num_made += 1
        return SequenceKey(self.members[0].request.generation_id, self.num_made - 1)

    def usage(self) -> Usage:
        """What the request consumed so far."""
        first, num_found = self.members[0], self.num_found_tokens
        num_computed = max(first.num_computed_tokens, first.num_regained_tokens) if num_found is None else math.inf
        return Usage(
            num_prompt_tokens=int(min(first.num_prompt_tokens, num_computed)),
            num_cached_prompt_tokens=first.num_found_tokens if num_found is None else num_found,
            num_output_tokens=self.num_charged,
            num_recomputed_tokens=self.num_recomputed_tokens + sum(seq.num_recomputed_tokens for seq in self.members),
            num_preemptions=self.num_preemptions,
        )

    def timings(self, ended_at: Nanos) -> Timings:
        """Of the request: its decode steps are the rounds behind the first one."""
        timeline, pauses = self.members[0].timeline, self.pauses
        num_rounds = max(0, self.search.num_tokens - 1)
        told = replace(
            timeline,
            suspended_at=pauses.suspended_at,
            suspended_ns=pauses.suspended_ns,
            num_decode_steps=num_rounds,
        )
        return told.timings(ended_at)

    def found(self) -> abc.Iterator[BeamFound]:
        """The hypotheses that were asked for, the best first."""
        key = self.members[0].key
        for rank, each in enumerate(self.search.finished[: self.search.params.num_returned]):
            yield BeamFound(key, rank, each)


@dataclass(slots=True, eq=False)
class Beam:
    """What a sequence has that is a beam.

    cumulative_logprob  sum over its output
    candidates          what may follow, once that is known and until all siblings have theirs; None: it goes on. Empty
                        for a place that no beam has
    scores              of each candidate, where log-probabilities are wanted
    logprobs            of its output, likewise
    is_suspended        it is preempted, and somebody may know that
    """

    group: BeamGroup
    cumulative_logprob: float = 0.0
    candidates: tuple[Candidate, ...] | None = None
    scores: tuple[TokenLogprobs, ...] = ()
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    is_suspended: bool = False

    @property
    def tip(self) -> Tip:
        return Tip(self.cumulative_logprob, self.candidates or ())

    def hold_reason(self, granted_output_tokens: int, *, reader_blocked: bool) -> PauseReason | None:
        """Why it may get no tokens. A round is computed whole or not at all."""
        group = self.group
        if group.num_output_tokens + group.num_round_tokens > granted_output_tokens:
            return PauseReason.QUOTA
        if reader_blocked:
            return PauseReason.READER
        return None if self.candidates is None else PauseReason.SIBLINGS

    def note(self, event: Preempted | Resumed) -> bool:
        """It happened to this beam. True if the request is to be told: of the first beam that is preempted, and of the
        last one that is resumed."""
        group = self.group
        if isinstance(event, Resumed):
            return self.resume(event.at)
        if event.reason is PauseReason.SIBLINGS:
            return False
        group.num_preemptions += event.mode is not PreemptionMode.PAUSE
        if self.is_suspended:
            return False
        self.is_suspended = True
        group.num_suspended += 1
        if group.num_suspended > 1:
            return False
        group.pauses.suspend(event.at)
        return True

    def resume(self, now: Nanos) -> bool:
        """It is preempted no more, or is gone. True if no beam is then, and one was."""
        if not self.is_suspended:
            return False
        self.is_suspended = False
        self.group.num_suspended -= 1
        if self.group.num_suspended:
            return False
        self.group.pauses.resume(now)
        return True


def beam_of(request: Request) -> Beam | None:
    """The only beam of a request that has just arrived; None: it does not search."""
    params = request.beam_search
    if params is None:
        return None
    search = BeamSearch(params, request.max_output_tokens, request.stop_token_ids)
    return Beam(BeamGroup(search, Timeline(request.arrived_at)))
