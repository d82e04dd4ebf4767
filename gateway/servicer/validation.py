"""`GenerationSpec` to `GenerationAsk`: every field is checked, and every violation is reported with its path.

Ranges and defaults are those that `generation.proto` names. What needs the model (its context, its vocabulary, its chat
template) is checked where the model is known.
"""

import hashlib
import itertools
import uuid
from collections import abc
from typing import Protocol

from google.protobuf.duration_pb2 import Duration

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.engine_client import GrammarKind
from gateway.quota_slices import WhenExhausted
from gateway.servicer.ask import (
    AdmissionAsk,
    ChatPrompt,
    GenerationAsk,
    OutputAsk,
    Prompt,
    SamplingAsk,
    StoppingAsk,
    TextPrompt,
    TokenPrompt,
)
from gateway.servicer.asked_beams import beam_search_from_pb, require_searchable
from gateway.servicer.asked_format import grammar_from_pb
from gateway.servicer.asked_tools import messages_from_pb, tool_choice_from_pb, tools_from_pb
from gateway.servicer.check import Check

MAX_NAME_CHARS = 256
MAX_CHAT_MESSAGES = 2048
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256
MAX_STOP_TOKEN_IDS = 64
MAX_LOGPROBS = 20
MAX_TOP_K = 2**31 - 1
MAX_BIASES = 1024
MAX_ALLOWED_TOKEN_IDS = 65_536
MAX_BIAS = 100.0
MAX_LABELS = 8
MAX_LABEL_KEY_CHARS = 64
MAX_LABEL_VALUE_CHARS = 256
MAX_QUEUE_WAIT_S = 86_400
ROLES = frozenset({"system", "user", "assistant", "tool"})

_WHEN_EXHAUSTED = {
    pb.QUOTA_EXHAUSTED_ACTION_DEGRADE: WhenExhausted.DEGRADE,
    pb.QUOTA_EXHAUSTED_ACTION_FINISH: WhenExhausted.FINISH,
}


class PromptMessage(Protocol):
    """The prompt of a GenerationSpec or of a CountTokensRequest."""

    @property
    def text(self) -> str: ...
    @property
    def chat(self) -> pb.ChatPrompt: ...
    @property
    def token_ids(self) -> pb.TokenPrompt: ...


def ask_from_pb(spec: pb.GenerationSpec) -> GenerationAsk:
    """Raises InvalidFieldError with every field that is out of range."""
    check = Check("spec")
    is_search = spec.HasField("beam_search")
    ask = GenerationAsk(
        request_id=_request_id(spec.request_id, check.at("request_id")),
        fingerprint=hashlib.sha256(spec.SerializeToString(deterministic=True)).digest() if spec.request_id else b"",
        model=model_name(spec.model, check.at("model")),
        prompt=prompt_from_pb(spec, spec.WhichOneof("prompt"), check),
        sampling=_sampling(spec.sampling, check.at("sampling"), temperature=0.0 if is_search else 1.0),
        stopping=_stopping(spec.stopping, check.at("stopping")),
        output=_output(spec.output, check.at("output")),
        admission=_admission(spec.admission, check.at("admission")),
        beam_search=beam_search_from_pb(spec.beam_search, check.at("beam_search")) if is_search else None,
    )
    if is_search:
        require_searchable(ask, check)
    _check_format(ask, check.at("output.format"))
    check.finish()
    return ask


def prompt_from_pb(message: PromptMessage, kind: str | None, check: Check) -> Prompt:
    """The prompt that `kind`, the set member of the oneof, names."""
    if kind == "text":
        check.at("text").require(message.text != "", "must not be empty")
        return TextPrompt(message.text)
    if kind == "chat":
        return _chat(message.chat, check.at("chat"))
    if kind == "token_ids":
        check.at("token_ids.ids").require(len(message.token_ids.ids) > 0, "must not be empty")
        return TokenPrompt(message.token_ids.ids)
    check.at("prompt").require(ok=False, description="set text, chat or token_ids")
    return TokenPrompt(())


def model_name(name: str, check: Check) -> str:
    check.require(len(name) <= MAX_NAME_CHARS, f"must have at most {MAX_NAME_CHARS} characters")
    return name


