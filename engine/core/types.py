"""Identities, requests and the words for what happens to them. Everything here is frozen."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, NewType

from engine.core.quick_enum import quick

Nanos = NewType("Nanos", int)
"""A point on, or a length of, the monotonic clock of whoever drives the scheduler, in nanoseconds."""

NANOS_PER_MS = 1_000_000

BlockId = NewType("BlockId", int)
"""Index of a KV block in the device pool."""

HostBlockId = NewType("HostBlockId", int)
"""Index of a KV block in the host pool."""

CopyId = NewType("CopyId", int)
"""One copy between the pools, from the plan that starts it to its completion."""

TenantId = NewType("TenantId", str)
"""The path of node ids from organization to team, joined by `/`: the unit of weight and accounting."""


class SequenceKey(NamedTuple):
    """One sequence of one request. `sample_index` is 0 unless the request asked for several samples or beams."""

    generation_id: str
    sample_index: int


@quick
class SequenceStatus(Enum):
    """Where a sequence stands. PAUSED keeps its device blocks and gets no tokens; the SWAP states have blocks on the
    host, and those that are being copied are *fenced*: nobody may use them until the copy is complete."""

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    SWAPPING_OUT = "swapping_out"
    SWAPPED = "swapped"
    SWAPPING_IN = "swapping_in"
    FINISHED = "finished"


@quick
class FinishReason(Enum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    QUEUE_TIMEOUT = "queue_timeout"
    ERROR = "error"


@quick
class PauseReason(Enum):
    """Why a sequence gets no tokens although it has work. QUOTA, READER and SIBLINGS hold it whatever the policy says.

    FAIRNESS: others are served first, and took the step, the row or the blocks that it would have used.
    KV_PRESSURE: others needed its blocks, or the device had no memory for its step. SIBLINGS: other beams of its
    request are still to be computed. Nobody is told of that.
    """

    KV_PRESSURE = "kv_pressure"
    FAIRNESS = "fairness"
    QUOTA = "quota"
    READER = "reader"
    SIBLINGS = "siblings"


@quick
class PreemptionMode(Enum):
    """What happened to the blocks of a preempted sequence."""

    PAUSE = "pause"
    SWAP = "swap"
    RECOMPUTE = "recompute"


MIN_WEIGHT, MAX_WEIGHT = 1e-6, 1e6  # products and sums of such weights, and what is divided by them, stay finite


def check_weight(node: str, weight: float) -> None:
    """Raises ValueError, naming the node, unless `weight` is in [MIN_WEIGHT, MAX_WEIGHT]."""
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise ValueError(f"the weight of {node} must be from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}, not {weight}")


@dataclass(frozen=True, slots=True)
class PathNode:
    """A node of the tenancy tree. `weight` is its share against its siblings; see `check_weight`."""

    id: str
    weight: float

    def __post_init__(self) -> None:
        check_weight(self.id, self.weight)


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """Lower `rank` is served first; `min_share` in [0, 1] is kept for the class whatever the ranks say."""

    name: str
    rank: int = 0
    min_share: float = 0.0
    preemptible: bool = True


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn. The defaults sample from the unmodified distribution.

    temperature 0 is greedy · top_k 0 keeps every token · seed fixes the draw at each position ·
    num_logprobs None returns none, n >= 0 the sampled token's and the n likeliest ones' · num_prompt_logprobs the same
    of the prompt's tokens · logit_biases (token id, what is added to its logit) · allowed_token_ids None allows all ·
    constraint what the output is held to: made by `engine.grammars`, read by the runner, opaque to everybody else.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    logit_biases: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    constraint: object | None = None


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """The likeliest outputs are searched for, as `beams` says.

    width           beams that are kept, at least 2
    num_returned    hypotheses that are wanted, 1 to `width`
    length_penalty  score = sum of logprobs / length ** length_penalty
    early_stopping  the search ends as soon as `width` hypotheses are finished

    Raises ValueError for a width or a number out of range.
    """

    width: int
    num_returned: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = False

    def __post_init__(self) -> None:
        if self.width < 2:
            raise ValueError(f"a search needs at least 2 beams, not {self.width}")
        if not 1 <= self.num_returned <= self.width:
            raise ValueError(f"of {self.width} beams 1 to {self.width} can be returned, not {self.num_returned}")


@dataclass(frozen=True, slots=True)
class Request:
    """What the engine was asked to do. Path, class and salt come from the tenant's record, never from a client field.

    `path` is (organization, team) · `max_output_tokens` >= 1 · `stop_token_ids` end the output and are part of it ·
    `deadline` and `queue_deadline` are points in time, the second one before the first step · `granted_output_tokens`
    None is all of them · `speculates` False: no drafts, even where the engine has them · `beam_search` None draws the
    output; else `max_output_tokens` is the length of one beam, and granted are the tokens of all of them.

    Raises ValueError where the path or the prompt is empty, or `max_output_tokens` is below 1.
    """

    generation_id: str
    path: tuple[PathNode, ...]
    prompt_token_ids: tuple[int, ...]
    max_output_tokens: int
    arrived_at: Nanos
    sampling: SamplingParams = SamplingParams()
    stop_token_ids: frozenset[int] = frozenset()
    priority_class: PriorityClass = PriorityClass("default")
    deadline: Nanos | None = None
    queue_deadline: Nanos | None = None
    granted_output_tokens: int | None = None
    cache_salt: bytes = b""
    policy_revision: int = 0
    speculates: bool = True
    beam_search: BeamSearchParams | None = None

    def __post_init__(self) -> None:
        if not self.path:
            raise ValueError("a request needs the path of its tenant")
        if not self.prompt_token_ids:
            raise ValueError("the prompt needs at least one token")
        if self.max_output_tokens < 1:
            raise ValueError(f"max_output_tokens must be at least 1, not {self.max_output_tokens}")

    @property
    def tenant_id(self) -> TenantId:
        return TenantId("/".join(node.id for node in self.path))

    @property
    def max_charged_tokens(self) -> int:
        """Output tokens that it can ever be charged for: those of all beams, where it searches."""
        return self.max_output_tokens * (1 if self.beam_search is None else self.beam_search.width)
