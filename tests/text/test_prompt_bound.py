"""How long a prompt can be: a bound only where it is proved, and exact at its edge."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from gateway.tokenizer import PromptTooLargeError
from gateway.tokenizer.prompt_bound import MAX_PROMPT_CHARACTERS, PromptBound
from tests.text.small_models import byte_level, load, metaspace, sentencepiece

NFC = {"type": "NFC"}
UNDERLINE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}


def sequence(*steps: dict) -> dict:
    return {"type": "Sequence", "normalizers": list(steps)}


def max_characters(backend: Backend, **changes: object) -> int:
    """The bound for a context of ten tokens, after changing parts of the tokenizer's description."""
    description = json.loads(backend.to_str()) | changes
    return load(Backend.from_str(json.dumps(description)), context_tokens=10).bound.max_characters


def longest_token(backend: Backend) -> int:
    return max(map(len, backend.get_vocab()))


def test_prompt_at_the_bound_passes_and_one_character_more_does_not():
    bound = PromptBound(max_characters=5)
    bound.check("12345")
    with pytest.raises(PromptTooLargeError) as refusal:
        bound.check("123456")
    assert (refusal.value.num_characters, refusal.value.max_characters) == (6, 5)


def test_vanishing_characters_do_not_count():
    bound = PromptBound(max_characters=5, vanishing="\x04\x06")
    bound.check("\x041\x062345\x04")
    with pytest.raises(PromptTooLargeError) as refusal:
        bound.check("\x041\x0623456\x04")
    assert refusal.value.num_characters == 6


@pytest.mark.parametrize("build", [byte_level, sentencepiece])
def test_bound_is_the_context_full_of_the_longest_token(build):
    assert max_characters(build()) == 10 * longest_token(build())


@pytest.mark.parametrize(
    ("normalizer", "factor"), [(None, 1), (UNDERLINE, 1), (NFC, 4), (sequence(UNDERLINE, NFC), 4), (sequence(), 1)]
)
def test_bound_counts_every_character_that_composition_can_swallow(normalizer, factor):
    backend = byte_level()
    assert max_characters(backend, normalizer=normalizer) == 10 * factor * longest_token(backend)


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"normalizer": sequence(NFC, {"type": "Strip", "strip_left": True, "strip_right": True})},
        {"normalizer": {**UNDERLINE, "content": ""}},
        {"normalizer": {**UNDERLINE, "pattern": {"String": "  "}}},
        {"normalizer": {**UNDERLINE, "pattern": {"Regex": " +"}}},
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": False}},
    ],
)
def test_no_bound_is_claimed_where_text_can_vanish(changes):
    assert max_characters(byte_level(), **changes) == MAX_PROMPT_CHARACTERS


@pytest.mark.parametrize(
    "backend",
    [metaspace(), byte_level(AddedToken("<wide>", rstrip=True)), byte_level(AddedToken("<wide>", lstrip=True))],
    ids=["one token for a run of unknown characters", "spaces after an added token", "spaces before it"],
)
def test_no_bound_is_claimed_where_a_token_can_cover_any_length(backend):
    assert max_characters(backend) == MAX_PROMPT_CHARACTERS


def without(backend: Backend, *tokens: str) -> dict:
    """The model of `backend` lacking some single characters, and all that is merged from them."""
    model = json.loads(backend.to_str())["model"]
    lacking = {"vocab": {t: i for t, i in model["vocab"].items() if not any(c in t for c in tokens)}}
    merges = [pair for pair in model["merges"] if not any(c in "".join(pair) for c in tokens)]
    return {**model, **lacking, "merges": merges}


def test_bytes_that_the_vocabulary_lacks_are_told_by_their_characters():
    backend = byte_level()
    description = json.loads(backend.to_str()) | {"model": without(backend, "Ī", "x")}  # Ī spells 0x88
    assert load(Backend.from_str(json.dumps(description)), context_tokens=10).bound == PromptBound(
        MAX_PROMPT_CHARACTERS
    )
    description["model"] = without(backend, "Ċ", "x")
    bound = load(Backend.from_str(json.dumps(description)), context_tokens=10).bound
    assert sorted(bound.vanishing) == ["\n", "x"]
    assert bound.max_characters < 1_000


def test_byte_fallback_without_all_bytes_has_no_bound():
    assert max_characters(sentencepiece(), model=without(sentencepiece(), "<0x41>")) == MAX_PROMPT_CHARACTERS


PROVED = {
    "bytes": byte_level(),
    "composed": Backend.from_str(json.dumps(json.loads(byte_level().to_str()) | {"normalizer": NFC})),
    "fallback": sentencepiece(),
}
MODELS = {name: load(backend, context_tokens=1000) for name, backend in PROVED.items()}


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(sorted(MODELS)),
    text=st.text(st.sampled_from("the dogα\u0301\u0313\u0345한ᄒ\u1161\u11ab\x04")),
)
def test_no_prompt_has_fewer_tokens_than_the_bound_says(name, text):
    num_tokens = len(MODELS[name].encode(f"x{text}"))
    assert len(text) + 1 <= num_tokens * MODELS[name].bound.max_characters // 1000
