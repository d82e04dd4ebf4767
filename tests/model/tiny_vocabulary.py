"""A vocabulary of 300 tokens for small random models: byte-level BPE, and SentencePiece with the same ids' count."""

import random

VOCABULARY_SIZE = 300


def byte_alphabet() -> list[str]:
    """GPT-2's printable character for each byte, in order of the byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def vocabulary() -> tuple[list[str], list[str]]:
    """Two special tokens, the bytes, a few merges: (tokens, merges)."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "1 2"]
    tokens = ["<s>", "</s>", *byte_alphabet(), *(merge.replace(" ", "") for merge in merges)]
    return tokens + [f"<unused{index}>" for index in range(VOCABULARY_SIZE - len(tokens))], merges


def tokenizer_document() -> dict[str, object]:
    tokens, merges = vocabulary()
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": token_id,
                "content": tokens[token_id],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token_id in (0, 1)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": merges,
        },
    }


def sentence_piece_vocabulary() -> tuple[list[str], list[float], list[int]]:
    """(pieces, scores, types): special ones, the bytes, characters, and pieces that merge in more than one way."""
    pieces, scores, types = ["<unk>", "<s>", "</s>"], [0.0] * 3, [2, 3, 3]
    pieces += [f"<0x{byte:02X}>" for byte in range(256)]
    scores += [0.0] * 256
    types += [6] * 256
    merged = ["▁a", "ab", "ba", "▁ab", "aba", "bab", "abab", "▁▁", "▁▁a", "ca", "▁c", "aa", "aaa", "cab", "▁cab", "bb"]
    order = random.Random(3).sample(range(len(merged)), len(merged))
    words = [*merged, *"▁abcé日.-"]
    pieces += words
    scores += [-1.0 - rank for rank in order] + [-100.0 - place for place in range(len(words) - len(merged))]
    types += [1] * len(words)
    num_missing = VOCABULARY_SIZE - len(pieces)
    return (
        pieces + ["<tool>"] + [f"<pad{index}>" for index in range(num_missing - 1)],
        scores + [0.0] * num_missing,
        types + [4] + [5] * (num_missing - 1),
    )
