"""Text: prompts and chats to token ids, token ids to streamed text. Knows one model, no tenant and no wire."""

from gateway.tokenizer.conversation import ChatMessage
from gateway.tokenizer.errors import (
    ChatTemplateError,
    EmptyPromptError,
    InvalidTextError,
    PromptError,
    PromptTooLargeError,
    TokenizerError,
    UnusableTokenizerError,
)
from gateway.tokenizer.folder import tokenizer_files
from gateway.tokenizer.output_text import OutputText, TextDelta
from gateway.tokenizer.special_tokens import SpecialTokens
from gateway.tokenizer.tokenizer import Tokenizer

__all__ = [
    "ChatMessage",
    "ChatTemplateError",
    "EmptyPromptError",
    "InvalidTextError",
    "OutputText",
    "PromptError",
    "PromptTooLargeError",
    "SpecialTokens",
    "TextDelta",
    "Tokenizer",
    "TokenizerError",
    "UnusableTokenizerError",
    "tokenizer_files",
]
