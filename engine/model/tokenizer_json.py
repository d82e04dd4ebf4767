"""Builds the Hugging Face `tokenizers` JSON from the vocabulary in a GGUF file, of either kind that models have."""

import json

from engine.model.byte_level_tokenizer import byte_level_document, starts_with_bos
from engine.model.errors import UnsupportedModelError
from engine.model.gguf_file import GgufFile
from engine.model.gguf_vocabulary import GgufVocabulary, read_vocabulary, token_id
from engine.model.sentence_piece_tokenizer import sentence_piece_document
from engine.model.tokenizer_info import TokenizerInfo

BYTE_LEVEL, SENTENCE_PIECE = "gpt2", "llama"


def tokenizer_from_gguf(file: GgufFile) -> TokenizerInfo:
    """The tokenizer in the metadata of `file`.

    Raises ModelFileError if the vocabulary is missing or inconsistent, UnsupportedModelError if its kind is unknown.
    """
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind not in (BYTE_LEVEL, SENTENCE_PIECE):
        known = f"{BYTE_LEVEL} (byte-level BPE) and {SENTENCE_PIECE} (SentencePiece)"
        raise UnsupportedModelError(file.path, f"tokenizer {kind!r} is not supported, only {known}")
    vocabulary = read_vocabulary(file)
    is_byte_level = kind == BYTE_LEVEL
    parts = (byte_level_document if is_byte_level else sentence_piece_document)(file, vocabulary)
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": vocabulary.added_tokens(),
        "post_processor": None,
        **parts,
    }
    default_bos = starts_with_bos(file) if is_byte_level else True
    return TokenizerInfo(
        tokenizer_json=json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(),
        chat_template=file.metadata.get("tokenizer.chat_template", ""),
        bos_token_id=token_id(file, "bos_token_id", vocabulary),
        eos_token_ids=_end_token_ids(file, vocabulary),
        pad_token_id=token_id(file, "padding_token_id", vocabulary),
        unk_token_id=token_id(file, "unknown_token_id", vocabulary),
        add_bos_token=bool(file.metadata.get("tokenizer.ggml.add_bos_token", default_bos)),
    )


def _end_token_ids(file: GgufFile, vocabulary: GgufVocabulary) -> tuple[int, ...]:
    """End of sequence, of turn, of message: each ends a generation."""
    ends = (token_id(file, name, vocabulary) for name in ("eos_token_id", "eot_token_id", "eom_token_id"))
    return tuple(dict.fromkeys(end for end in ends if end is not None))
