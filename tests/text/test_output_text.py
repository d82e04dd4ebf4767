"""Token ids to streamed text: whole characters only, and the same text for every way of cutting the stream."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from gateway.tokenizer import OutputText, TextDelta, Tokenizer, UnusableTokenizerError
from gateway.tokenizer.text_decoder import TextDecoder
from tests.text.small_models import CORPUS, byte_level, load, metaspace, sentencepiece

ADDED = [
    AddedToken("плюс"),
    AddedToken("two words"),
    AddedToken("😀"),
    AddedToken("Ġ"),
    AddedToken("<hidden>", special=True),
]
BACKENDS = {"byte level": byte_level(*ADDED), "sentencepiece": sentencepiece(), "metaspace": metaspace()}
MODELS = {name: load(backend) for name, backend in BACKENDS.items()}

FAMILY = "👩‍👩‍👧‍👦"


def stream(tokenizer: Tokenizer, token_ids: list[int], cuts: list[int], **options) -> list[str]:
    """The deltas, the last one from `finish`."""
    output = OutputText(tokenizer, **options)
    bounds = [0, *sorted(cut % (len(token_ids) + 1) for cut in cuts), len(token_ids)]
    deltas = [output.push(token_ids[start:end]).text for start, end in pairwise(bounds)]
    return [*deltas, output.finish()]


def whole(tokenizer: Tokenizer, token_ids: list[int]) -> str:
    """The reference for any tokens: all bytes at once."""
    table = tokenizer.token_bytes
    first = table.first_by_id or table.by_id
    data = b"".join((table.by_id if index else first)[token_id] for index, token_id in enumerate(token_ids))
    text = data.decode(errors="replace")
    return text[1:] if table.num_leading_spaces and text.startswith(" ") else text


def draw_tokens(data: st.DataObject, tokenizer: Tokenizer) -> list[int]:
    return data.draw(st.lists(st.integers(0, len(tokenizer.token_bytes.by_id) - 1), max_size=40))


CUTS = st.lists(st.integers(0, 100), max_size=12)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(MODELS)), cuts=CUTS)
def test_deltas_join_to_the_whole_text_whatever_the_tokens_and_the_cuts(data, name, cuts):
    token_ids = draw_tokens(data, MODELS[name])
    assert "".join(stream(MODELS[name], token_ids, cuts)) == whole(MODELS[name], token_ids)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), name=st.sampled_from(["byte level", "metaspace"]), cuts=CUTS)
def test_deltas_join_to_the_librarys_decoding_of_any_tokens(data, name, cuts):
    token_ids = draw_tokens(data, MODELS[name])
    expected = BACKENDS[name].decode(token_ids, skip_special_tokens=False)
    assert "".join(stream(MODELS[name], token_ids, cuts)) == expected


@settings(max_examples=100, deadline=None)
@given(data=st.data(), cuts=CUTS)
def test_deltas_join_to_the_references_decoding_for_the_default_model(tokenizer, reference, data, cuts):
    token_ids = draw_tokens(data, tokenizer)
    expected = reference.backend_tokenizer.decode(token_ids, skip_special_tokens=False)
    assert "".join(stream(tokenizer, token_ids, cuts)) == expected


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(sorted(MODELS)),
    words=st.lists(st.sampled_from(" ".join(CORPUS).split()), max_size=8),
    cuts=CUTS,
)
def test_deltas_join_to_the_librarys_decoding_of_real_text(name, words, cuts):
    token_ids = BACKENDS[name].encode(" ".join(words), add_special_tokens=False).ids
    expected = BACKENDS[name].decode(token_ids, skip_special_tokens=False)
    assert "".join(stream(MODELS[name], token_ids, cuts)) == expected


@settings(max_examples=200, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(MODELS)), cuts=CUTS)
def test_hidden_tokens_leave_no_trace_and_count_as_tokens(data, name, cuts):
    tokenizer = MODELS[name]
    token_ids = draw_tokens(data, tokenizer)
    hidden = frozenset(data.draw(st.lists(st.sampled_from(token_ids or [0]), max_size=5)))
    text = "".join(stream(tokenizer, token_ids, cuts, hidden_token_ids=hidden))
    assert text == whole(tokenizer, [token_id for token_id in token_ids if token_id not in hidden])
    assert OutputText(tokenizer, (), hidden).push(token_ids).num_tokens == len(token_ids)


@pytest.mark.parametrize("text", ["😀", FAMILY, "👍🏽", "🇪🇪", "Съешь", "敏捷", "e\u0301"])
@pytest.mark.parametrize("name", ["byte level", "sentencepiece"])
def test_character_appears_whole_with_its_last_token(name, text):
    token_ids = BACKENDS[name].encode(f"x{text}", add_special_tokens=False).ids
    deltas = stream(MODELS[name], token_ids, list(range(len(token_ids))))
    assert "".join(deltas) == f"x{text}"
    assert "\ufffd" not in "".join(deltas)
    assert deltas[-1] == ""


def byte_ids(name: str, data: bytes) -> list[int]:
    """One token per byte."""
    by_id = MODELS[name].token_bytes.by_id
    return [by_id.index(bytes([byte])) for byte in data]


@pytest.mark.parametrize("name", ["byte level", "sentencepiece"])
def test_broken_bytes_become_replacement_characters_as_soon_as_they_are_surely_broken(name):
    output = OutputText(MODELS[name])
    texts = [output.push([token_id]).text for token_id in byte_ids(name, b"\xf0\x9f\x98a\xff\xe2\x82")]
    assert texts == ["", "", "", "\ufffda", "\ufffd", "", ""]
    assert output.finish() == "\ufffd"


def test_leading_space_is_dropped_once_and_spaces_between_words_stay():
    for name in ("sentencepiece", "metaspace"):
        token_ids = BACKENDS[name].encode("the quick brown fox", add_special_tokens=False).ids
        assert "".join(stream(MODELS[name], token_ids, list(range(40)))) == "the quick brown fox"
    space = BACKENDS["sentencepiece"].token_to_id("▁")
    assert "".join(stream(MODELS["sentencepiece"], [space] * 3, [1, 2])) == "  "


@settings(max_examples=100, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(MODELS)))
def test_decoder_never_keeps_more_than_a_character(data, name):
    decoder = TextDecoder(MODELS[name].token_bytes, frozenset())
    for token_id in draw_tokens(data, MODELS[name]):
        decoder.push([token_id])
        assert len(decoder.state().pending) <= 3


def test_ids_beyond_the_vocabulary_have_no_text(tokenizer):
    assert OutputText(tokenizer).push([49_152, 10**6]) == TextDelta("", 2, stopped=False)


UNUSABLE = [None, {"type": "WordPiece", "prefix": "##", "cleanup": True}, {"type": "BPEDecoder", "suffix": "</w>"}]
UNUSABLE += [
    {"type": "Sequence", "decoders": [{"type": "Strip", "content": "x", "start": 1, "stop": 1}, {"type": "Fuse"}]}
]


@pytest.mark.parametrize("decoder", UNUSABLE)
def test_decoder_that_cannot_be_taken_apart_is_refused(decoder):
    description = json.loads(byte_level().to_str()) | {"decoder": decoder}
    with pytest.raises(UnusableTokenizerError, match="decoder"):
        load(Backend.from_str(json.dumps(description)))
