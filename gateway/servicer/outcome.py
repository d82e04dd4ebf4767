"""What a generation says on its way, and how it ended. Plain values between the relay and the RPCs."""

from dataclasses import dataclass
from enum import Enum

from gateway.engine_client import EngineTimings, TokenLogprobs
from gateway.errors import GatewayError
from gateway.servicer.prompt_scores import ScoredToken


class FinishReason(Enum):
    """Why the output ends here, in the words of the public protocol."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    QUEUE_TIMEOUT = "queue_timeout"
    QUOTA = "quota"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Started:
    """The request is past the quota and in the engine's queue."""


@dataclass(frozen=True, slots=True)
class Found:
    """That an output is one of those that a beam search found: `rank` 0 is the best."""

    rank: int
    score: float
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Delta:
    """New output: `num_tokens` of it, `num_output_tokens` in all so far.

    `token_ids` are there where the client wants them; `logprobs` is empty or has one entry per token id; `prompt` are
    the prompt's next tokens, where it wants to hear of these. With `found` it is one whole output of several.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    num_tokens: int
    num_output_tokens: int
    prompt: tuple[ScoredToken, ...] = ()
    found: Found | None = None


@dataclass(frozen=True, slots=True)
class Paused:
    """No output until `Continued`. The words are those of the public protocol."""

    reason: str
    mode: str


@dataclass(frozen=True, slots=True)
class Continued:
    """The request is being computed again."""


@dataclass(frozen=True, slots=True)
class Queued:
    """The request waits, and `position` others are served before it, or more where that is a lower bound.

    `estimated_wait_ns` is None while nobody can tell.
    """

    position: int
    is_lower_bound: bool
    estimated_wait_ns: int | None


Event = Started | Queued | Delta | Paused | Continued


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request. Billed: the whole prompt, the output up to its end; `num_discarded_tokens` lie beyond."""

    num_input_tokens: int
    num_cached_input_tokens: int
    num_output_tokens: int
    num_discarded_tokens: int
    num_reserved_tokens: int

    @property
    def num_billed_tokens(self) -> int:
        return self.num_input_tokens + self.num_output_tokens


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a request. `error` is what its caller is told instead of a result.

    `timings` is None where the engine said nothing at the end.
    """

    finish_reason: FinishReason
    usage: Usage
    timings: EngineTimings | None
    num_preemptions: int
    error: GatewayError | None
