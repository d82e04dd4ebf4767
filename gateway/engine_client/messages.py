"""What the gateway asks of an engine and what it hears back, as plain values.

Token ids only: text stays in the gateway. Knows no protocol message; each field means what it does in `engine.proto`.
"""

from dataclasses import dataclass
from enum import Enum


class CancelReason(Enum):
    """Why a gateway ends a request. With STOP_STRING the end is a normal one."""

    CLIENT = "client"
    STOP_STRING = "stop_string"
    KEY_REVOKED = "key_revoked"
    ADMINISTRATOR = "administrator"


class FinishReason(Enum):
    """Why the engine ended a request."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    QUEUE_TIMEOUT = "queue_timeout"
    QUOTA = "quota"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the tenancy tree with its share against its siblings."""

    id: str
    weight: float


@dataclass(frozen=True, slots=True)
class NodeUpdate:
    """The weight of the node at `path`, ids from the organization on, as `revision` set it."""

    path: tuple[str, ...]
    weight: float
    revision: int


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """Lower `rank` is served first; `min_share` in [0, 1] is kept for the class."""

    name: str
    rank: int
    min_share: float
    preemptible: bool


class GrammarKind(Enum):
    """What language a grammar is written in; the values are the wire's names."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class NamedSchema:
    """A JSON schema, and the name of the field that an engine refuses it by."""

    field: str
    text: str


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an output has to be.

    parts  the schemas that `text` was made of
    field  what an engine refuses it by; empty: the engine's own name
    """

    kind: GrammarKind
    text: str
    parts: tuple[NamedSchema, ...] = ()
    field: str = ""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn and when the engine stops by itself. `num_logprobs` None: none are returned.

    `logit_biases` are (token id, bias); an empty `allowed_token_ids` allows all tokens. `speculates` False: none are
    guessed ahead, even where the engine does that.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    num_logprobs: int | None
    num_prompt_logprobs: int | None = None
    logit_biases: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    grammar: Grammar | None = None
    speculates: bool = True


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """The `num_returned` likeliest outputs that `width` beams lead to, in place of a drawn one."""

    width: int
    num_returned: int
    length_penalty: float
    ends_early: bool


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One generation. `path` is (organization, team); `deadline_ns` and `max_queue_wait_ns` count from arrival.

    The engine tells the ledger with `ledger_id`, if there is one, what it used, and the `usage_tag` with it. By
    `sender_id` it knows the requests of one API key. With `beam_search`, `max_output_tokens` is the length of one
    output.
    """

    generation_id: str
    path: tuple[Node, ...]
    priority_class: PriorityClass
    cache_salt: bytes
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    max_output_tokens: int
    deadline_ns: int | None
    max_queue_wait_ns: int | None
    policy_revision: int
    reports_queue: bool = False
    granted_output_tokens: int | None = None
    ledger_id: str = ""
    usage_tag: bytes = b""
    sender_id: str = ""
    beam_search: BeamSearch | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request is in the engine's queue."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The first tokens of the request are in a step's plan."""

    queue_ns: int


@dataclass(frozen=True, slots=True)
class QueuedAt:
    """So many requests are served before this one, or more where `is_lower_bound`; the wait is an estimate, or None."""

    position: int
    is_lower_bound: bool
    estimated_wait_ns: int | None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms; `top` is (token id, logprob), likeliest first."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class BeamResult:
    """What a search found: `rank` 0 is the best, `score` is what it goes by, `reason` says how this output ended."""

    rank: int
    score: float
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """Everything sampled since the last chunk; `logprobs` is empty or has one entry per token.

    `prompt_logprobs` are of the prompt's next tokens, from the second one on. With `beam` it is one whole output.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    beam: BeamResult | None = None


@dataclass(frozen=True, slots=True)
class Preempted:
    """The request gets no tokens until it is `Resumed`. `mode` and `reason` are the words of the public protocol."""

    mode: str
    reason: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """The request is being computed again."""


@dataclass(frozen=True, slots=True)
class EngineUsage:
    """Tokens of one request, as the engine counted them."""

    prompt_tokens: int
    cached_prompt_tokens: int
    output_tokens: int
    recomputed_tokens: int
    num_preemptions: int


@dataclass(frozen=True, slots=True)
class EngineTimings:
    """Lengths in nanoseconds by the engine's monotonic clock; `arrived_unix_ns` places them in calendar time."""

    arrived_unix_ns: int
    queue_ns: int
    prefill_ns: int
    decode_ns: int
    preempted_ns: int
    swap_ns: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a request; nothing follows. `error` is set with reason ERROR only.

    `cancel_reason` is there where somebody else than this call's gateway ended it. `error_fields` are those of the
    request's spec that are to blame for the error, if any are.
    """

    reason: FinishReason
    usage: EngineUsage
    timings: EngineTimings
    error: str
    cancel_reason: CancelReason | None = None
    error_fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WitnessedUsage:
    """What the engine says of an ended request, whoever asked for it.

    `num_kept_tokens` of the output belong to it where it ended with a stop string, else None: all of them.
    """

    sequence: int
    generation_id: str
    usage_tag: bytes
    reason: FinishReason
    usage: EngineUsage
    timings: EngineTimings
    is_scheduled: bool
    finished_unix_ns: int
    num_kept_tokens: int | None


EngineEvent = Accepted | Admitted | QueuedAt | TokenChunk | Preempted | Resumed | Finished


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model that an engine serves, and its pool. Two engines with equal `model_hash` give equal output."""

    name: str
    architecture: str
    dtype: str
    parameter_count: int
    context_tokens: int
    max_request_tokens: int
    vocabulary_size: int
    tokenizer_json: bytes
    chat_template: str
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None
    unk_token_id: int | None
    add_bos_token: bool
    model_hash: str
    num_device_blocks: int
    block_size: int