def _check_format(ask: GenerationAsk, check: Check) -> None:
    grammar, prompt = ask.output.grammar, ask.prompt
    if grammar is None or not isinstance(prompt, ChatPrompt) or not prompt.offered_tools:
        return
    check.require(not prompt.required_tools, "cannot be set where a tool has to be called")
    check.require(grammar.kind is GrammarKind.JSON_SCHEMA, "beside tools, only JSON can be asked for")


def _request_id(text: str, check: Check) -> str:
    if not text:
        return ""
    try:
        canonical = str(uuid.UUID(text))
    except ValueError:
        canonical = ""
    # uuid.UUID takes braces, URNs and missing hyphens too; one request must not have several spellings.
    check.require(canonical != "" and canonical == text.lower(), "must be a UUID")
    return canonical


def _chat(chat: pb.ChatPrompt, check: Check) -> ChatPrompt:
    num_messages = len(chat.messages)
    check.at("messages").require(1 <= num_messages <= MAX_CHAT_MESSAGES, f"must have 1 to {MAX_CHAT_MESSAGES} entries")
    messages = chat.messages[:MAX_CHAT_MESSAGES]  # a wire message can hold millions of empty ones
    for index, message in enumerate(messages):
        role = check.at(f"messages[{index}].role")
        role.require(message.role in ROLES, f"must be one of {', '.join(sorted(ROLES))}")
    tools = tools_from_pb(chat.tools, check)
    return ChatPrompt(
        messages=messages_from_pb(messages, check),
        add_generation_prompt=chat.add_generation_prompt if chat.HasField("add_generation_prompt") else True,
        tools=tools,
        tool_choice=tool_choice_from_pb(chat.tool_choice, tools, check.at("tool_choice")),
    )


def _sampling(options: pb.SamplingOptions, check: Check, *, temperature: float) -> SamplingAsk:
    """`temperature`: where none is given."""

    def value(name: str, default: float, low: float, high: float, *, above_low: bool = False) -> float:
        given = float(getattr(options, name)) if options.HasField(name) else default  # type: ignore[arg-type]  # a Literal
        return check.at(name).within(given, low, high, above_low=above_low)

    allowed = options.allowed_token_ids
    is_short = len(allowed) <= MAX_ALLOWED_TOKEN_IDS
    check.at("allowed_token_ids").require(is_short, f"must have at most {MAX_ALLOWED_TOKEN_IDS} entries")
    return SamplingAsk(
        temperature=value("temperature", temperature, 0.0, 100.0),
        top_k=check.at("top_k").within(options.top_k, 0, MAX_TOP_K),
        top_p=value("top_p", 1.0, 0.0, 1.0, above_low=True),
        min_p=value("min_p", 0.0, 0.0, 1.0),
        repetition_penalty=value("repetition_penalty", 1.0, 0.0, 100.0, above_low=True),
        presence_penalty=value("presence_penalty", 0.0, -2.0, 2.0),
        frequency_penalty=value("frequency_penalty", 0.0, -2.0, 2.0),
        seed=options.seed if options.HasField("seed") else None,
        logit_biases=_logit_biases(options.logit_bias, check.at("logit_bias")),
        allowed_token_ids=tuple(allowed[:MAX_ALLOWED_TOKEN_IDS]),
        speculates=options.speculation if options.HasField("speculation") else True,
    )


def _logit_biases(given: abc.Mapping[int, float], check: Check) -> tuple[tuple[int, float], ...]:
    check.require(len(given) <= MAX_BIASES, f"must have at most {MAX_BIASES} entries")
    biases = tuple(sorted(itertools.islice(given.items(), MAX_BIASES)))
    in_range = all(-MAX_BIAS <= bias <= MAX_BIAS for _, bias in biases)
    check.require(in_range, f"biases must be in [{-MAX_BIAS:g}, {MAX_BIAS:g}]")
    return biases


