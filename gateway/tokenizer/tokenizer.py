"""Text and chats to token ids, for one model, from what its engine tells: no model file is read here.

Knows neither tenants nor the wire. The blocking methods may run in any thread; the async ones keep the event loop free,
because the library (Hugging Face `tokenizers`) releases the GIL in `encode_batch_fast`; in `encode` it holds it.
"""

import asyncio
import json
import time
from collections import abc
from dataclasses import dataclass

from tokenizers import Tokenizer as Backend

from gateway.tokenizer.chat_template import ChatTemplate
from gateway.tokenizer.control_tokens import ControlTokens, choose_mark
from gateway.tokenizer.conversation import ChatMessage, Conversation, strings_of, texts_of
from gateway.tokenizer.description import Json
from gateway.tokenizer.errors import EmptyPromptError, InvalidTextError, UnusableTokenizerError
from gateway.tokenizer.prompt_bound import PromptBound, prompt_bound
from gateway.tokenizer.special_tokens import SpecialTokens
from gateway.tokenizer.token_bytes import TokenBytes, build_token_bytes
from gateway.tokenizer.tools.styles import ToolStyle
from gateway.tokenizer.tools.values import Tool

INLINE_CHARACTERS = 1_000
"""Up to here tokenizing takes a fraction of a millisecond, about what a thread costs."""

INLINE_MESSAGES = 16
"""What a template does may grow with the square of their number."""

