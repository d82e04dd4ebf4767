"""What each token adds to the output, as bytes, so that any split of the output into tokens decodes to the same text.

Covers byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM) and SentencePiece (Llama 2, Mistral): per-token replacement and
byte fallback, with the leading space that such decoders drop. A decoder of another kind is refused: decoding it token
by token would not give its text. Byte-fallback tokens that form no character become one U+FFFD per maximal broken
piece, as Unicode recommends (§3.9), where the library writes one per byte of the whole run.
"""

import re
from collections import abc
from dataclasses import dataclass

from tokenizers import Tokenizer as Backend

from gateway.tokenizer.byte_alphabet import byte_by_character
from gateway.tokenizer.description import Json, steps
from gateway.tokenizer.errors import UnusableTokenizerError

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """`by_id` [vocabulary] bytes of each token; unused ids are empty.

    `first_by_id` is what a token adds as the very first one, where that differs; `num_leading_spaces` is how many
    spaces at the beginning of the whole text are dropped.
    """

    by_id: tuple[bytes, ...]
    first_by_id: tuple[bytes, ...] | None = None
    num_leading_spaces: int = 0


def build_token_bytes(backend: Backend, description: Json) -> TokenBytes:
    """Raises UnusableTokenizerError if the decoder is of a kind that cannot be taken apart into tokens."""
    decoder = list(steps(description["decoder"]))
    kinds = [step["type"] for step in decoder]
    vocabulary = backend.get_vocab(with_added_tokens=True)
    tokens = [backend.id_to_token(token_id) or "" for token_id in range(max(vocabulary.values()) + 1)]
    match kinds:
        case ["ByteLevel"]:
            alphabet = byte_by_character()
            return TokenBytes(tuple(_byte_level(token, alphabet) for token in tokens))
        case ["Metaspace"]:
            return _metaspace(tokens, decoder[0])
        case [*_, "Fuse", "Strip"] if decoder[-1]["content"] == " " and decoder[-1]["stop"] == 0:
            replaced = _replaced(tokens, decoder[:-2], kinds)
            return TokenBytes(replaced, num_leading_spaces=decoder[-1]["start"])
        case [*_, "Fuse"]:
            return TokenBytes(_replaced(tokens, decoder[:-1], kinds))
    raise _unusable(kinds)


def _byte_level(token: str, alphabet: abc.Mapping[str, int]) -> bytes:
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:
        return token.encode()  # an added token that is plain text


def _metaspace(tokens: abc.Iterable[str], step: Json) -> TokenBytes:
    mark = step["replacement"]
    by_id = tuple(token.replace(mark, " ").encode() for token in tokens)
    if step["prepend_scheme"] == "never":
        return TokenBytes(by_id)
    return TokenBytes(by_id, first_by_id=tuple(token.replace(mark, "").encode() for token in tokens))


def _replaced(tokens: abc.Iterable[str], decoder: abc.Sequence[Json], kinds: abc.Sequence[str]) -> tuple[bytes, ...]:
    has_byte_fallback = False
    replacements: list[tuple[str, str]] = []
    for step in decoder:
        match step["type"]:
            case "Replace" if "String" in step["pattern"] and not has_byte_fallback:
                replacements.append((step["pattern"]["String"], step["content"]))
            case "ByteFallback":
                has_byte_fallback = True
            case _:
                raise _unusable(kinds)
    return tuple(_replaced_token(token, replacements, has_byte_fallback=has_byte_fallback) for token in tokens)


def _replaced_token(token: str, replacements: abc.Iterable[tuple[str, str]], *, has_byte_fallback: bool) -> bytes:
    for old, new in replacements:
        token = token.replace(old, new)
    if has_byte_fallback and (match := BYTE_TOKEN.fullmatch(token)):
        return bytes.fromhex(match[1])
    return token.encode()


def _unusable(kinds: abc.Sequence[str]) -> UnusableTokenizerError:
    return UnusableTokenizerError(f"the tokenizer's decoder ({', '.join(kinds) or 'none'}) is not supported")