def _stopping(options: pb.StoppingOptions, check: Check) -> StoppingAsk:
    max_output_tokens = options.max_output_tokens if options.HasField("max_output_tokens") else None
    if max_output_tokens is not None:
        check.at("max_output_tokens").require(max_output_tokens >= 1, "must be at least 1")
    check.at("stop").require(len(options.stop) <= MAX_STOP_STRINGS, f"must have at most {MAX_STOP_STRINGS} entries")
    for index, text in enumerate(options.stop[:MAX_STOP_STRINGS]):
        stop = check.at(f"stop[{index}]")
        stop.require(1 <= len(text) <= MAX_STOP_CHARS, f"must have 1 to {MAX_STOP_CHARS} characters")
    ids = check.at("stop_token_ids")
    ids.require(len(options.stop_token_ids) <= MAX_STOP_TOKEN_IDS, f"must have at most {MAX_STOP_TOKEN_IDS} entries")
    return StoppingAsk(
        max_output_tokens=max_output_tokens,
        stop=tuple(options.stop[:MAX_STOP_STRINGS]),
        stop_token_ids=tuple(options.stop_token_ids[:MAX_STOP_TOKEN_IDS]),
        ignore_eos=options.ignore_eos,
    )


def _output(options: pb.OutputOptions, check: Check) -> OutputAsk:
    num_logprobs = options.logprobs if options.HasField("logprobs") else None
    check.at("logprobs").within(num_logprobs or 0, 0, MAX_LOGPROBS)
    num_prompt_logprobs = options.prompt_logprobs if options.HasField("prompt_logprobs") else None
    check.at("prompt_logprobs").within(num_prompt_logprobs or 0, 0, MAX_LOGPROBS)
    grammar = grammar_from_pb(options.format, check.at("format")) if options.HasField("format") else None
    return OutputAsk(num_logprobs, options.token_ids, num_prompt_logprobs, grammar)


def _admission(options: pb.AdmissionOptions, check: Check) -> AdmissionAsk:
    check.at("priority_class").require(
        len(options.priority_class) <= MAX_NAME_CHARS, f"must have at most {MAX_NAME_CHARS} characters"
    )
    known = pb.DeadlineAction.values()
    check.at("on_deadline").require(options.on_deadline in known, "must be one of the actions that are defined")
    known_exhausted = pb.QuotaExhaustedAction.values()
    check.at("on_quota_exhausted").require(
        options.on_quota_exhausted in known_exhausted, "must be one of the actions that are defined"
    )
    wait = options.max_queue_wait if options.HasField("max_queue_wait") else None
    return AdmissionAsk(
        priority_class=options.priority_class,
        max_queue_wait_ns=None if wait is None else _wait_ns(wait, check.at("max_queue_wait")),
        is_partial_at_deadline=options.on_deadline == pb.DEADLINE_ACTION_PARTIAL,
        labels=_labels(options.labels, check.at("labels")),
        detaches=options.detach_on_disconnect,
        when_exhausted=_WHEN_EXHAUSTED.get(options.on_quota_exhausted, WhenExhausted.PAUSE),
    )


def _labels(labels: abc.Mapping[str, str], check: Check) -> dict[str, str]:
    check.require(len(labels) <= MAX_LABELS, f"must have at most {MAX_LABELS} entries")
    kept = dict(itertools.islice(labels.items(), MAX_LABELS))
    check.require(
        all(1 <= len(key) <= MAX_LABEL_KEY_CHARS for key in kept)
        and all(len(value) <= MAX_LABEL_VALUE_CHARS for value in kept.values()),
        f"keys must have 1 to {MAX_LABEL_KEY_CHARS} characters, values at most {MAX_LABEL_VALUE_CHARS}",
    )
    has_nul = any("\0" in text for pair in kept.items() for text in pair)
    check.require(not has_nul, "must not hold the NUL character")  # which Postgres cannot store
    return kept


def _wait_ns(wait: Duration, check: Check) -> int:
    wait_ns = wait.seconds * 1_000_000_000 + wait.nanos
    check.require(
        abs(wait.nanos) < 1_000_000_000 and 0 < wait_ns <= MAX_QUEUE_WAIT_S * 1_000_000_000,
        f"must be more than 0 s and at most {MAX_QUEUE_WAIT_S} s",
    )
    return wait_ns
