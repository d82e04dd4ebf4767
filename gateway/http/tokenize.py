"""`POST /tokenize`: what a prompt would be billed for, in the shape that vLLM gives it."""

from collections import abc
from typing import Annotated, ClassVar

from pydantic import BaseModel, Field

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.errors import FieldViolation, InvalidFieldError
from gateway.http.asks import Ask, Neutral
from gateway.http.chat import ChatMessage
from gateway.http.param_names import renaming
from gateway.http.structure import Tools, set_tools
from gateway.servicer import ask as servicer
from gateway.servicer.check import Check
from gateway.servicer.served_models import ServedModel
from gateway.servicer.validation import MAX_CHAT_MESSAGES, MAX_NAME_CHARS, prompt_from_pb

_own = renaming({})


def tokenize_params(field: str) -> str:
    """The prompt's fields have no `spec` above them here."""
    if field.startswith("chat."):
        return field.removeprefix("chat.")
    return {"text": "prompt", "chat": "messages"}.get(field) or _own(field)


class TokenizeRequest(Ask):
    """Either `prompt` or `messages`."""

    NEUTRAL: ClassVar[Neutral] = {"add_special_tokens": (None, True)}

    model: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
    prompt: Annotated[str, Field(min_length=1)] | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_CHAT_MESSAGES)] | None = None
    add_generation_prompt: bool | None = None
    tools: Tools | None = None
    return_token_strs: bool | None = None

    def require_known(self, path: str = "") -> None:
        super().require_known(path)
        if (self.prompt is None) == (self.messages is None):
            raise InvalidFieldError(FieldViolation("prompt", "give either this or `messages`"))
        for index, tool in enumerate(self.tools or ()):
            tool.require_known(f"{path}tools[{index}].")
        for index, message in enumerate(self.messages or ()):
            message.require_known(f"{path}messages[{index}].")

    def to_prompt(self) -> servicer.Prompt:
        if self.prompt is not None:
            return servicer.TextPrompt(self.prompt)
        request = pb.CountTokensRequest()
        request.chat.messages.extend([message.to_pb() for message in self.messages or ()])
        request.chat.add_generation_prompt = self.add_generation_prompt is not False
        set_tools(request, [tool.function for tool in self.tools or ()], None, is_single=False)
        check = Check("")
        prompt = prompt_from_pb(request, "chat", check)
        check.finish()
        return prompt


class Tokenized(BaseModel):
    """`max_model_len` is the context in tokens."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


def tokenized(token_ids: abc.Sequence[int], model: ServedModel, ask: TokenizeRequest) -> Tokenized:
    texts = [model.tokenizer.token_text(token_id) for token_id in token_ids] if ask.return_token_strs else None
    return Tokenized(
        count=len(token_ids), max_model_len=model.info.context_tokens, tokens=list(token_ids), token_strs=texts
    )