SLOW_TEMPLATE_NS = 5_000_000
"""A template that takes longer over a chat so short is not ours to run on the event loop again."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tokenizer:
    """The tokenizer and the chat template of one model.

    special_token_ids  ids that are no text: hide them from an output
    added_ids          by text, of the tokens that were added to the vocabulary
    """

    backend: Backend
    template: ChatTemplate
    control_tokens: ControlTokens
    token_bytes: TokenBytes
    special: SpecialTokens
    special_token_ids: frozenset[int]
    bound: PromptBound
    added_ids: abc.Mapping[str, int]

    @classmethod
    def from_model_info(
        cls, tokenizer_json: bytes, chat_template: str, special: SpecialTokens, context_tokens: int
    ) -> "Tokenizer":
        """Takes some tenths of a second. Raises UnusableTokenizerError; a bad chat template only refuses chats."""
        backend = load_backend(tokenizer_json)
        description = json.loads(backend.to_str())
        template = ChatTemplate(chat_template, special_texts(backend, special))
        return cls(
            backend=backend,
            template=template,
            control_tokens=ControlTokens(description, template.literal_text),
            token_bytes=build_token_bytes(backend, description),
            special=special,
            special_token_ids=_special_ids(description, special),
            bound=prompt_bound(backend, description, context_tokens),
            added_ids={token["content"]: token["id"] for token in description["added_tokens"]},
        )

    @property
    def tool_style(self) -> ToolStyle:
        """How the model writes calls of tools."""
        return self.template.tool_style

    @property
    def tool_token_ids(self) -> frozenset[int]:
        """Special tokens that calls are found by, which are to be shown to whoever looks for them."""
        style = self.tool_style
        return frozenset(self.added_ids[text] for text in style.markers if text in self.added_ids)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text prompt, after the model's begin token if it wants one.

        The text of a special token becomes that token, as in `transformers`: the caller owns the whole prompt and could
        send its ids as well, and prompts for fill-in-the-middle or with a template of one's own need them.
        Raises EmptyPromptError, InvalidTextError or PromptTooLargeError.
        """
        token_ids = self._encode(text)
        if self.special.add_bos_token and self.special.bos_token_id is not None:
            token_ids.insert(0, self.special.bos_token_id)
        return token_ids

    def render_chat(
        self,
        messages: abc.Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        tools: abc.Sequence[Tool] = (),
    ) -> str:
        """What the model's template makes of the messages, as `transformers` renders it. Raises PromptError."""
        conversation = self._conversation(messages, tools)
        return self.template.render_conversation(conversation, add_generation_prompt=add_generation_prompt)

    def encode_chat(
        self,
        messages: abc.Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        tools: abc.Sequence[Tool] = (),
    ) -> list[int]:
        """Token ids of the rendered chat. What its sender wrote never becomes a control token (`control_tokens`).

        Equal to `transformers`' where it holds the text of none. Raises PromptError.
        """
        conversation = self._conversation(messages, tools)
        if not self.control_tokens.occur_in(conversation):
            rendered = self.template.render_conversation(conversation, add_generation_prompt=add_generation_prompt)
            return self._encode(rendered)
        mark = choose_mark([self.template.literal_text, *strings_of([conversation.turns, conversation.tools])])
        marked = self.control_tokens.mark(conversation, mark)
        rendered = self.template.render_conversation(marked, add_generation_prompt=add_generation_prompt)
        return self.control_tokens.encode(rendered, mark)

    async def encode_async(self, text: str) -> list[int]:
        """`encode` without holding up the event loop. A cancelled wait leaves its thread to finish alone."""
        if len(text) <= INLINE_CHARACTERS:
            return self.encode(text)
        return await asyncio.to_thread(self.encode, text)

    async def encode_chat_async(
        self,
        messages: abc.Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        tools: abc.Sequence[Tool] = (),
    ) -> list[int]:
        """`encode_chat` without holding up the event loop, unless it is the first time that a template is slow."""
        is_long = sum(map(len, texts_of(messages, tools))) > INLINE_CHARACTERS or len(messages) > INLINE_MESSAGES
        if is_long or self.template.is_slow:
            return await asyncio.to_thread(
                self.encode_chat, messages, add_generation_prompt=add_generation_prompt, tools=tools
            )
        began_ns = time.thread_time_ns()
        try:
            return self.encode_chat(messages, add_generation_prompt=add_generation_prompt, tools=tools)
        finally:
            if time.thread_time_ns() - began_ns > SLOW_TEMPLATE_NS:
                self.template.is_slow = True

    def token_text(self, token_id: int) -> str:
        """The text of one token, U+FFFD for the part of a character; empty for an id beyond the vocabulary."""
        by_id = self.token_bytes.by_id
        return by_id[token_id].decode(errors="replace") if token_id < len(by_id) else ""

    def _encode(self, text: str) -> list[int]:
        self._check_text(text)
        token_ids: list[int] = self.backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        if not token_ids:
            raise EmptyPromptError
        return token_ids

    def _conversation(self, messages: abc.Sequence[ChatMessage], tools: abc.Sequence[Tool]) -> Conversation:
        conversation = self.template.conversation(messages, tools)
        self._check_text("\n".join(texts_of(messages, tools)))
        return conversation

    def _check_text(self, text: str) -> None:
        self.bound.check(text)
        try:
            text.encode()
        except UnicodeEncodeError as err:
            raise InvalidTextError("the text holds a lone surrogate, which is no character") from err


def load_backend(tokenizer_json: bytes) -> Backend:
    """The library's tokenizer, which neither cuts nor fills up. Raises UnusableTokenizerError."""
    try:
        backend = Backend.from_buffer(tokenizer_json)
    except Exception as err:  # the library raises plain Exception
        raise UnusableTokenizerError(f"the model's tokenizer cannot be read: {err}") from err
    # A file may ask for either; a prompt is neither cut nor filled up behind the caller's back.
    backend.no_truncation()
    backend.no_padding()
    return backend


def special_texts(backend: Backend, special: SpecialTokens) -> dict[str, str]:
    """The names that chat templates know, of the tokens that the model has."""
    ids = {
        "bos_token": special.bos_token_id,
        "eos_token": special.eos_token_ids[0] if special.eos_token_ids else None,
        "pad_token": special.pad_token_id,
        "unk_token": special.unk_token_id,
    }
    texts = {name: backend.id_to_token(token_id) for name, token_id in ids.items() if token_id is not None}
    return {name: text for name, text in texts.items() if text is not None}


def _special_ids(description: Json, special: SpecialTokens) -> frozenset[int]:
    added = [token["id"] for token in description["added_tokens"] if token["special"]]
    named = [special.bos_token_id, special.pad_token_id, special.unk_token_id]
    return frozenset([*added, *special.eos_token_ids, *(token_id for token_id in named if token_id is not None)])
