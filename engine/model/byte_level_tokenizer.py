"""Byte-level BPE (GPT-2's kind) from a GGUF file, in the form of the `tokenizers` library.

A GGUF file names its way of splitting text (`tokenizer.ggml.pre`) instead of spelling it out. The ways known here
are those whose published `tokenizer.json` is reproduced exactly; any other is refused, because a tokenizer that is
nearly right gives wrong answers silently.
"""

from collections import abc

from engine.model.errors import UnsupportedModelError
from engine.model.gguf_file import GgufFile
from engine.model.gguf_vocabulary import GgufVocabulary, Json, read_list

_BYTE_LEVEL: Json = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_BYTES_ONLY: Json = {**_BYTE_LEVEL, "use_regex": False}


def _sequence(*steps: Json) -> Json:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def _split(words: str, number: str, line_ends: str) -> Json:
    """Words, numbers, signs with the `line_ends` behind them, lines, spaces."""
    pattern = words + "|" + number + r"| ?[^\s\p{L}\p{N}]+" + line_ends + r"*|\s*[\r\n]+|\s+(?!\S)|\s+"
    isolated = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return _sequence(isolated, _BYTES_ONLY)


_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
# A capital begins a new word behind small letters.
_CASED_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
)
_LLAMA3 = _split(_WORDS, r"\p{N}{1,3}", r"[\r\n]")
_TEKKEN = _split(_CASED_WORDS, r"\p{N}", r"[\r\n/]")
_PRE_TOKENIZERS: abc.Mapping[str, Json] = {
    "gpt-2": _BYTE_LEVEL,
    "smollm": _sequence({"type": "Digits", "individual_digits": True}, _BYTE_LEVEL),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _split(_WORDS, r"\p{N}", r"[\r\n]"),
    "tekken": _TEKKEN,
}
_NORMALIZERS: abc.Mapping[str, Json] = {"qwen2": {"type": "NFC"}}


def byte_level_document(file: GgufFile, vocabulary: GgufVocabulary) -> Json:
    """Raises ModelFileError if there are no merges, UnsupportedModelError if text is split in a way not known here."""
    pre = file.metadata.get("tokenizer.ggml.pre")
    if not isinstance(pre, str) or pre not in _PRE_TOKENIZERS:
        known = ", ".join(sorted(_PRE_TOKENIZERS))
        raise UnsupportedModelError(file.path, f"pre-tokenizer {pre!r} is not supported, only {known}")
    return {
        "normalizer": _NORMALIZERS.get(pre),
        "pre_tokenizer": _PRE_TOKENIZERS[pre],
        "decoder": _BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": starts_with_bos(file),  # a word that is a token stays whole, whatever the merges say
            "vocab": vocabulary.by_token,
            "merges": read_list(file, "merges", str),
        },
    }


def starts_with_bos(file: GgufFile) -> bool:
    """Whether prompts start with the begin token where the file does not say: Llama 3's and Mistral's do."""
    pre_tokenizer = _PRE_TOKENIZERS.get(str(file.metadata.get("tokenizer.ggml.pre")))
    return pre_tokenizer is _LLAMA3 or pre_tokenizer is _TEKKEN
