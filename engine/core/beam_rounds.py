"""From one round of a beam search to the next: who goes on, who forks, who ends, and what becomes of the blocks.

A round is over when every beam has its candidates, mostly in one step. Of each beam's children the first goes on in its
place, with its row. Further ones are new sequences in the places of beams that have no child: they read the full blocks
of their parent, and what is in its last one is copied for them on the device. Where that is not there, or no block is
free, they compute it again. Beams without a child end in the same commit, their rows and blocks with them.
"""

from collections import abc
from dataclasses import replace

from engine.core.beam_group import Beam, BeamGroup
from engine.core.beams import Child, Ending, Hypothesis
from engine.core.events import Resumed
from engine.core.lifecycle import Lifecycle
from engine.core.plan import StepOutput, TokenLogprobs
from engine.core.policy import LeaveReason
from engine.core.sequence import BlockTable, Sequence
from engine.core.types import FinishReason, Nanos, SequenceStatus

NOTHING_FOLLOWS = "no token may follow in any of the beams"


class BeamRounds:
    """The searches of one scheduler. `num_spare` says how many blocks are free and not kept for anybody.

    given  beams that have given their candidates since the last `settle`
    """

    def __init__(self, lifecycle: Lifecycle, num_spare: abc.Callable[[], int]) -> None:
        self._lifecycle = lifecycle
        self._num_spare = num_spare
        self.given: list[Sequence] = []

    def take(self, seq: Sequence, row: int, output: StepOutput) -> None:
        """`seq` was computed in `row`, and has given its candidates."""
        beam = _beam(seq)
        beam.candidates, beam.scores = output.candidates[row], output.logprobs.get(row, ())
        beam.group.num_given += 1
        self.given.append(seq)

    def settle(self, now: Nanos) -> None:
        """Rounds that are over have led to the next ones, or to the end; beams that wait for others are held."""
        if not self.given:
            return
        given, self.given = self.given, []
        for group in dict.fromkeys([_beam(seq).group for seq in given]):
            has_ended = group.members[0].status is SequenceStatus.FINISHED  # another of its beams failed
            if not has_ended and group.is_complete:
                self._end_round(group, now)
            for seq in group.members:
                self._hold_anew(seq, now)

    def _hold_anew(self, seq: Sequence, now: Nanos) -> None:
        """What holds `seq` may be another than before the commit."""
        if seq.status is SequenceStatus.RUNNING:
            if (reason := seq.hold_reason) is not None:
                self._lifecycle.pause(seq, reason, now)
        elif seq.status is not SequenceStatus.FINISHED:
            self._lifecycle.hold_or_let_go(seq, now)

    def _end_round(self, group: BeamGroup, now: Nanos) -> None:
        search, lifecycle = group.search, self._lifecycle
        if not search.num_tokens:
            group.members[0].timeline.first_token_at = now
        round_ = search.rank([_beam(seq).tip for seq in group.members])
        search.keep(round_, [_hypothesis(group.members[ending.child.parent], ending) for ending in round_.endings])
        group.num_output_tokens, group.num_given = group.num_charged, 0
        if not search.is_over:
            self._go_on(group, round_.children, now)
        elif search.finished:
            lifecycle.events += group.found()
            lifecycle.finish(group.members[0], search.finished[0].reason, now)
        else:
            lifecycle.finish(group.members[0], FinishReason.ERROR, now, NOTHING_FOLLOWS)

    def _go_on(self, group: BeamGroup, children: abc.Sequence[Child], now: Nanos) -> None:
        """The children are the beams."""
        parents = list(group.members)
        if group.num_found_tokens is None:
            group.num_found_tokens = parents[0].num_found_tokens
        first: dict[int, Child] = {}
        further = [child for child in children if first.setdefault(child.parent, child) is not child]
        vacant = [place for place in range(len(parents)) if place not in first]
        for place in vacant:
            self._leave(parents[place], now)
        forks = [self._fork(parents[child.parent], child, _take_place(group, vacant)) for child in further]
        forks += [_nobody(self._put_at(parents[place], place)) for place in vacant]
        for place, child in first.items():
            _append(parents[place], child)
            if parents[place].row is not None:
                self._lifecycle.chosen[parents[place]] = child.token_id
        group.num_round_tokens = len(children)
        self._lifecycle.by_generation[group.members[0].request.generation_id] = group.members[0]
        for seq in forks:
            self._enter(seq, now)

    def _leave(self, seq: Sequence, now: Nanos) -> None:
        """`seq` is no beam any more, and gives up what it has."""
        beam = _beam(seq)
        beam.group.num_recomputed_tokens += seq.num_recomputed_tokens
        if beam.resume(now):
            self._lifecycle.events.append(Resumed(seq.key, now))
        self._lifecycle.end(seq)
        self._lifecycle.policy.on_leave(seq, LeaveReason.FINISHED, now)

    def _fork(self, parent: Sequence, child: Child, place: int) -> Sequence:
        """A sequence at that place, in no list yet, with the tokens of `parent`, that of `child`, and shared blocks."""
        seq, blocks, device = self._put_at(parent, place), self._lifecycle.blocks, parent.block_table.device
        num_full = parent.num_computed_tokens // blocks.block_size
        num_shared = min(num_full, len(device))
        blocks.share(parent, seq, num_shared)
        seq.num_computed_tokens = num_shared * blocks.block_size
        if seq.num_computed_tokens < parent.num_computed_tokens and len(device) > num_full and self._num_spare() > 0:
            blocks.grow_by_one([seq])
            self._lifecycle.block_copies.append((device[num_full], seq.block_table.device[-1]))
            seq.num_computed_tokens = parent.num_computed_tokens
        if seq.num_computed_tokens < parent.num_tokens:
            seq.num_regained_tokens = parent.num_tokens  # they were computed before, and paid for
        _append(seq, child)
        return seq

    def _put_at(self, parent: Sequence, place: int) -> Sequence:
        """A sequence like `parent`, but without blocks, at this place among the beams."""
        lifecycle, beam, members = self._lifecycle, _beam(parent), _beam(parent).group.members
        is_new = place == len(members)
        seq = replace(
            parent,
            arrival_index=lifecycle.num_arrivals if is_new else members[place].arrival_index,
            timeline=replace(parent.timeline, suspended_at=None, suspended_ns=0, moves=[]),
            status=SequenceStatus.WAITING,
            key=beam.group.new_key(),
            output_token_ids=list(parent.output_token_ids),
            num_computed_tokens=0,
            num_regained_tokens=0,
            num_recomputed_tokens=0,
            num_preemptions=0,
            num_seizures=0,
            resident_since=lifecycle.num_plans,
            row=None,
            wants=False,
            block_table=BlockTable(),
            block_names=list(parent.block_names),
            num_named_blocks=0,
            num_found_tokens=parent.num_prompt_tokens,
            announced=None,
            hit=None,
            beam=replace(beam, logprobs=list(beam.logprobs), is_suspended=False),
        )
        lifecycle.num_arrivals += is_new
        members[place:] = [seq, *members[place + 1 :]]
        return seq

    def _enter(self, seq: Sequence, now: Nanos) -> None:
        """`seq` is planned from now on. To the policy one that does not wait has come and waits no longer."""
        has_blocks, policy = bool(seq.block_table.device), self._lifecycle.policy
        if not has_blocks:
            seq.num_preemptions = 1  # what waits there is no new request
        self._lifecycle.enter(seq, now)
        if seq.status is not SequenceStatus.WAITING:
            policy.on_arrive(seq, now)
            policy.on_leave(seq, LeaveReason.ADMITTED if has_blocks else LeaveReason.WITHDRAWN, now)


