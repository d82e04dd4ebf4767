"""SentencePiece BPE (Llama 2, Mistral) from a GGUF file, in the form of the `tokenizers` library.

A GGUF file holds pieces and scores; what the library wants are merges in order. Two pieces merge where both and the
piece that they make are there, the best score first, which is how SentencePiece itself goes about it. Characters
without a piece fall back to their bytes. As llama.cpp does, a space is put before a text, and behind a control token.
Source: Kudo, Richardson 2018, §3.1; llama.cpp, `llm_tokenizer_spm`.
"""

from engine.model.errors import ModelFileError, UnsupportedModelError
from engine.model.gguf_file import GgufFile
from engine.model.gguf_vocabulary import GgufVocabulary, Json, TokenType, read_list, token_id

SPACE = "▁"
_PRE_TOKENIZERS = (None, "default")


def sentence_piece_document(file: GgufFile, vocabulary: GgufVocabulary) -> Json:
    """Raises ModelFileError if the scores do not fit the pieces, UnsupportedModelError for what would change a text."""
    pre = file.metadata.get("tokenizer.ggml.pre")
    if pre not in _PRE_TOKENIZERS:
        raise UnsupportedModelError(file.path, f"pre-tokenizer {pre!r} is not supported for SentencePiece")
    if file.metadata.get("tokenizer.ggml.remove_extra_whitespaces"):
        raise UnsupportedModelError(file.path, "tokenizer.ggml.remove_extra_whitespaces is not supported")
    has_prefix = bool(file.metadata.get("tokenizer.ggml.add_space_prefix", True))
    unknown_id = token_id(file, "unknown_token_id", vocabulary)
    return {
        "normalizer": _normalizer(has_prefix=has_prefix),
        "pre_tokenizer": None,
        "decoder": _decoder(has_prefix=has_prefix),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None if unknown_id is None else vocabulary.tokens[unknown_id],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary.by_token,
            "merges": _merges(vocabulary, _scores(file, vocabulary)),
        },
    }


def _normalizer(*, has_prefix: bool) -> Json:
    replaced: Json = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prefixed: Json = {"type": "Prepend", "prepend": SPACE}
    return {"type": "Sequence", "normalizers": [prefixed, replaced] if has_prefix else [replaced]}


def _decoder(*, has_prefix: bool) -> Json:
    replaced: Json = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    stripped: Json = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    steps: list[Json] = [replaced, {"type": "ByteFallback"}, {"type": "Fuse"}]
    return {"type": "Sequence", "decoders": [*steps, stripped] if has_prefix else steps}


def _scores(file: GgufFile, vocabulary: GgufVocabulary) -> list[float]:
    scores: list[float] = read_list(file, "scores", float)
    if len(scores) != len(vocabulary.tokens):
        problem = f"its vocabulary is incomplete: {len(vocabulary.tokens)} tokens, {len(scores)} scores"
        raise ModelFileError(file.path, problem)
    return scores


def _merges(vocabulary: GgufVocabulary, scores: list[float]) -> list[list[str]]:
    pieces = {
        piece: score
        for piece, kind, score in zip(vocabulary.tokens, vocabulary.types, scores, strict=True)
        if kind == TokenType.NORMAL
    }
    merges = [
        (score, piece[:split], piece[split:])
        for piece, score in pieces.items()
        for split in range(1, len(piece))
        if piece[:split] in pieces and piece[split:] in pieces
    ]
    merges.sort(key=lambda merge: merge[0], reverse=True)  # stable: of equal ones, the lower id and the shorter left
    return [[left, right] for _, left, right in merges]
