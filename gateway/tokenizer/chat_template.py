"""A model's chat template: messages to the one text that the model was trained on.

Knows neither token ids nor tenants. Whatever the template raises is the request's error, with the template's own words
where it chose some; a template that cannot be read refuses chats and leaves text prompts alone.
"""

import re
from collections import abc
from dataclasses import dataclass

from jinja2 import Template, TemplateError

from gateway.tokenizer.errors import ChatTemplateError, EmptyPromptError, InvalidTextError, PromptTooLargeError
from gateway.tokenizer.prompt_bound import MAX_PROMPT_CHARACTERS
from gateway.tokenizer.template_sandbox import ChatSandbox, TemplateRefusalError, render_parts

ROLE = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Templates paste the role between control tokens, so it is a name and nothing else."""

MAX_MESSAGE_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn. Which roles there are is the template's business."""

    role: str
    content: str


class ChatTemplate:
    """One compiled template. `literal_text` is all text that the template itself can write, joined by NUL.

    `is_slow` is for its user to set: it took too long over a short chat.
    """

    def __init__(self, source: str, special_tokens: abc.Mapping[str, str]) -> None:
        """`special_tokens` are the names that templates use: `bos_token`, `eos_token`, `pad_token`, `unk_token`."""
        self._variables = {"tools": None, "documents": None, **special_tokens}
        self._template: Template | None = None
        self._problem = "the model has no chat template: send text or token ids"
        self.literal_text = ""
        self.is_slow = False
        if not source:
            return
        try:
            self._template, self.literal_text = ChatSandbox().compile_template(source)
        except TemplateError as err:
            self._problem = f"the model's chat template cannot be read: {err}"

    def render(self, messages: abc.Sequence[ChatMessage], *, add_generation_prompt: bool) -> str:
        """The prompt's text. Raises EmptyPromptError, InvalidTextError, PromptTooLargeError or ChatTemplateError."""
        if not messages:
            raise EmptyPromptError
        for message in messages:
            if ROLE.fullmatch(message.role) is None:
                raise InvalidTextError("a role is a name of 1 to 64 letters, digits, - and _")
        if self._template is None:
            raise ChatTemplateError(self._problem)
        turns = [{"role": message.role, "content": message.content} for message in messages]
        variables = {**self._variables, "messages": turns, "add_generation_prompt": add_generation_prompt}
        try:
            return _collect(render_parts(self._template, variables))
        except PromptTooLargeError:
            raise
        except TemplateRefusalError as err:
            raise ChatTemplateError((err.message or "")[:MAX_MESSAGE_CHARACTERS]) from err
        except Exception as err:  # a foreign program: whatever it raises is its error
            text = f"the model's chat template fails on these messages: {type(err).__name__}: {err}"
            raise ChatTemplateError(text[:MAX_MESSAGE_CHARACTERS]) from err


def _collect(parts: abc.Iterable[str]) -> str:
    collected: list[str] = []
    num_characters = 0
    for part in parts:
        num_characters += len(part)
        if num_characters > MAX_PROMPT_CHARACTERS:
            raise PromptTooLargeError(num_characters, MAX_PROMPT_CHARACTERS)
        collected.append(part)
    return "".join(collected)
