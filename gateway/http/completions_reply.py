"""`text_completion`, whole and in pieces, as OpenAI has it."""

from collections import abc
from typing import Literal

from pydantic import BaseModel

from gateway.http.choices import Result
from gateway.http.event_stream import DONE, event
from gateway.http.failure_events import failure_event
from gateway.http.pieces import Pieces
from gateway.http.refusals import ErrorObject
from gateway.http.reply_parts import FinishWord, Head, StopReason, Usage, finish_word, shown_logprobs, stop_reason
from gateway.servicer.outcome import Delta, Outcome
from gateway.tokenizer import OutputText, Tokenizer


class TextLogprobs(BaseModel):
    """One entry per token in each list. `text_offset` counts characters from the beginning of the choice's tokens.

    Of a prompt that is told, too, the first token has no log-probability.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(BaseModel):
    """`stop_reason` says what cut the output, where `finish_reason` has no word for it; `score` is of a beam search."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishWord | None
    stop_reason: StopReason | None
    score: float | None = None


class Completion(BaseModel):
    """A piece of a stream has `usage` only where it was asked for: null but in the last one, without choices."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    service_tier: str | None
    system_fingerprint: None = None
    usage: Usage | None = None


class CompletionWording:
    """The answer to one request. `includes_usage`: a stream tells it. `echoed`: the choices' prompts, told before their
    outputs."""

    def __init__(
        self,
        head: Head,
        *,
        has_logprobs: bool,
        includes_usage: bool,
        echoed: abc.Sequence[str | abc.Sequence[int]] | None = None,
    ) -> None:
        self._head = head
        self._echoed = None if echoed is None else [_text_of(prompt, head.tokenizer) for prompt in echoed]
        self._has_logprobs = has_logprobs
        self._includes_usage = includes_usage
        self._offset_by_choice: dict[int, int] = {}
        self._texts = Pieces(lambda choice, text: self._piece(choice, text, None))

    def whole(self, results: abc.Sequence[Result], outcomes: abc.Sequence[Outcome]) -> Completion:
        completion = self._completion([self._whole_choice(result) for result in results])
        completion.usage = Usage.of(outcomes)
        return completion

    def opening(self, choice: int) -> bytes:
        if self._echoed is None:
            return b""
        text = self._echoed[choice]
        return self._event([TextChoice(index=choice, text=text, logprobs=None, finish_reason=None, stop_reason=None)])

    def delta(self, choice: int, delta: Delta) -> bytes:
        if not self._has_logprobs and delta.text:
            return self._texts.piece(choice, delta.text)
        logprobs = self._logprobs(choice, (delta,))
        if not delta.text and not (logprobs and logprobs.tokens):
            return b""
        return self._piece(choice, delta.text, logprobs)

    def ending(self, choice: int, outcome: Outcome, score: float | None = None) -> bytes:
        word, reason = finish_word(outcome), stop_reason(outcome)
        end = TextChoice(index=choice, text="", logprobs=None, finish_reason=word, stop_reason=reason)
        if score is not None:
            end.score = score
        return self._event([end])

    def closing(self, outcomes: abc.Sequence[Outcome]) -> bytes:
        return (self._event([], Usage.of(outcomes)) if self._includes_usage else b"") + DONE

    def failure(self, error: ErrorObject) -> bytes:
        return failure_event(error)

    def _piece(self, choice: int, text: str, logprobs: TextLogprobs | None) -> bytes:
        piece = TextChoice(index=choice, text=text, logprobs=logprobs, finish_reason=None, stop_reason=None)
        return self._event([piece])

    def _completion(self, choices: list[TextChoice]) -> Completion:
        head = self._head
        return Completion(
            id=f"cmpl-{head.generation_id}",
            object="text_completion",
            created=head.created,
            model=head.model,
            choices=choices,
            service_tier=head.service_tier,
            system_fingerprint=None,
        )

    def _event(self, choices: list[TextChoice], usage: Usage | None = None) -> bytes:
        piece = self._completion(choices)
        if self._includes_usage:
            piece.usage = usage
        return event(piece.model_dump_json(exclude_unset=True).encode())

    def _whole_choice(self, result: Result) -> TextChoice:
        return TextChoice(
            index=result.choice,
            text=("" if self._echoed is None else self._echoed[result.choice]) + result.text,
            logprobs=self._logprobs(result.choice, result.deltas),
            finish_reason=finish_word(result.outcome),
            stop_reason=stop_reason(result.outcome),
            score=result.score,
        )

    def _logprobs(self, choice: int, deltas: abc.Iterable[Delta]) -> TextLogprobs | None:
        if not self._has_logprobs:
            return None
        tokenizer = self._head.tokenizer
        told = TextLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for delta in deltas:
            for token_id, entry in (*delta.prompt, *shown_logprobs(delta, tokenizer)):
                token, offset = tokenizer.token_text(token_id), self._offset_by_choice.get(choice, 0)
                top = () if entry is None else entry.top
                told.tokens.append(token)
                told.token_logprobs.append(None if entry is None else entry.logprob)
                told.top_logprobs.append(
                    None if entry is None else {tokenizer.token_text(top_id): logprob for top_id, logprob in top}
                )
                told.text_offset.append(offset)
                self._offset_by_choice[choice] = offset + len(token)
        return told


def _text_of(prompt: str | abc.Sequence[int], tokenizer: Tokenizer) -> str:
    if isinstance(prompt, str):
        return prompt
    text = OutputText(tokenizer)
    return text.push(prompt).text + text.finish()
