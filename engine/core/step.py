"""A plan in the making: what each sequence was granted so far, and what is left of the step.

The planner fills it, `to_plan` freezes it into what the runner gets. Knows no policy and takes no decision.
"""

from collections import Counter, abc
from dataclasses import dataclass, field

from engine.core.flow import Flow
from engine.core.plan import BlockCopy, RowStart, StepPlan
from engine.core.policy import Terms
from engine.core.rows import Rows
from engine.core.sequence import Sequence
from engine.core.types import BlockId, Nanos


@dataclass(slots=True)
class Step:
    """The step that is planned at `now`. Written by Planner and its parts.

    budget         tokens that may still be granted
    granted        sequences that were granted tokens, in order
    num_old_blocks of each sequence whose table grew, the blocks that it had before
    flows          flows that were granted tokens
    passed         heads that found no room
    served_classes classes whose turn is over
    has_preempted  blocks were taken from a sequence that was not held
    num_flows      flows that want service
    num_grants     how often prompts were granted tokens, or decodes lost theirs
    num_context    keys that the decodes of this step read
    num_drafts     draft tokens behind the decodes
    may_propose    the runner may propose drafts behind some result
    """

    now: Nanos
    budget: int
    terms: Terms = field(default_factory=Terms)
    granted: list[Sequence] = field(default_factory=list)
    num_old_blocks: dict[Sequence, int] = field(default_factory=dict)
    flows: dict[Flow, None] = field(default_factory=dict)
    passed: list[Sequence] = field(default_factory=list)
    served_classes: set[str] = field(default_factory=set)
    has_preempted: bool = False
    num_grants: int = 0
    num_decodes: int = 0
    num_context: int = 0
    num_flows: int = 0
    num_drafts: int = 0
    may_propose: bool = False

    def grant_decodes(self, seqs: abc.Sequence[Sequence]) -> None:
        """Each of `seqs` computes its one uncomputed token; its blocks hold it."""
        for seq in seqs:
            seq.num_scheduled_tokens = 1
        for flow, num_decodes in Counter([seq.flow for seq in seqs]).items():
            self.flows[flow] = None
            flow.num_satisfied += num_decodes
            for node in flow.nodes:
                node.num_planned_output_tokens += num_decodes
        self.granted += seqs
        self.budget -= len(seqs)
        self.num_decodes += len(seqs)
        self.num_context += sum([seq.num_tokens for seq in seqs])

    def grant(self, seq: Sequence, num_tokens: int) -> None:
        """`seq` computes `num_tokens` more of its prompt in this step; its blocks hold them."""
        if not seq.num_scheduled_tokens:
            self.granted.append(seq)
        seq.num_scheduled_tokens += num_tokens
        self.num_grants += 1
        self.budget -= num_tokens
        flow = seq.flow
        self.flows[flow] = None
        is_complete = seq.num_scheduled_tokens == seq.num_uncomputed_tokens
        flow.num_satisfied += is_complete
        num_lost = max(0, min(num_tokens, seq.num_regained_tokens - seq.num_computed_tokens))
        for node in flow.nodes:
            node.num_planned_prefill_tokens += num_tokens - num_lost
            node.num_planned_output_tokens += is_complete

    def grant_draft(self, seq: Sequence) -> None:
        """The decode of `seq` carries a draft more; its blocks hold it."""
        assert seq.drafting is not None, "a sequence without speculation was granted a draft"
        seq.drafting.num_scheduled += 1
        self.num_drafts += 1
        self.budget -= 1

    def weight(self, flow: Flow) -> float:
        """The part of the machine that is the flow's, as its policy sees it; else its weight. Only ratios count."""
        return flow.weight if self.terms.share is None else self.terms.share(flow)

    def weights(self, flows: abc.Iterable[Flow]) -> dict[Flow, float]:
        """The weight of each of `flows`."""
        share = self.terms.share
        return {flow: flow.weight if share is None else share(flow) for flow in flows}

    def revoke(self, seq: Sequence) -> None:
        """The decode of `seq` was not granted after all."""
        self.granted.remove(seq)
        self.num_grants += 1
        self.num_old_blocks.pop(seq, None)  # its next row begins with all its blocks
        seq.num_scheduled_tokens = 0
        self.budget += 1
        self.num_decodes -= 1
        self.num_context -= seq.num_tokens
        seq.flow.num_satisfied -= 1
        for node in seq.flow.nodes:
            node.num_planned_output_tokens -= 1

    def forget_planned(self) -> None:
        """What this step planned is charged, or the next plan begins: it counts provisionally no more.

        The step has no `flows` any more; to forget twice costs nothing.
        """
        for flow in self.flows:
            for node in flow.nodes:
                node.num_planned_prefill_tokens = node.num_planned_output_tokens = 0
        self.flows = {}

    def to_plan(
        self,
        step_id: int,
        rows: Rows,
        copies: tuple[BlockCopy, ...],
        block_copies: tuple[tuple[BlockId, BlockId], ...] = (),
        chosen: dict[Sequence, int] | None = None,
    ) -> StepPlan:
        """What the runner gets. `granted` is in the order of the plan's columns afterwards, and of `chosen` nobody is
        left that is in it."""
        num_tokens, samples = self._order()
        granted, known = self.granted, rows.known
        started = [seq for seq in granted if seq.row not in known]
        grown = [item for item in self.num_old_blocks.items() if item[0].row in known]
        stopped = rows.tell([_row(seq) for seq in started])
        return StepPlan(
            step_id=step_id,
            stopped=stopped,
            started=tuple([_row_start(seq) for seq in started]),
            new_blocks=tuple([(_row(seq), tuple(seq.block_table.device[num_old:])) for seq, num_old in grown]),
            rows=_row_numbers(granted),
            starts=tuple([seq.num_computed_tokens for seq in granted]),
            num_tokens=num_tokens,
            samples=samples,
            copies=copies,
            num_drafts=tuple([seq.num_scheduled_drafts for seq in granted]) if self.num_drafts else (),
            draft_limits=tuple([_draft_limit(seq) for seq in granted]) if self.may_propose else (),
            block_copies=block_copies,
            chosen=tuple([(_row(seq), chosen.pop(seq)) for seq in granted if seq in chosen]) if chosen else (),
        )

    def _order(self) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        """`granted` is in the order of the plan's columns. Returns the length of each chunk, and whether it samples."""
        if self.num_decodes == len(self.granted) and not self.num_drafts:  # each is the one token that is not computed
            return (1,) * len(self.granted), (True,) * len(self.granted)
        self.granted = _decodes_first(self.granted)
        return _chunks(self.granted)


