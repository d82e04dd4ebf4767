"""Pieces of a stream that are filled instead of made are the same as those that are made, byte for byte."""

import json

import pytest

from gateway.http.chat_reply import ChatWording, MessageDelta
from gateway.http.completions_reply import CompletionWording
from gateway.http.reply_parts import Head
from gateway.servicer.outcome import Delta

HEAD = Head("0199", 1_700_000_000, 'a "model"', "default", None)
TEXTS = ["x", 'say "hi" \\ \n', "é😀", "\u2028</script>", "\x00\x1f", " "]


def delta(text: str) -> Delta:
    return Delta(text, (), (), 1, 1)


@pytest.mark.parametrize("includes_usage", [True, False])
@pytest.mark.parametrize("text", TEXTS)
def test_a_chats_piece_is_as_its_type_has_it(text: str, includes_usage: bool) -> None:
    wording = ChatWording(HEAD, has_logprobs=False, includes_usage=includes_usage)
    for choice in (0, 3, 0):
        piece = wording.delta(choice, delta(text))

        assert piece == wording._piece(choice, MessageDelta(content=text), None)
        told = json.loads(piece.removeprefix(b"data: "))
        assert (told["choices"][0]["index"], told["choices"][0]["delta"]["content"]) == (choice, text)
        assert ("usage" in told) is includes_usage


@pytest.mark.parametrize("text", TEXTS)
def test_a_completions_piece_is_as_its_type_has_it(text: str) -> None:
    wording = CompletionWording(HEAD, has_logprobs=False, includes_usage=False)
    for choice in (0, 3, 0):
        piece = wording.delta(choice, delta(text))

        assert piece == wording._piece(choice, text, None)
        assert json.loads(piece.removeprefix(b"data: "))["choices"][0]["text"] == text


def test_what_adds_no_text_is_no_piece() -> None:
    assert ChatWording(HEAD, has_logprobs=False, includes_usage=False).delta(0, delta("")) == b""
    assert CompletionWording(HEAD, has_logprobs=False, includes_usage=False).delta(0, delta("")) == b""
