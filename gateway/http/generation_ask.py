"""What the three generating paths have in common: their shared parameters, as a `GenerationSpec`.

Names are mapped here and nowhere else; what values mean and which are allowed is `generation.proto`'s, whose checks
every spec goes through. The ranges in the types are for the published schema.
"""

import uuid
from collections import abc
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.errors import FieldViolation, InvalidFieldError
from gateway.http.asks import Ask, Neutral
from gateway.http.call import HttpCall
from gateway.interceptors.admission_metadata import apply_to_spec
from gateway.servicer.asked_beams import DEFAULT_LENGTH_PENALTY, MAX_BEAMS, MAX_LENGTH_PENALTY, MIN_BEAMS
from gateway.servicer.validation import (
    MAX_LABEL_VALUE_CHARS,
    MAX_LABELS,
    MAX_NAME_CHARS,
    MAX_STOP_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)

IDEMPOTENCY_KEY = "idempotency-key"
MAX_KEY_CHARS = 255
MAX_CHOICES = 16
SEED_RANGE = 2**64
END_USER = "end_user"
SAFETY_IDENTIFIER = "safety_identifier"
# What they may be left at where there is no beam search.
BEAM_DEFAULTS = {"length_penalty": DEFAULT_LENGTH_PENALTY, "early_stopping": False}
CLASS_BY_TIER = {"auto": "", "default": "default", "flex": "batch", "priority": "priority"}
TIER_BY_CLASS = {name: tier for tier, name in CLASS_BY_TIER.items() if name}
# Names idempotency keys that are no UUIDs, and the second and further choices under one.
_KEY_NAMESPACE = uuid.UUID("5b0d1e0c-6f0e-5d0a-9b5e-0c0de0f1a9e7")

Tier = Literal["auto", "default", "flex", "priority"]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
Label = Annotated[str, Field(max_length=MAX_LABEL_VALUE_CHARS, pattern=r"^[^\x00]*$")]
OutputTokens = Annotated[int, Field(ge=1, le=2**31 - 1)]


def _few(given: object) -> object:
    """Counted before any of them is looked at."""
    if isinstance(given, dict) and len(given) > MAX_LABELS:
        raise ValueError(f"there may be at most {MAX_LABELS} entries")
    return given


class StreamOptions(Ask):
    """`include_usage`: the last chunk before the end tells the usage."""

    NEUTRAL: ClassVar[Neutral] = {"include_obfuscation": (None, False)}

    include_usage: bool | None = None


class GenerationAsk(Ask):
    """Parameters of every generating path. The last six are not OpenAI's; other servers have them, too."""

    model: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stream: bool | None = None
    user: Label | None = None
    metadata: Annotated[dict[str, Label], Field(max_length=MAX_LABELS), BeforeValidator(_few)] | None = None
    service_tier: Tier | None = None
    top_k: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    stop_token_ids: (
        Annotated[list[Annotated[int, Field(ge=0, lt=2**32)]], Field(max_length=MAX_STOP_TOKEN_IDS)] | None
    ) = None
    ignore_eos: bool | None = None
    speculation: bool | None = None


