"""What a step does and what came of it: the contract between scheduler and runner.

The plan is columnar. A sequence that takes part in steps owns a *row* of the runner's batch; it brings its tokens and
blocks once, in a `RowStart`, and afterwards only new block ids travel. Nothing here grows with context length or
with the number of waiting sequences.
"""

from collections import abc
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from engine.core.quick_enum import quick
from engine.core.types import BlockId, CopyId, HostBlockId, SamplingParams, SequenceKey


@quick
class CopyDirection(Enum):
    """OUT is from the device pool to the host pool."""

    OUT = "out"
    IN = "in"


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Blocks of one sequence that change pools: `device_block_ids[i]` and `host_block_ids[i]` are one pair.

    A copy begins before the chunks of its plan and may end many steps later; until its completion is committed both
    sides are fenced. It moves whole blocks, all layers of a block at once.
    """

    copy_id: CopyId
    direction: CopyDirection
    device_block_ids: tuple[BlockId, ...]
    host_block_ids: tuple[HostBlockId, ...]


@dataclass(frozen=True, slots=True)
class RowStart:
    """A sequence takes a row. `token_ids` are its tokens so far, the first `num_prompt_tokens` of them its prompt.

    `stop_token_ids` end the output: the scheduler judges that, but no draft need be proposed behind one.
    `num_candidates` above 0: no token is drawn, but so many of the likeliest ones are told.
    """

    row: int
    key: SequenceKey
    token_ids: abc.Sequence[int]
    num_prompt_tokens: int
    block_ids: tuple[BlockId, ...]
    sampling: SamplingParams
    stop_token_ids: frozenset[int] = frozenset()
    num_candidates: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass, and copies that begin beside it. A plan may hold copies only.

    Order of effects: `block_copies` are done, then `copies` begin, `stopped` rows are forgotten, `started` rows begin,
    `new_blocks` are appended, then the chunks run. The columns `rows`, `starts`, `num_tokens`, `samples` have one entry
    per chunk, those of one token (decodes) before the longer ones: the chunk computes tokens
    [start, start + num_tokens) of its row, and samples a next token from the last of them if `samples`, which is so
    exactly when it reaches the last known token. A row that is both stopped and started changes hands. `start` is above
    0 in the first chunk of a row whose sequence kept, found or was given blocks.

    Speculation: of the tokens of a chunk the last `num_drafts` are drafts that the runner proposed for the row. It
    accepts of them what it would have sampled, and afterwards the row has the blocks that its known tokens, the new one
    included, need; the others are free again. Behind its result it may propose up to `draft_limits` drafts for a
    later step. Both columns are empty where all their entries would be 0. A row's proposals live until its next chunk.

    `block_copies` are (from, to) on the device, one after the other: a block may be the target of one and the source of
    the next, and may be both of one if it goes on with what it held. Nothing else of the plan has touched any of them,
    so a source may be free by now, or somebody else's.

    `chosen` are (row, token): the token that follows those that the row knows. It is the whole of the row's chunk.
    """

    step_id: int
    stopped: tuple[int, ...] = ()
    started: tuple[RowStart, ...] = ()
    new_blocks: tuple[tuple[int, tuple[BlockId, ...]], ...] = ()
    rows: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    num_tokens: tuple[int, ...] = ()
    samples: tuple[bool, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    num_drafts: tuple[int, ...] = ()
    draft_limits: tuple[int, ...] = ()
    block_copies: tuple[tuple[BlockId, BlockId], ...] = ()
    chosen: tuple[tuple[int, int], ...] = ()


class Candidate(NamedTuple):
    """A token that may come next, and the logarithm of its probability among those that may, as it would be drawn."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms under the unmodified distribution. `top` is (token id, logprob), likeliest first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Results by row. Every row that samples is in exactly one of `accepted`, `candidates` and `errors`.

    `accepted` holds the tokens sampled: with drafts, those that were right and the one that follows them. `errors` ends
    a sequence and says why, in words a client may read, by their type whether the client asked for it
    (`engine.grammars.dead_ends`); `ended` are rows whose output is complete with what was
    accepted. `prompt_logprobs` has, for the rows that want them, one entry for each prompt token that the chunk
    predicts: the first one is that of the token behind the chunk's first. `completed_copies` are copies of this or
    earlier plans, each told once, in any order. `proposed` is how many drafts the runner has for the row now, none
    where it is missing; of these the first `certain` ones can hardly be wrong. `candidates` has for the rows that
    started with a number of them so many, or all that may be drawn, the likeliest first; their `logprobs`, where they
    want them, are those of each candidate.
    """

    step_id: int
    accepted: abc.Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    logprobs: abc.Mapping[int, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    errors: abc.Mapping[int, str] = field(default_factory=dict)
    completed_copies: tuple[CopyId, ...] = ()
    ended: frozenset[int] = frozenset()
    prompt_logprobs: abc.Mapping[int, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    proposed: abc.Mapping[int, int] = field(default_factory=dict)
    candidates: abc.Mapping[int, tuple[Candidate, ...]] = field(default_factory=dict)
    certain: abc.Mapping[int, int] = field(default_factory=dict)