def _beam(seq: Sequence) -> Beam:
    assert seq.beam is not None, "only a beam has a part in a search"
    return seq.beam


def _take_place(group: BeamGroup, vacant: list[int]) -> int:
    """Where a further beam has its place: one of those that are vacant, which it then is not, or behind the others."""
    return vacant.pop(0) if vacant else len(group.members)


def _nobody(seq: Sequence) -> Sequence:
    """No beam stands there, until one forks that has no other place."""
    _beam(seq).candidates = ()
    return seq


def _hypothesis(parent: Sequence, ending: Ending) -> Hypothesis:
    """`parent` with its last token."""
    child, beam = ending.child, _beam(parent)
    return Hypothesis(
        score=ending.score,
        cumulative_logprob=child.cumulative_logprob,
        token_ids=(*parent.output_token_ids, child.token_id),
        reason=ending.reason,
        logprobs=(*beam.logprobs, *_score_of(beam, child)),
    )


def _append(seq: Sequence, child: Child) -> None:
    """`seq`, which has the tokens of the child's parent, is the child."""
    beam = _beam(seq)
    seq.output_token_ids.append(child.token_id)
    seq.num_tokens += 1
    beam.logprobs += _score_of(beam, child)
    beam.cumulative_logprob = child.cumulative_logprob
    beam.candidates, beam.scores = None, ()


def _score_of(beam: Beam, child: Child) -> tuple[TokenLogprobs, ...]:
    return beam.scores[child.candidate : child.candidate + 1]
