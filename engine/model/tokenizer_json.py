"""Builds the Hugging Face `tokenizers` JSON from the vocabulary in a GGUF file.

A GGUF file names its way of splitting text (`tokenizer.ggml.pre`) instead of spelling it out. The ways known here
are those whose published `tokenizer.json` is reproduced exactly; any other is refused, because a tokenizer that is
nearly right gives wrong answers silently. Byte-level BPE only.
"""

import json
from collections import abc
from typing import Any

from engine.model.errors import ModelFileError, UnsupportedModelError
from engine.model.gguf_file import GgufFile
from engine.model.tokenizer_info import TokenizerInfo

_USER_DEFINED, _CONTROL = 4, 3  # the GGUF specification, tokenizer.ggml.token_type

_Json = dict[str, Any]  # Any: JSON

_BYTE_LEVEL: _Json = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_BYTES_ONLY: _Json = {**_BYTE_LEVEL, "use_regex": False}


def _split(number: str) -> _Json:
    """Llama 3's pattern; Qwen2 has the same one but for the `number`."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + number + r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _sequence(*steps: _Json) -> _Json:
    return {"type": "Sequence", "pretokenizers": list(steps)}


_PRE_TOKENIZERS: abc.Mapping[str, _Json] = {
    "gpt-2": _BYTE_LEVEL,
    "smollm": _sequence({"type": "Digits", "individual_digits": True}, _BYTE_LEVEL),
    "llama-bpe": _sequence(_split(r"\p{N}{1,3}"), _BYTES_ONLY),
    "qwen2": _sequence(_split(r"\p{N}"), _BYTES_ONLY),
}
_NORMALIZERS: abc.Mapping[str, _Json] = {"qwen2": {"type": "NFC"}}
_WHOLE_WORDS_FIRST = frozenset({"llama-bpe"})  # a word that is a token stays whole, whatever the merges say


def tokenizer_from_gguf(file: GgufFile) -> TokenizerInfo:
    """The tokenizer in the metadata of `file`.

    Raises ModelFileError if the vocabulary is missing or inconsistent, UnsupportedModelError if its kind is unknown.
    """
    metadata = file.metadata
    tokens, token_types, merges = _vocabulary(file)
    pre = str(metadata["tokenizer.ggml.pre"])
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added_token(token_id, tokens[token_id], special=kind == _CONTROL)
            for token_id, kind in enumerate(token_types)
            if kind in (_CONTROL, _USER_DEFINED)
        ],
        "normalizer": _NORMALIZERS.get(pre),
        "pre_tokenizer": _PRE_TOKENIZERS[pre],
        "post_processor": None,
        "decoder": _BYTE_LEVEL,
        "model": _byte_pair_model(tokens, merges, whole_words_first=pre in _WHOLE_WORDS_FIRST),
    }
    return TokenizerInfo(
        tokenizer_json=json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(),
        chat_template=metadata.get("tokenizer.chat_template", ""),
        bos_token_id=_token_id(file, "bos_token_id", len(tokens)),
        eos_token_ids=_end_token_ids(file, len(tokens)),
        pad_token_id=_token_id(file, "padding_token_id", len(tokens)),
        unk_token_id=_token_id(file, "unknown_token_id", len(tokens)),
        add_bos_token=bool(metadata.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe")),
    )


def _vocabulary(file: GgufFile) -> tuple[list[str], list[int], list[str]]:
    kind = file.metadata.get("tokenizer.ggml.model")
    pre = file.metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2":
        raise UnsupportedModelError(file.path, f"tokenizer {kind!r} is not supported, only gpt2 (byte-level BPE)")
    if pre not in _PRE_TOKENIZERS:
        known = ", ".join(sorted(_PRE_TOKENIZERS))
        raise UnsupportedModelError(file.path, f"pre-tokenizer {pre!r} is not supported, only {known}")
    tokens = file.metadata.get("tokenizer.ggml.tokens", [])
    token_types = file.metadata.get("tokenizer.ggml.token_type", [])
    merges = file.metadata.get("tokenizer.ggml.merges", [])
    if not tokens or len(tokens) != len(token_types) or not merges:
        raise ModelFileError(file.path, "its vocabulary is incomplete")
    return tokens, token_types, merges


def _byte_pair_model(tokens: list[str], merges: list[str], *, whole_words_first: bool) -> _Json:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": whole_words_first,
        "vocab": {token: token_id for token_id, token in enumerate(tokens)},
        "merges": merges,
    }


def _added_token(token_id: int, content: str, *, special: bool) -> _Json:
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }


def _token_id(file: GgufFile, name: str, vocabulary_size: int) -> int | None:
    token_id = file.metadata.get(f"tokenizer.ggml.{name}")
    if token_id is None:
        return None
    if not isinstance(token_id, int) or token_id >= vocabulary_size:
        raise ModelFileError(file.path, f"its {name} {token_id!r} is outside the vocabulary")
    return token_id


def _end_token_ids(file: GgufFile, vocabulary_size: int) -> tuple[int, ...]:
    """End of sequence, of turn, of message: each ends a generation."""
    ends = (_token_id(file, name, vocabulary_size) for name in ("eos_token_id", "eot_token_id", "eom_token_id"))
    return tuple(dict.fromkeys(token_id for token_id in ends if token_id is not None))
