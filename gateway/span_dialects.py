"""The attributes of a generation's span in the words of the convention that the operator chose.

What the gateway knows is said in the words of GenAI v0.1.0, and translated where another one is wanted. Our own
attributes are the same in all of them.
"""

import json
from collections import abc
from dataclasses import dataclass

from opentelemetry.util.types import AttributeValue

from gateway import semconv
from gateway.semconv import Semconv

Attributes = dict[str, AttributeValue]

_OPENINFERENCE = {
    semconv.GEN_AI_PROVIDER: semconv.OPENINFERENCE_PROVIDER,
    semconv.GEN_AI_REQUEST_MODEL: semconv.OPENINFERENCE_MODEL,
    semconv.GEN_AI_INPUT_TOKENS: semconv.OPENINFERENCE_INPUT_TOKENS,
    semconv.GEN_AI_CACHED_TOKENS: semconv.OPENINFERENCE_CACHED_TOKENS,
    semconv.GEN_AI_OUTPUT_TOKENS: semconv.OPENINFERENCE_OUTPUT_TOKENS,
}
_REQUEST = "gen_ai.request."
_GEN_AI = "gen_ai."


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a prompt or of an output."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """What was said, where a trace may hold it. `finish_reason` is the output's."""

    prompt: tuple[Message, ...]
    output: str
    finish_reason: str


def span_name(dialect: Semconv, operation: str, model: str) -> str:
    """Of the span of a generation."""
    return semconv.GENERATION_SPAN if dialect is Semconv.NONE else f"{operation} {model}"


def translated(dialect: Semconv, attributes: Attributes) -> Attributes:
    """`attributes`, which are in the words of GenAI v0.1.0, in those of `dialect`."""
    match dialect:
        case Semconv.GEN_AI_V0_1:
            return attributes
        case Semconv.GEN_AI_1_41:  # there the one difference is a type
            top_k = attributes.get(semconv.GEN_AI_REQUEST_TOP_K)
            return attributes | ({semconv.GEN_AI_REQUEST_TOP_K: float(top_k)} if isinstance(top_k, int) else {})
        case Semconv.OPENINFERENCE:
            return _openinference(attributes)
        case Semconv.NONE:
            return {name: value for name, value in attributes.items() if not name.startswith(_GEN_AI)}


def content_attributes(dialect: Semconv, content: Content) -> Attributes:
    """What was said, in the form of `dialect`; nothing where that has none."""
    match dialect:
        case Semconv.NONE:
            return {}
        case Semconv.OPENINFERENCE:
            return _openinference_content(content)
        case _:
            prompt = [_gen_ai_message(message) for message in content.prompt]
            output = _gen_ai_message(Message("assistant", content.output)) | {"finish_reason": content.finish_reason}
            return {
                semconv.GEN_AI_INPUT_MESSAGES: json.dumps(prompt, ensure_ascii=False),
                semconv.GEN_AI_OUTPUT_MESSAGES: json.dumps([output], ensure_ascii=False),
            }


def _gen_ai_message(message: Message) -> dict[str, object]:
    return {"role": message.role, "parts": [{"type": "text", "content": message.text}]}


def _openinference(attributes: Attributes) -> Attributes:
    told: Attributes = {semconv.OPENINFERENCE_KIND: "LLM"}
    parameters: dict[str, AttributeValue] = {}
    for name, value in attributes.items():
        if (theirs := _OPENINFERENCE.get(name)) is not None:
            told[theirs] = value
        elif name.startswith(_REQUEST):
            parameters[name.removeprefix(_REQUEST)] = value
        elif not name.startswith(_GEN_AI):
            told[name] = value
    if parameters:
        told[semconv.OPENINFERENCE_PARAMETERS] = json.dumps(parameters)
    reasons = attributes.get(semconv.GEN_AI_FINISH_REASONS)
    if isinstance(reasons, abc.Sequence) and reasons:
        told[semconv.OPENINFERENCE_FINISH_REASON] = str(reasons[0])
    counts = attributes.get(semconv.GEN_AI_INPUT_TOKENS), attributes.get(semconv.GEN_AI_OUTPUT_TOKENS)
    if isinstance(counts[0], int) and isinstance(counts[1], int):
        told[semconv.OPENINFERENCE_TOTAL_TOKENS] = counts[0] + counts[1]
    return told


def _openinference_content(content: Content) -> Attributes:
    told: Attributes = {}
    for index, message in enumerate(content.prompt):
        told[semconv.OPENINFERENCE_INPUT_ROLE.format(index)] = message.role
        told[semconv.OPENINFERENCE_INPUT_TEXT.format(index)] = message.text
    told[semconv.OPENINFERENCE_OUTPUT_ROLE.format(0)] = "assistant"
    told[semconv.OPENINFERENCE_OUTPUT_TEXT.format(0)] = content.output
    if content.prompt:
        told[semconv.OPENINFERENCE_INPUT_VALUE] = content.prompt[-1].text
    told[semconv.OPENINFERENCE_OUTPUT_VALUE] = content.output
    return told
