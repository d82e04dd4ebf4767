"""The tokenizer built from a GGUF file with SentencePiece's vocabulary, against its rule written plainly."""

import json
import random
import re

import pytest
from tokenizers import Tokenizer

from engine.model.errors import ModelFileError, UnsupportedModelError
from engine.model.gguf_file import GgufFile
from engine.model.tokenizer_json import tokenizer_from_gguf
from gateway.tokenizer.special_tokens import SpecialTokens
from gateway.tokenizer.tokenizer import Tokenizer as GatewayTokenizer
from tests.model import tiny_llama
from tests.model.tiny_vocabulary import sentence_piece_vocabulary

PIECES, SCORES, TYPES = sentence_piece_vocabulary()
ID_BY_PIECE = {piece: token_id for token_id, piece in enumerate(PIECES)}
SCORE_BY_PIECE = {piece: score for piece, score, kind in zip(PIECES, SCORES, TYPES, strict=True) if kind == 1}
FOUND_FIRST = {"<unk>", "<s>", "</s>", "<tool>"}


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    model, folder = tiny_llama.make_model(), tmp_path_factory.mktemp("pieces")
    return lambda **fields: tiny_llama.write_gguf(folder / "m.gguf", model, kind="sentence-piece", **fields)


@pytest.fixture(scope="module")
def pieces(write):
    return built(write())


def built(path):
    info = tokenizer_from_gguf(GgufFile(path))
    return info, Tokenizer.from_str(info.tokenizer_json.decode())


def expected_ids(text, *, prefix="▁"):
    """Merge the neighbours that make the piece with the best score, the first of them, until none is left."""
    token_ids = []
    for part in re.split("(" + "|".join(map(re.escape, FOUND_FIRST)) + ")", text):
        if part in FOUND_FIRST:
            token_ids.append(ID_BY_PIECE[part])
            continue
        symbols = list((prefix + part).replace(" ", "▁")) if part else []
        while True:
            pairs = [(SCORE_BY_PIECE.get("".join(symbols[at : at + 2])), -at) for at in range(len(symbols) - 1)]
            known = [pair for pair in pairs if pair[0] is not None]
            if not known:
                break
            at = -max(known)[1]
            symbols[at : at + 2] = ["".join(symbols[at : at + 2])]
        for symbol in symbols:
            known_ids = [ID_BY_PIECE[symbol]] if symbol in SCORE_BY_PIECE else []
            token_ids += known_ids or [ID_BY_PIECE[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return token_ids


def random_text(rng):
    alphabet = [*"aaaabbbbcc   é日.x\n☃", "<s>", "</s>", "<tool>", "<0x41>"]
    return "".join(rng.choices(alphabet, k=rng.randrange(30)))


@pytest.mark.parametrize("seed", range(100))
def test_a_text_is_put_together_as_sentencepiece_does(pieces, seed):
    _, tokenizer = pieces
    text = random_text(random.Random(seed))
    assert tokenizer.encode(text).ids == expected_ids(text)


@pytest.mark.parametrize("text", ["", "ab", " ab", "  abab cab", "日 é ☃x\n", "a-b.c"])
def test_a_text_comes_back(pieces, text):
    _, tokenizer = pieces
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize("text", ["ab", " ab", "日 é ☃x\n"])
def test_the_gateway_takes_it_apart_into_the_bytes_of_its_tokens(pieces, text):
    info, _ = pieces
    special = SpecialTokens(
        info.bos_token_id, info.eos_token_ids, info.pad_token_id, info.unk_token_id, add_bos_token=True
    )
    tokenizer = GatewayTokenizer.from_model_info(info.tokenizer_json, info.chat_template, special, 512)
    bos, *token_ids = tokenizer.encode(text)
    whole = b"".join(tokenizer.token_bytes.by_id[token_id] for token_id in token_ids)
    assert bos == 1
    assert whole[tokenizer.token_bytes.num_leading_spaces :] == text.encode()


def test_special_tokens_are_those_of_the_file(pieces):
    info, tokenizer = pieces
    assert (info.bos_token_id, info.eos_token_ids, info.unk_token_id, info.add_bos_token) == (1, (2,), 0, True)
    special = {token["content"]: token["special"] for token in json.loads(info.tokenizer_json)["added_tokens"]}
    assert special == {"<unk>": True, "<s>": True, "</s>": True, "<tool>": False}
    assert tokenizer.decode([1, ID_BY_PIECE["▁ab"], ID_BY_PIECE["<tool>"], 2]) == "ab<tool>"


def test_no_space_is_put_before_a_text_where_the_file_says_so(write):
    _, tokenizer = built(write(tokenizer__ggml__add_space_prefix=False))
    assert tokenizer.encode("abab").ids == expected_ids("abab", prefix="")
    assert tokenizer.decode(tokenizer.encode(" ab").ids) == " ab"


def test_prompts_begin_as_the_file_says(write):
    assert not built(write(tokenizer__ggml__add_bos_token=False))[0].add_bos_token


@pytest.mark.parametrize("name", ["tokens", "scores", "token_type"])
def test_vocabulary_without_a_part_is_refused_by_name(write, name):
    with pytest.raises(ModelFileError, match=rf"m\.gguf: its vocabulary is incomplete: tokenizer\.ggml\.{name} is mis"):
        built(write(**{f"tokenizer.ggml.{name}": None}))


def test_scores_of_another_number_are_refused(write):
    with pytest.raises(ModelFileError, match="incomplete: 300 tokens, 2 scores"):
        built(write(tokenizer__ggml__scores=[0.0, 1.0]))


@pytest.mark.parametrize(("name", "value"), [("pre", "llama-bpe"), ("remove_extra_whitespaces", True)])
def test_what_would_change_a_text_is_refused_by_name(write, name, value):
    with pytest.raises(UnsupportedModelError, match=rf"m\.gguf: .*{value if name == 'pre' else name}"):
        built(write(**{f"tokenizer.ggml.{name}": value}))
