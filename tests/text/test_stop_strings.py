"""Stop strings across token borders, against a reference that looks at the whole text."""

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.tokenizer import OutputText, TextDelta
from gateway.tokenizer.stop_strings import StopStringFinder
from tests.text.small_models import byte_level, load

BYTES = load(byte_level())
ID_BY_BYTE = {piece[0]: token_id for token_id, piece in enumerate(BYTES.token_bytes.by_id) if len(piece) == 1}


def ids(text: str) -> list[int]:
    """One token per byte."""
    return [ID_BY_BYTE[byte] for byte in text.encode()]


def cut(text: str, stop_strings: list[str]) -> tuple[str, int] | None:
    """The text before the first completed stop string and the end of that string, by trying every end."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stop_strings if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], end
    return None


def could_begin(text: str, stop_strings: list[str]) -> int:
    """The length of the longest end of `text` that begins a stop string."""
    return max(
        (n for stop in stop_strings for n in range(len(stop)) if text.endswith(stop[:n])),
        default=0,
    )


ALPHABET = st.sampled_from("ab€😀")
TEXTS = st.text(ALPHABET, max_size=30)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=6), min_size=1, max_size=4)
CUTS = st.lists(st.integers(0, 200), max_size=12)


@settings(max_examples=600, deadline=None)
@given(text=TEXTS, stop_strings=STOPS, cuts=CUTS)
@example(text="aaab", stop_strings=["aab"], cuts=[1, 2, 3])
@example(text="abcab", stop_strings=["bca", "abcd"], cuts=[2])
@example(text="ab", stop_strings=["b", "ab"], cuts=[1])
def test_text_and_tokens_up_to_the_first_stop_string_equal_the_reference(text, stop_strings, cuts):
    token_ids = ids(text)
    bounds = [0, *sorted(position % (len(token_ids) + 1) for position in cuts), len(token_ids)]
    output = OutputText(BYTES, stop_strings)
    emitted, num_tokens, has_stopped = "", 0, False
    for start, end in pairwise(bounds):
        delta = output.push(token_ids[start:end])
        has_stopped = delta.stopped
        emitted += delta.text
        num_tokens += delta.num_tokens
        if not delta.stopped:
            seen = bytes(token_bytes(token_ids[:end])).decode(errors="ignore")
            assert emitted == seen[: len(seen) - could_begin(seen, stop_strings)]
    expected = cut(text, stop_strings)
    emitted += output.finish()
    if expected is None:
        assert (emitted, num_tokens, has_stopped) == (text, len(token_ids), False)
        return
    before, end = expected
    assert (emitted, num_tokens, has_stopped) == (before, len(ids(text[:end])), True)


def token_bytes(token_ids: list[int]) -> bytes:
    return b"".join(BYTES.token_bytes.by_id[token_id] for token_id in token_ids)


def test_stop_string_over_several_tokens_is_never_shown(tokenizer):
    token_ids = tokenizer.encode("The answer is 42.\nQuestion: what else?")
    output = OutputText(tokenizer, ["\nQuestion:"])
    deltas = [output.push([token_id]) for token_id in token_ids]
    shown = "".join(delta.text for delta in deltas) + output.finish()
    assert shown == "The answer is 42."
    counted = sum(delta.num_tokens for delta in deltas)
    assert "".join(map(tokenizer.token_text, token_ids[:counted])) == "The answer is 42.\nQuestion:"


def test_nothing_counts_after_the_stop_string():
    output = OutputText(BYTES, ["b"])
    assert output.push(ids("aabaa")) == TextDelta("aa", 3, stopped=True)
    assert output.push(ids("aa")) == TextDelta("", 0, stopped=True)
    assert output.finish() == ""


def test_text_that_may_begin_a_stop_string_is_held_back_and_shown_when_it_does_not():
    output = OutputText(BYTES, ["abc"])
    assert output.push(ids("xab")).text == "x"
    assert output.push(ids("x")).text == "abx"
    assert output.push(ids("ab")).text == ""
    assert output.finish() == "ab"


def test_of_stop_strings_that_end_together_the_longest_is_cut():
    assert OutputText(BYTES, ["b", "aab"]).push(ids("xaab")).text == "x"
    assert OutputText(BYTES, ["aab", "b"]).push(ids("xaab")).text == "x"


def test_stop_string_that_ends_first_wins_although_another_began_earlier():
    delta = OutputText(BYTES, ["abcd", "c"]).push(ids("xabcd"))
    assert delta == TextDelta("xab", 4, stopped=True)


def test_hidden_tokens_neither_show_nor_break_a_stop_string(tokenizer):
    newline, question, colon = tokenizer.encode("\nQuestion:")
    output = OutputText(tokenizer, ["\nQuestion:"], frozenset({2}))
    assert output.push([newline, 2, question, 2, colon, 2]) == TextDelta("", 5, stopped=True)


def test_stop_string_can_be_completed_by_the_end_of_a_broken_character():
    output = OutputText(BYTES, ["\ufffd"])
    assert output.push([*ids("a"), ID_BY_BYTE[0xE2]]) == TextDelta("a", 2, stopped=False)
    assert output.finish() == ""


@settings(max_examples=200, deadline=None)
@given(text=TEXTS, stop_strings=STOPS, cuts=CUTS)
def test_finder_depends_on_the_text_and_not_on_its_pieces(text, stop_strings, cuts):
    bounds = [0, *sorted(position % (len(text) + 1) for position in cuts), len(text)]
    pieces, whole = StopStringFinder(stop_strings), StopStringFinder(stop_strings)
    in_pieces = "".join(pieces.push(text[start:end]) for start, end in pairwise(bounds)) + pieces.finish()
    assert in_pieces == whole.push(text) + whole.finish()
    assert pieces.found == whole.found


def test_characters_with_a_meaning_in_patterns_are_plain_text_in_stop_strings():
    for stop in ("]", "^", "-", "\\", "[", "a-z", "^]", ".*"):
        output = OutputText(BYTES, [stop, "zz"])
        assert output.push(ids(f"x{stop}y")) == TextDelta("x", 1 + len(stop), stopped=True)


def test_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="empty"):
        OutputText(BYTES, ["a", ""])