class CompletionAsk(GenerationAsk):
    """Parameters of the two older paths. The last three are not OpenAI's; with `beam_width`, `n` are returned of a
    search."""

    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    max_tokens: OutputTokens | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None
    stream_options: StreamOptions | None = None
    beam_width: Annotated[int, Field(ge=MIN_BEAMS, le=MAX_BEAMS)] | None = None
    length_penalty: Annotated[float, Field(ge=-MAX_LENGTH_PENALTY, le=MAX_LENGTH_PENALTY)] | None = None
    early_stopping: bool | None = None

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def stop_strings(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def require_known(self, path: str = "") -> None:
        super().require_known(path)
        if self.stream_options is not None:
            self.stream_options.require_known("stream_options.")
            if not self.stream:
                raise InvalidFieldError(FieldViolation("stream_options", "needs `stream`"))
        for name, default in BEAM_DEFAULTS.items():
            if self.beam_width is None and getattr(self, name) not in (None, default):
                raise InvalidFieldError(FieldViolation(name, "needs `beam_width`"))

    def choices(self, spec: pb.GenerationSpec) -> list[pb.GenerationSpec]:
        """Of one prompt: a spec for each choice, or one for all that a beam search finds."""
        if self.beam_width is None:
            return [spec, *(_copy(spec) for _ in range((self.n or 1) - 1))]
        search = spec.beam_search
        search.width = self.beam_width
        if self.n is not None:
            search.num_returned = self.n
        if self.length_penalty is not None:
            search.length_penalty = self.length_penalty
        if self.early_stopping:
            search.early_stopping = True
        return [spec]


def _copy(spec: pb.GenerationSpec) -> pb.GenerationSpec:
    copied = pb.GenerationSpec()
    copied.CopyFrom(spec)
    return copied


@dataclass(frozen=True, slots=True)
class Options:
    """What the paths name differently."""

    max_output_tokens: int | None
    num_logprobs: int | None
    labels: abc.Mapping[str, str]


_PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", *_PENALTIES, "speculation")


def base_spec(ask: GenerationAsk, options: Options) -> pb.GenerationSpec:
    """Everything but the prompt, the seed and the request id.

    What was left out stays unset, so that the same request has the same fingerprint at both doors.
    """
    spec = pb.GenerationSpec(model=ask.model)
    for name in _SAMPLING:
        value = getattr(ask, name, None)
        if value is not None:
            setattr(spec.sampling, name, value)
    if options.num_logprobs is not None:
        spec.output.logprobs = options.num_logprobs
    if ask.service_tier is not None and CLASS_BY_TIER[ask.service_tier]:
        spec.admission.priority_class = CLASS_BY_TIER[ask.service_tier]
    if options.labels:
        spec.admission.labels.update(options.labels)
    _set_stopping(ask, options, spec)
    return spec


def _set_stopping(ask: GenerationAsk, options: Options, spec: pb.GenerationSpec) -> None:
    if options.max_output_tokens is not None:
        spec.stopping.max_output_tokens = options.max_output_tokens
    if isinstance(ask, CompletionAsk) and ask.stop_strings:
        spec.stopping.stop.extend(ask.stop_strings)
    if ask.stop_token_ids:
        spec.stopping.stop_token_ids.extend(ask.stop_token_ids)
    if ask.ignore_eos:
        spec.stopping.ignore_eos = True


def labels_of(ask: GenerationAsk, **more: str | None) -> dict[str, str]:
    """`metadata`, with what names the end user among it. Raises InvalidFieldError where both set the same label."""
    labels = dict(ask.metadata or {})
    for name, value in {END_USER: ask.user, **more}.items():
        if value is not None and labels.setdefault(name, value) != value:
            raise InvalidFieldError(FieldViolation(f"metadata.{name}", "another parameter sets this label"))
    return labels


def addressed(specs: abc.Sequence[pb.GenerationSpec], call: HttpCall, seed: int | None = None) -> None:
    """The specs have what the headers say, and each its own seed and request id."""
    keys = call.headers(IDEMPOTENCY_KEY)
    if len(keys) > 1 or any(not 1 <= len(key) <= MAX_KEY_CHARS for key in keys):
        raise InvalidFieldError(FieldViolation(IDEMPOTENCY_KEY, f"give one, of 1 to {MAX_KEY_CHARS} characters"))
    for index, spec in enumerate(specs):
        apply_to_spec(spec, call.headers)
        if seed is not None:
            spec.sampling.seed = (seed + index) % SEED_RANGE
        if keys:
            spec.request_id = request_id_of(keys[0], index)


def request_id_of(key: str, index: int) -> str:
    """A key that is a UUID is the request id itself, so that both doors know the request by it."""
    try:
        first = uuid.UUID(key)
        if str(first) != key.lower():
            raise ValueError
    except ValueError:
        first = uuid.uuid5(_KEY_NAMESPACE, key)
    return str(uuid.uuid5(first, str(index)) if index else first)
