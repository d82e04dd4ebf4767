"""What the answers of the generating paths have in common: heads, usage, reasons, log-probabilities."""

import time
from collections import abc
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from gateway.engine_client import TokenLogprobs
from gateway.http.generation_ask import TIER_BY_CLASS
from gateway.servicer.attachment import Served
from gateway.servicer.outcome import Delta, FinishReason, Outcome
from gateway.tokenizer import Tokenizer

FinishWord = Literal["stop", "length"]
StopReason = Literal["cancelled", "deadline", "quota"]


@dataclass(frozen=True, slots=True)
class Head:
    """What every piece of an answer begins with. `generation_id` is the first choice's."""

    generation_id: str
    created: int
    model: str
    service_tier: str | None
    tokenizer: Tokenizer

    @classmethod
    def of(cls, choices: abc.Sequence[Served]) -> "Head":
        """`service_tier` is None where the class has no such name."""
        transcript = choices[0].transcript
        tier = TIER_BY_CLASS.get(transcript.priority_class)
        return cls(transcript.generation_id, int(time.time()), transcript.model, tier, transcript.tokenizer)


class PromptTokensDetails(BaseModel):
    """What was found computed already, for the same tenant."""

    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    """No model of this gateway reasons apart from its output."""

    reasoning_tokens: int


class Usage(BaseModel):
    """What is billed, over all choices: each has read the prompt, from the cache where it was there."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails

    @classmethod
    def of(cls, outcomes: abc.Iterable[Outcome]) -> "Usage":
        usages = [outcome.usage for outcome in outcomes]
        num_input = sum(usage.num_input_tokens for usage in usages)
        num_output = sum(usage.num_output_tokens for usage in usages)
        return cls(
            prompt_tokens=num_input,
            completion_tokens=num_output,
            total_tokens=num_input + num_output,
            prompt_tokens_details=PromptTokensDetails(
                cached_tokens=sum(usage.num_cached_input_tokens for usage in usages)
            ),
            completion_tokens_details=CompletionTokensDetails(reasoning_tokens=0),
        )


def finish_word(outcome: Outcome) -> FinishWord:
    """OpenAI's word: what was not ended by the model itself was cut to a length."""
    return "stop" if outcome.finish_reason is FinishReason.STOP else "length"


def stop_reason(outcome: Outcome) -> StopReason | None:
    """What cut the output, where OpenAI has no word for it."""
    match outcome.finish_reason:
        case FinishReason.CANCELLED:
            return "cancelled"
        case FinishReason.DEADLINE:
            return "deadline"
        case FinishReason.QUOTA:
            return "quota"
        case _:
            return None


def shown_logprobs(delta: Delta, tokenizer: Tokenizer) -> list[tuple[int, TokenLogprobs]]:
    """Those of a delta's tokens that are text."""
    if not delta.logprobs:
        return []
    pairs = zip(delta.token_ids, delta.logprobs, strict=True)
    return [(token_id, entry) for token_id, entry in pairs if token_id not in tokenizer.special_token_ids]


def token_bytes(tokenizer: Tokenizer, token_id: int) -> list[int]:
    """What a token is made of; a part of a character has bytes and no text."""
    by_id = tokenizer.token_bytes.by_id
    return list(by_id[token_id]) if token_id < len(by_id) else []
