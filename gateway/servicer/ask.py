"""What a client asks for: `GenerationSpec` in plain values, after validation. Knows no protocol message, no model."""

from collections import abc
from dataclasses import dataclass

from gateway.quota_slices import WhenExhausted


@dataclass(frozen=True, slots=True)
class TextPrompt:
    text: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    messages: tuple[ChatMessage, ...]
    add_generation_prompt: bool


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """`ids` may be as many as a wire message holds: nothing walks over them before their number is checked."""

    ids: abc.Sequence[int]


Prompt = TextPrompt | ChatPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class SamplingAsk:
    """How tokens are drawn; `seed` None: the server draws one."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int | None
    speculates: bool = True


@dataclass(frozen=True, slots=True)
class StoppingAsk:
    """When the output ends; `max_output_tokens` None: as many as context and pool leave, up to the default."""

    max_output_tokens: int | None
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool


@dataclass(frozen=True, slots=True)
class OutputAsk:
    """`num_logprobs` None: none are returned."""

    num_logprobs: int | None
    returns_token_ids: bool


@dataclass(frozen=True, slots=True)
class AdmissionAsk:
    """Empty `priority_class`: the team's default. `max_queue_wait_ns` None: the class's.

    `detaches`: the generation goes on when its caller is cut off. `when_exhausted`: what becomes of it without quota.
    """

    priority_class: str
    max_queue_wait_ns: int | None
    is_partial_at_deadline: bool
    labels: abc.Mapping[str, str]
    detaches: bool
    when_exhausted: WhenExhausted


@dataclass(frozen=True, slots=True)
class GenerationAsk:
    """One generation. `request_id` is empty or a UUID in its usual form; `fingerprint` tells two requests apart."""

    request_id: str
    fingerprint: bytes
    model: str
    prompt: Prompt
    sampling: SamplingAsk
    stopping: StoppingAsk
    output: OutputAsk
    admission: AdmissionAsk
