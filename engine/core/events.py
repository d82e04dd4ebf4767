"""What happened to a sequence. Each accepted request gets exactly one `Finished`, and nothing after it."""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from engine.core.beams import Hypothesis
from engine.core.plan import TokenLogprobs
from engine.core.quick_enum import quick
from engine.core.types import FinishReason, Nanos, PauseReason, PreemptionMode, SequenceKey


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that one request consumed: of its prompt those that were computed, all of them unless it ended early.

    `num_recomputed_tokens` is work done again after preemption, charged to nobody · `num_preemptions` counts the times
    that it lost its blocks · `num_drafted_tokens` drafts were verified; the accepted ones are part of the output.
    """

    num_prompt_tokens: int
    num_cached_prompt_tokens: int
    num_output_tokens: int
    num_recomputed_tokens: int
    num_preemptions: int
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Lengths in nanoseconds: waiting for the first step, from there to the first token, from there to the end.

    `preempted_ns` is the part of them between each Preempted and the next Resumed, or the end.
    """

    queue_ns: Nanos
    prefill_ns: Nanos
    decode_ns: Nanos
    preempted_ns: Nanos
    num_prefill_steps: int
    num_decode_steps: int


@quick
class DispatchReason(Enum):
    """Why a request came in when it did.

    ALONE nobody else waited · ORDER the policy ranked it before the others · PASSED those before it found no room, and
    it fitted beside what they reserved · CLAIM blocks were taken from others for it · IDLE nothing else could run
    """

    ALONE = "alone"
    ORDER = "order"
    PASSED = "passed"
    CLAIM = "claim"
    IDLE = "idle"


@quick
class MoveKind(Enum):
    """What is done to the blocks of a preempted sequence."""

    SWAP_OUT = "swap_out"
    SWAP_IN = "swap_in"
    RECOMPUTE = "recompute"


class Move(NamedTuple):
    """Blocks that were copied to the host or back, or what they held computed again.

    `preemption` is which of the sequence's preemptions that belongs to, counted from 1 · `num_tokens` are those to be
    computed again, 0 of a copy · `ended_at` None: it had not ended when the sequence did
    """

    kind: MoveKind
    preemption: int
    num_blocks: int
    num_tokens: int
    started_at: Nanos
    ended_at: Nanos | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """The first tokens of the request were planned, `queue_ns` after it arrived."""

    key: SequenceKey
    queue_ns: Nanos
    reason: DispatchReason = field(default=DispatchReason.ORDER, compare=False)


class TokensEmitted(NamedTuple):
    """New output tokens, in order; `logprobs` is empty or has one entry per token.

    A tuple, as one is made per sequence and step, and a frozen dataclass takes three times as long to make.
    """

    key: SequenceKey
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


class PromptScored(NamedTuple):
    """Log-probabilities of the prompt's next tokens, in order, from its second token on; each is told once."""

    key: SequenceKey
    logprobs: tuple[TokenLogprobs, ...]


class BeamFound(NamedTuple):
    """One of the hypotheses that a search has come to, of rank 0 if it is the best. `Finished` follows the last one."""

    key: SequenceKey
    rank: int
    hypothesis: Hypothesis


@dataclass(frozen=True, slots=True)
class Preempted:
    """The sequence gets no more tokens until it is `Resumed`.

    `at` is the time of the plan that decided it · `claimant` the other request that its blocks were taken for
    """

    key: SequenceKey
    mode: PreemptionMode
    reason: PauseReason
    at: Nanos = field(default=Nanos(0), compare=False)
    claimant: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Resumed:
    """The sequence is being computed again, since the plan made `at` that time."""

    key: SequenceKey
    at: Nanos = field(default=Nanos(0), compare=False)


@dataclass(frozen=True, slots=True)
class Finished:
    """The end. `error` is set with reason ERROR only; `moves` are what preemptions did to its blocks, in order."""

    key: SequenceKey
    reason: FinishReason
    usage: Usage
    timings: Timings
    error: str | None = None
    moves: tuple[Move, ...] = field(default=(), compare=False)


Event = Admitted | PromptScored | TokensEmitted | BeamFound | Preempted | Resumed | Finished
