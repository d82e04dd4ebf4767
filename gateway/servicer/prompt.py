"""A prompt to token ids, off the event loop where it is long, with each refusal naming its field."""

from collections import abc

from gateway.errors import FieldViolation, InvalidFieldError
from gateway.errors_requests import ContextLengthError
from gateway.servicer.ask import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from gateway.servicer.served_models import ServedModel
from gateway.tokenizer import PromptError, PromptTooLargeError


class Prompts:
    """The prompts of one call. Its choices ask for the same one, which is encoded once."""

    def __init__(self) -> None:
        self._encoded: list[tuple[ServedModel, Prompt, tuple[int, ...]]] = []

    async def encode(self, prompt: Prompt, model: ServedModel, path: str) -> tuple[int, ...]:
        """As `encode`."""
        for known_model, known_prompt, known_ids in self._encoded:
            if known_model is model and known_prompt == prompt:
                return known_ids
        ids = await encode(prompt, model, path)
        self._encoded.append((model, prompt, ids))
        return ids


async def encode(prompt: Prompt, model: ServedModel, path: str) -> tuple[int, ...]:
    """The prompt's tokens, at least one; `path` is where the prompt is in the request ("spec", or "" for the top).

    Raises InvalidFieldError, and ContextLengthError for a prompt that is certainly longer than the context.
    """
    field = f"{path}.{_FIELDS[type(prompt)]}".lstrip(".")
    try:
        match prompt:
            case TextPrompt():
                ids = await model.tokenizer.encode_async(prompt.text)
            case ChatPrompt():
                ids = await model.tokenizer.encode_chat_async(
                    prompt.messages, add_generation_prompt=prompt.add_generation_prompt, tools=prompt.offered_tools
                )
            case TokenPrompt():
                return _checked_ids(prompt.ids, model, field)
    except PromptTooLargeError as error:
        raise ContextLengthError(FieldViolation(field, str(error))) from error
    except PromptError as error:
        raise InvalidFieldError(FieldViolation(field, str(error))) from error
    return tuple(ids)


_FIELDS = {TextPrompt: "text", ChatPrompt: "chat", TokenPrompt: "token_ids.ids"}


def _checked_ids(ids: abc.Sequence[int], model: ServedModel, field: str) -> tuple[int, ...]:
    size, context_tokens = model.info.vocabulary_size, model.info.context_tokens
    if len(ids) > context_tokens:
        text = f"has {len(ids)} tokens, the context holds {context_tokens}"
        raise ContextLengthError(FieldViolation(field, text))
    if max(ids) >= size:
        raise InvalidFieldError(FieldViolation(field, f"must be token ids of the model, each less than {size}"))
    return tuple(ids)
