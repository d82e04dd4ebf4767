"""A model's chat template: messages to the one text that the model was trained on.

Knows neither token ids nor tenants; how a chat becomes values for a template is `conversation`'s. Whatever the template
raises is the request's error, with the template's own words where it chose some; a template that cannot be read refuses
chats and leaves text prompts alone.
"""

import re
from collections import abc

from jinja2 import Template, TemplateError

from gateway.tokenizer.conversation import ChatMessage, Conversation, conversation_of
from gateway.tokenizer.errors import ChatTemplateError, EmptyPromptError, InvalidTextError, PromptTooLargeError
from gateway.tokenizer.prompt_bound import MAX_PROMPT_CHARACTERS
from gateway.tokenizer.template_sandbox import ChatSandbox, TemplateRefusalError, render_parts
from gateway.tokenizer.tools.styles import ToolStyle, style_of
from gateway.tokenizer.tools.values import Tool

ROLE = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Templates paste the role between control tokens, so it is a name and nothing else."""

MAX_MESSAGE_CHARACTERS = 500


class ChatTemplate:
    """One compiled template. `literal_text` is all text that the template itself can write, joined by NUL.

    `is_slow` is for its user to set: it took too long over a short chat. `knows_tools`: it reads the tools that it is
    given; `tool_style`: how calls are written, then.
    """

    def __init__(self, source: str, special_tokens: abc.Mapping[str, str]) -> None:
        """`special_tokens` are the names that templates use: `bos_token`, `eos_token`, `pad_token`, `unk_token`."""
        self._variables = {"documents": None, **special_tokens}
        self._template: Template | None = None
        self._problem = "the model has no chat template: send text or token ids"
        self.literal_text = ""
        self.is_slow = self.knows_tools = False
        if source:
            try:
                self._template, self.literal_text, names = ChatSandbox().compile_template(source)
                self.knows_tools = "tools" in names
            except TemplateError as err:
                self._problem = f"the model's chat template cannot be read: {err}"
        self.tool_style: ToolStyle = style_of(self.literal_text, knows_tools=self.knows_tools)

    def conversation(self, messages: abc.Sequence[ChatMessage], tools: abc.Sequence[Tool] = ()) -> Conversation:
        """What the template is given. Raises EmptyPromptError or InvalidTextError."""
        if not messages:
            raise EmptyPromptError
        for message in messages:
            if ROLE.fullmatch(message.role) is None:
                raise InvalidTextError("a role is a name of 1 to 64 letters, digits, - and _")
        return conversation_of(messages, tools, None if self.knows_tools else self.tool_style)

    def render(self, messages: abc.Sequence[ChatMessage], *, add_generation_prompt: bool) -> str:
        """The prompt's text. Raises EmptyPromptError, InvalidTextError, PromptTooLargeError or ChatTemplateError."""
        return self.render_conversation(self.conversation(messages), add_generation_prompt=add_generation_prompt)

    def render_conversation(self, conversation: Conversation, *, add_generation_prompt: bool) -> str:
        """The same of what `conversation` returned. Raises PromptTooLargeError or ChatTemplateError."""
        if self._template is None:
            raise ChatTemplateError(self._problem)
        variables = {
            **self._variables,
            "messages": conversation.turns,
            "tools": conversation.tools,
            "add_generation_prompt": add_generation_prompt,
        }
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
