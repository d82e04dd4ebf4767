"""How long a prompt can be at most, so that one that cannot fit the context is refused before it is tokenized.

A token stands for as many characters as its own text has, or fewer. That is a proof only where the whole pipeline keeps
every character: byte-level and byte-fallback BPE, with normalizers that replace one character by another, prepend, or
compose. Elsewhere the bound is the wire's limit on a message.
"""

from collections import abc
from dataclasses import dataclass

from tokenizers import Tokenizer as Backend

from gateway.tokenizer.byte_alphabet import byte_by_character
from gateway.tokenizer.description import Json, steps
from gateway.tokenizer.errors import PromptTooLargeError

MAX_PROMPT_CHARACTERS = 16 * 2**20
"""The wire's limit on a message, in bytes: no prompt has more characters."""

NFC_FACTOR = 4
"""Characters that composition can turn into one: the longest canonical decomposition (Unicode, UAX #15, §10)."""

KEEPING_PRE_TOKENIZERS = frozenset({"ByteLevel", "Metaspace", "Digits", "Split", "Punctuation", "UnicodeScripts"})

CONTINUATION_BYTES = range(0x80, 0xC0)


@dataclass(frozen=True, slots=True)
class PromptBound:
    """`vanishing` are characters that the vocabulary lacks: they yield no token, so they do not count."""

    max_characters: int
    vanishing: str = ""

    def check(self, text: str) -> None:
        """Raises PromptTooLargeError if `text` cannot fit the context, whatever it says."""
        if len(text) <= self.max_characters:
            return
        num_characters = len(text) - sum(map(text.count, self.vanishing))
        if num_characters > self.max_characters:
            raise PromptTooLargeError(num_characters, self.max_characters)


def prompt_bound(backend: Backend, description: Json, context_tokens: int) -> PromptBound:
    """The bound for a model with a context of `context_tokens`."""
    vocabulary = backend.get_vocab()
    factor = _normalizer_factor(description)
    if factor is None or not _keeps_text(description):
        return PromptBound(MAX_PROMPT_CHARACTERS)
    vanishing = _vanishing(description, vocabulary)
    if vanishing is None:
        return PromptBound(MAX_PROMPT_CHARACTERS)
    longest = max(len(token) for token in vocabulary)
    return PromptBound(min(MAX_PROMPT_CHARACTERS, context_tokens * longest * factor), vanishing)


def _normalizer_factor(description: Json) -> int | None:
    """How many characters of a prompt can become one before tokenization; None if that is not known."""
    factor = 1
    for step in steps(description["normalizer"]):
        match step["type"]:
            case "Prepend" | "ByteLevel":
                pass
            case "NFC":
                factor *= NFC_FACTOR
            case "Replace" if len(step["pattern"].get("String", "")) == 1 and step["content"]:
                pass
            case _:
                return None
    return factor


def _keeps_text(description: Json) -> bool:
    pre_tokenizers = list(steps(description["pre_tokenizer"]))
    return (
        description["model"]["type"] == "BPE"
        and all(step["type"] in KEEPING_PRE_TOKENIZERS for step in pre_tokenizers)
        and not any(step.get("behavior") == "Removed" for step in pre_tokenizers)
        and not any(token["lstrip"] or token["rstrip"] for token in description["added_tokens"])
    )


def _vanishing(description: Json, vocabulary: abc.Container[str]) -> str | None:
    """The characters without a token; None if others can vanish too, or a run of them can shrink into one token."""
    model = description["model"]
    kinds = {step["type"] for part in ("normalizer", "pre_tokenizer") for step in steps(description[part])}
    if "ByteLevel" in kinds:
        missing = [byte for character, byte in byte_by_character().items() if character not in vocabulary]
        # A character of several bytes leaves at least its continuation bytes.
        has_continuations = not any(byte in CONTINUATION_BYTES for byte in missing)
        return "".join(chr(byte) for byte in missing if byte < 128) if has_continuations else None
    if model["byte_fallback"]:
        return "" if all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)) else None
    return "" if model["unk_token"] is not None and not model["fuse_unk"] else None
