"""The state of one sequence, which all parts of the scheduler share.

`Sequence` is the field's word; the abstract base class of that name is imported as `collections.abc`.
"""

from collections import abc
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from engine.core.beam_group import Beam, beam_of
from engine.core.block_names import NO_NAME, BlockName
from engine.core.drafting import Drafting
from engine.core.events import Finished, Move, MoveKind, Usage
from engine.core.flow import Flow
from engine.core.timeline import Timeline
from engine.core.types import (
    BlockId,
    FinishReason,
    HostBlockId,
    Nanos,
    PauseReason,
    PriorityClass,
    Request,
    SequenceKey,
    SequenceStatus,
    TenantId,
)


@dataclass(slots=True)
class BlockTable:
    """The KV blocks of one sequence, in token order: first those on the device, then those on the host.

    Written by BlockManager only.
    """

    device: list[BlockId] = field(default_factory=list)
    host: list[HostBlockId] = field(default_factory=list)


class Tail(NamedTuple):
    """The first tokens of a block that a sequence is to copy: it does not share it."""

    block_id: BlockId
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Hit:
    """What a prefix cache of this version has for a sequence: blocks from its first token on, those behind them that
    are on the host, the tokens in all of them, and how many of the first ones others use now. The tokens include those
    of `tail`, behind all these blocks."""

    version: int
    block_ids: tuple[BlockId, ...]
    host_block_ids: tuple[HostBlockId, ...]
    num_tokens: int
    num_used_blocks: int
    tail: Tail | None = None


class Finder(Protocol):
    """The prefix cache, as far as a waiting sequence asks it."""

    def hit(self, seq: "Sequence") -> Hit: ...


