"""What happened to a sequence. Each accepted request gets exactly one `Finished`, and nothing after it."""

from dataclasses import dataclass
from typing import NamedTuple

from engine.core.plan import TokenLogprobs
from engine.core.types import FinishReason, Nanos, PauseReason, PreemptionMode, SequenceKey


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that one request consumed: of its prompt those that were computed, all of them unless it ended early.

    `num_recomputed_tokens` is work done again after preemption, charged to nobody · `num_preemptions` counts the times
    that it lost its blocks.
    """

    num_prompt_tokens: int
    num_cached_prompt_tokens: int
    num_output_tokens: int
    num_recomputed_tokens: int
    num_preemptions: int


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


@dataclass(frozen=True, slots=True)
class Admitted:
    """The first tokens of the request were planned, `queue_ns` after it arrived."""

    key: SequenceKey
    queue_ns: Nanos


class TokensEmitted(NamedTuple):
    """New output tokens, in order; `logprobs` is empty or has one entry per token.

    A tuple, as one is made per sequence and step, and a frozen dataclass takes three times as long to make.
    """

    key: SequenceKey
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Preempted:
    """The sequence gets no more tokens until it is `Resumed`."""

    key: SequenceKey
    mode: PreemptionMode
    reason: PauseReason


@dataclass(frozen=True, slots=True)
class Resumed:
    """The sequence is being computed again."""

    key: SequenceKey


@dataclass(frozen=True, slots=True)
class Finished:
    """The end. `error` is set with reason ERROR only."""

    key: SequenceKey
    reason: FinishReason
    usage: Usage
    timings: Timings
    error: str | None = None


Event = Admitted | TokensEmitted | Preempted | Resumed | Finished