def _decodes_first(granted: list[Sequence]) -> list[Sequence]:
    """Chunks of one token, then decodes with drafts, then the others."""
    decodes = [seq for seq in granted if seq.num_scheduled_tokens == 1]
    plain = [seq for seq in decodes if not seq.num_scheduled_drafts]
    if len(plain) == len(granted):
        return granted
    with_drafts = [seq for seq in decodes if seq.num_scheduled_drafts]
    return plain + with_drafts + [seq for seq in granted if seq.num_scheduled_tokens > 1]


def _chunks(granted: abc.Sequence[Sequence]) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """The length of each chunk, and whether it reaches the last known token."""
    num_tokens = tuple([seq.num_scheduled_tokens + seq.num_scheduled_drafts for seq in granted])
    return num_tokens, tuple([seq.num_scheduled_tokens == seq.num_uncomputed_tokens for seq in granted])


def _row_numbers(granted: abc.Sequence[Sequence]) -> tuple[int, ...]:
    numbers = [seq.row for seq in granted if seq.row is not None]
    assert len(numbers) == len(granted), "a sequence without a row was granted tokens"
    return tuple(numbers)


def _draft_limit(seq: Sequence) -> int:
    return 0 if seq.drafting is None else max(0, seq.drafting.limit)


def _row_start(seq: Sequence) -> RowStart:
    return RowStart(
        row=_row(seq),
        key=seq.key,
        token_ids=known_token_ids(seq),
        num_prompt_tokens=seq.num_prompt_tokens,
        block_ids=tuple(seq.block_table.device),
        sampling=seq.request.sampling,
        stop_token_ids=seq.request.stop_token_ids,
        num_candidates=0 if seq.beam is None else seq.beam.group.search.num_candidates,
    )


def known_token_ids(seq: Sequence) -> abc.Sequence[int]:
    """Prompt and output so far. A prompt that nothing was emitted for is passed on as it is."""
    prompt = seq.request.prompt_token_ids
    return (*prompt, *seq.output_token_ids) if seq.output_token_ids else prompt


def _row(seq: Sequence) -> int:
    assert seq.row is not None, "a sequence without a row was granted tokens"
    return seq.row