@dataclass(slots=True, eq=False)
class Sequence:
    """One sequence. Written by the parts of the scheduler; policies see a `SequenceView`.

    num_tokens            known tokens: the prompt and the output so far
    max_num_tokens        that the sequence can ever have
    num_plain_tokens      while fewer are known, one token more neither ends nor holds the sequence; 0 if any may
    num_computed_tokens   of these, whose keys and values are in the cache
    num_scheduled_tokens  tokens of the plan being made or open
    num_scored_tokens     prompt tokens whose log-probabilities were told, the first one, which has none, not counted
    num_regained_tokens   tokens below this mark were computed before a preemption: computing them again is lost work
    wants                 it is unfinished and not held
    has_spoken            a token was told of since it last came to run
    num_seizures          preemptions of the kind that `max_preemptions` limits
    resident_since        number of the plan in which it last came in
    row                   the row of the runner's batch; RUNNING sequences have one, PAUSED ones may
    drafting              None: it never has drafts
    block_names           of the full blocks of known tokens, from the first one on, as far as they were needed
    end_name              of the block in which the prompt ends and which it does not fill, once it was needed
    compared_token_ids    the prompt, or what stands for it where parts of blocks are compared
    num_named_blocks      blocks of the table, from the first one on, whose names were told to the prefix cache
    num_found_tokens      prompt tokens that were found in the cache and never computed for it
    announced             the block that it computes next, where others may wait for it
    is_sound              False: what it computed may be wrong
    beam                  None: its tokens are drawn
    """

    request: Request
    arrival_index: int
    flow: Flow
    granted_output_tokens: int
    timeline: Timeline
    status: SequenceStatus
    key: SequenceKey
    num_prompt_tokens: int
    num_tokens: int
    max_num_tokens: int
    num_plain_tokens: int = 0
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_scheduled_tokens: int = 0
    num_scored_tokens: int = 0
    num_regained_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_preemptions: int = 0
    num_seizures: int = 0
    resident_since: int = 0
    row: int | None = None
    reader_blocked: bool = False
    wants: bool = False
    has_spoken: bool = False
    block_table: BlockTable = field(default_factory=BlockTable)
    drafting: Drafting | None = None
    root_name: BlockName = NO_NAME
    block_names: list[BlockName] = field(default_factory=list)
    end_name: BlockName | None = None
    compared_token_ids: abc.Sequence[int] = ()
    num_named_blocks: int = 0
    num_found_tokens: int = 0
    announced: BlockName | None = None
    is_sound: bool = True
    finder: Finder | None = None
    hit: Hit | None = None
    beam: Beam | None = None

    @classmethod
    def of(cls, request: Request, arrival_index: int, flow: Flow, *, speculates: bool = False) -> "Sequence":
        """The sequence of a request that has just arrived. `speculates`: there is somebody who proposes drafts."""
        granted = request.granted_output_tokens
        num_prompt_tokens = len(request.prompt_token_ids)
        seq = cls(
            request=request,
            arrival_index=arrival_index,
            flow=flow,
            granted_output_tokens=request.max_charged_tokens if granted is None else granted,
            timeline=Timeline(request.arrived_at),
            status=SequenceStatus.WAITING,
            key=SequenceKey(request.generation_id, 0),
            num_prompt_tokens=num_prompt_tokens,
            num_tokens=num_prompt_tokens,
            max_num_tokens=num_prompt_tokens + request.max_output_tokens,
            drafting=Drafting() if speculates and request.speculates and request.beam_search is None else None,
            beam=beam_of(request),
        )
        if seq.beam is not None:
            seq.beam.group.members.append(seq)
        seq.watch()
        return seq

    def watch(self) -> None:
        """`num_plain_tokens` is true. Called whenever what may hold the sequence has changed."""
        can_end_early = self.request.stop_token_ids or self.request.sampling.constraint is not None
        if self.reader_blocked or can_end_early or self.beam is not None:
            self.num_plain_tokens = 0
        else:
            num_granted_tokens = self.num_prompt_tokens + self.granted_output_tokens
            self.num_plain_tokens = min(self.max_num_tokens, num_granted_tokens) - 1

    def lose_row(self) -> None:
        """It has no row, and the runner forgets what it proposed for it."""
        self.row = None
        if self.drafting is not None:
            self.drafting.num_proposed = self.drafting.num_certain = 0

    def forget_scheduled(self) -> None:
        """The open plan came to nothing: no token of it counts, and no draft."""
        self.num_scheduled_tokens = 0
        if self.drafting is not None:
            self.drafting.num_scheduled = self.drafting.num_proposed = self.drafting.limit = 0

    def begin(self, now: Nanos) -> Nanos:
        """It comes in for the first time. Returns how long it has waited for that."""
        queue_ns = Nanos(now - self.arrived_at)
        self.timeline.started_at = now
        self.flow.account.wait_ns += queue_ns
        return queue_ns

    def resume(self, num_lost_blocks: int, now: Nanos) -> None:
        """It is computed again, and first what it has lost."""
        self.timeline.resume(now)
        if (num_tokens := self.num_lost_tokens) > 0:
            self.timeline.begin_move(Move(MoveKind.RECOMPUTE, self.num_preemptions, num_lost_blocks, num_tokens, now))

    @property
    def of_request(self) -> "abc.Sequence[Sequence]":
        """All sequences of its request."""
        return (self,) if self.beam is None else self.beam.group.members

    @property
    def num_lost_tokens(self) -> int:
        """Tokens that a preemption took and that are to be computed again."""
        return max(0, self.num_regained_tokens - self.num_computed_tokens)

    @property
    def moves(self) -> tuple[Move, ...]:
        """What preemptions did to its blocks so far."""
        return tuple(self.timeline.moves)

    @property
    def tenant_id(self) -> TenantId:
        return self.flow.account.id

    @property
    def priority_class(self) -> PriorityClass:
        return self.flow.priority_class

    @property
    def num_device_blocks(self) -> int:
        return len(self.block_table.device)

    @property
    def num_cached_prompt_tokens(self) -> int:
        """Prompt tokens in the prefix cache: while it waits, those that it would find now, and then those it found."""
        if self.finder is None or self.status is not SequenceStatus.WAITING:
            return self.num_found_tokens
        return min(self.num_prompt_tokens, self.finder.hit(self).num_tokens)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Known tokens whose keys and values are not in the cache: 1 of a sequence that decodes."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def arrived_at(self) -> Nanos:
        return self.request.arrived_at

    @property
    def deadline(self) -> Nanos | None:
        return self.request.deadline

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_grantable(self) -> int:
        """Output tokens that it may still emit, at least 0."""
        return max(0, min(self.request.max_output_tokens, self.granted_output_tokens) - self.num_output_tokens)

    @property
    def num_scheduled_drafts(self) -> int:
        """Drafts of the plan being made or open, behind its scheduled tokens."""
        return 0 if self.drafting is None else self.drafting.num_scheduled

    @property
    def hold_reason(self) -> PauseReason | None:
        """Why the sequence may get no tokens, whatever the policy says; None if it may."""
        if self.beam is not None:
            return self.beam.hold_reason(self.granted_output_tokens, reader_blocked=self.reader_blocked)
        if self.num_output_tokens >= self.granted_output_tokens:
            return PauseReason.QUOTA
        return PauseReason.READER if self.reader_blocked else None

    @property
    def expires_at(self) -> Nanos | None:
        """The next point in time at which the sequence ends if it has not moved on."""
        queue_deadline = self.request.queue_deadline if self.timeline.started_at is None else None
        limits = [limit for limit in (self.request.deadline, queue_deadline) if limit is not None]
        return min(limits, default=None)

    @property
    def expiry_reason(self) -> FinishReason:
        """Which of its limits `expires_at` is."""
        return FinishReason.DEADLINE if self.expires_at == self.request.deadline else FinishReason.QUEUE_TIMEOUT

    def tokens(self, start: int, end: int) -> abc.Sequence[int]:
        """The known tokens [start, end)."""
        prompt, num_prompt_tokens = self.request.prompt_token_ids, self.num_prompt_tokens
        if end <= num_prompt_tokens:
            return prompt[start:end]
        if start >= num_prompt_tokens:
            return self.output_token_ids[start - num_prompt_tokens : end - num_prompt_tokens]
        return (*prompt[start:], *self.output_token_ids[: end - num_prompt_tokens])

    def finished(self, reason: FinishReason, now: Nanos, error: str | None) -> Finished:
        """How its request has ended."""
        if self.beam is None:
            return Finished(self.key, reason, self.usage(), self.timeline.timings(now), error, self.moves)
        group = self.beam.group
        return Finished(self.key, reason, group.usage(), group.timings(now), error)

    def usage(self) -> Usage:
        """What the sequence consumed so far."""
        return Usage(
            num_prompt_tokens=min(self.num_prompt_tokens, max(self.num_computed_tokens, self.num_regained_tokens)),
            num_cached_prompt_tokens=self.num_found_tokens,
            num_output_tokens=self.num_output_tokens,
            num_recomputed_tokens=self.num_recomputed_tokens,
            num_preemptions=self.num_preemptions,
            num_drafted_tokens=0 if self.drafting is None else self.drafting.num_drafted,
            num_accepted_tokens=0 if self.drafting is None else self.drafting.num_accepted,
        )
