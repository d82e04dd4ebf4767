"""What a client asks for: `GenerationSpec` in plain values, after validation. Knows no protocol message, no model."""

from collections import abc
from dataclasses import dataclass

from gateway.engine_client import BeamSearch, Grammar
from gateway.quota_slices import WhenExhausted
from gateway.tokenizer import ChatMessage
from gateway.tokenizer.tools import AS_IT_LIKES, ChoiceMode, Tool, ToolChoice


@dataclass(frozen=True, slots=True)
class TextPrompt:
    text: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat, and the tools that may be called in its answer."""

    messages: tuple[ChatMessage, ...]
    add_generation_prompt: bool
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = AS_IT_LIKES

    @property
    def offered_tools(self) -> tuple[Tool, ...]:
        """Those that the model is told of."""
        return () if self.tool_choice.mode is ChoiceMode.NONE else self.tools

    @property
    def required_tools(self) -> tuple[Tool, ...]:
        """Those of which one has to be called; empty: none has to be."""
        choice = self.tool_choice
        if choice.mode is not ChoiceMode.REQUIRED:
            return ()
        return tuple(tool for tool in self.tools if choice.name in ("", tool.name))


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """`ids` may be as many as a wire message holds: nothing walks over them before their number is checked."""

    ids: abc.Sequence[int]


Prompt = TextPrompt | ChatPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class SamplingAsk:
    """How tokens are drawn; `seed` None: the server draws one. An empty `allowed_token_ids` allows all."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int | None
    logit_biases: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
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
    """`num_logprobs` None: none are returned. `grammar`: what the output has to be."""

    num_logprobs: int | None
    returns_token_ids: bool
    num_prompt_logprobs: int | None = None
    grammar: Grammar | None = None


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
    beam_search: BeamSearch | None = None

    @property
    def num_beams(self) -> int:
        """How many outputs are made at once."""
        return 1 if self.beam_search is None else self.beam_search.width
