"""The vocabulary in a GGUF file's metadata. Source: the GGUF specification, keys `tokenizer.ggml.*`."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from engine.model.errors import ModelFileError
from engine.model.gguf_file import GgufFile

Json = dict[str, Any]  # Any: the form of the `tokenizers` library, which is nested


class TokenType(IntEnum):
    """The specification's `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """`tokens` and `types` in order of the id; `by_token` is the last id of each."""

    tokens: list[str]
    types: list[int]

    @property
    def by_token(self) -> dict[str, int]:
        return {token: token_id for token_id, token in enumerate(self.tokens)}

    def added_tokens(self) -> list[Json]:
        """The tokens that are found in a text before anything else is done with it, as the library writes them."""
        return [
            _added_token(token_id, self.tokens[token_id], special=kind != TokenType.USER_DEFINED)
            for token_id, kind in enumerate(self.types)
            if kind in (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
        ]


def read_vocabulary(file: GgufFile) -> GgufVocabulary:
    """Raises ModelFileError if the vocabulary is missing or inconsistent."""
    tokens = read_list(file, "tokens", str)
    types = read_list(file, "token_type", int)
    if len(tokens) != len(types):
        raise ModelFileError(file.path, f"its vocabulary is incomplete: {len(tokens)} tokens, {len(types)} types")
    return GgufVocabulary(tokens, types)


def read_list(file: GgufFile, name: str, kind: type) -> list[Any]:  # Any: of `kind`
    """The array `tokenizer.ggml.NAME`. Raises ModelFileError if it is missing, empty, or holds something else."""
    values = file.metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(values, list) or not values or not all(isinstance(value, kind) for value in values):
        raise ModelFileError(file.path, f"its vocabulary is incomplete: tokenizer.ggml.{name} is missing or empty")
    return values


def token_id(file: GgufFile, name: str, vocabulary: GgufVocabulary) -> int | None:
    """The id `tokenizer.ggml.NAME`; None if the file has none. Raises ModelFileError if no token has it."""
    value = file.metadata.get(f"tokenizer.ggml.{name}")
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < len(vocabulary.tokens):
        raise ModelFileError(file.path, f"its {name} {value!r} is outside the vocabulary")
    return value


def _added_token(token_id: int, content: str, *, special: bool) -> Json:
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }
