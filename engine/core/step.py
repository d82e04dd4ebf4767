"""A plan in the making: what each sequence was granted so far, and what is left of the step.

The planner fills it, `to_plan` freezes it into what the runner gets. Knows no policy and takes no decision.
"""

from dataclasses import dataclass, field

from engine.core.plan import RowStart, StepPlan
from engine.core.sequence import Sequence
from engine.core.types import Nanos


@dataclass(slots=True)
class Step:
    """The step that is planned at `now`. Written by Planner.

    budget         tokens that may still be granted
    granted        sequences that were granted tokens, in order
    started        of these, the ones that took their row in this step
    prefills       running sequences with more than one token to compute, in the order in which they get their turns
    num_old_blocks of each sequence whose table grew, the blocks that it had before
    """

    now: Nanos
    budget: int
    granted: list[Sequence] = field(default_factory=list)
    started: list[Sequence] = field(default_factory=list)
    prefills: list[Sequence] = field(default_factory=list)
    num_old_blocks: dict[Sequence, int] = field(default_factory=dict)
    has_preempted: bool = False

    def grant(self, seq: Sequence, num_tokens: int) -> None:
        """`seq` computes `num_tokens` more in this step; its blocks hold them."""
        if not seq.num_scheduled_tokens:
            self.granted.append(seq)
        seq.num_scheduled_tokens += num_tokens
        self.budget -= num_tokens

    def to_plan(self, step_id: int, stopped: tuple[int, ...]) -> StepPlan:
        """What the runner gets. `granted` is in the order of the plan's columns afterwards."""
        self.granted = granted = _decodes_first(self.granted)
        started = frozenset(self.started)
        grown = [item for item in self.num_old_blocks.items() if item[0] not in started]
        return StepPlan(
            step_id=step_id,
            stopped=stopped,
            started=tuple([_row_start(seq) for seq in self.started]),
            new_blocks=tuple([(_row(seq), tuple(seq.block_table.device[num_old:])) for seq, num_old in grown]),
            rows=tuple([_row(seq) for seq in granted]),
            starts=tuple([seq.num_computed_tokens for seq in granted]),
            num_tokens=tuple([seq.num_scheduled_tokens for seq in granted]),
            samples=tuple([seq.num_computed_tokens + seq.num_scheduled_tokens == seq.num_tokens for seq in granted]),
        )


def _decodes_first(granted: list[Sequence]) -> list[Sequence]:
    decodes = [seq for seq in granted if seq.num_scheduled_tokens == 1]
    if len(decodes) == len(granted):
        return granted
    return decodes + [seq for seq in granted if seq.num_scheduled_tokens > 1]


def _row_start(seq: Sequence) -> RowStart:
    return RowStart(
        row=_row(seq),
        key=seq.key,
        token_ids=(*seq.request.prompt_token_ids, *seq.output_token_ids),
        num_prompt_tokens=seq.num_prompt_tokens,
        block_ids=tuple(seq.block_table.device),
        sampling=seq.request.sampling,
    )


def _row(seq: Sequence) -> int:
    assert seq.row is not None, "a sequence without a row was granted tokens"
    return seq.row
