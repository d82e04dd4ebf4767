"""Text prompts to token ids: equal to the reference, and what is refused."""

import asyncio
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tokenizer import (
    ChatMessage,
    EmptyPromptError,
    InvalidTextError,
    PromptTooLargeError,
    SpecialTokens,
    Tokenizer,
    UnusableTokenizerError,
)
from gateway.tokenizer.tokenizer import INLINE_CHARACTERS, INLINE_MESSAGES, SLOW_TEMPLATE_NS
from tests.text.small_models import byte_level, load

TEXTS = [
    "The capital of France is",
    " leading and trailing ",
    "naïve café, 12345 and 東京 👩‍👩‍👧‍👦\n\n\tdef f(x):\r\n  return x",
    "<|im_start|>user\nwritten by hand<|im_end|>\n",
    "a" * 5_000,
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_prompt_has_the_references_tokens(tokenizer, reference, text):
    assert tokenizer.encode(text) == reference(text).input_ids


@settings(max_examples=150, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60))
def test_any_text_prompt_has_the_references_tokens(tokenizer, reference, text):
    expected = reference(text).input_ids
    if expected:
        assert tokenizer.encode(text) == expected
    else:  # the vocabulary lacks every character of it
        with pytest.raises(EmptyPromptError):
            tokenizer.encode(text)


def test_special_tokens_in_a_text_prompt_are_the_callers_own(tokenizer):
    assert tokenizer.encode("<|im_end|>") == [2]


def test_begin_token_is_added_if_the_model_wants_one():
    backend = byte_level()
    bare = load(backend).encode("the dog")
    special = SpecialTokens(bos_token_id=0, add_bos_token=True)
    assert load(backend, special=special).encode("the dog") == [0, *bare]
    assert load(backend, special=replace(special, add_bos_token=False)).encode("the dog") == bare
    assert load(backend, special=SpecialTokens(add_bos_token=True)).encode("the dog") == bare


def test_settings_in_the_file_neither_cut_nor_fill_up_a_prompt():
    backend = byte_level()
    expected = load(backend).encode("the quick brown fox")
    backend.enable_truncation(2)
    backend.enable_padding(length=50)
    assert load(backend).encode("the quick brown fox") == expected


def test_empty_prompt_is_refused(tokenizer):
    with pytest.raises(EmptyPromptError):
        tokenizer.encode("")


def test_lone_surrogate_is_refused(tokenizer):
    for text in ("\ud83d", "fine until \udc00 here"):
        with pytest.raises(InvalidTextError, match="surrogate"):
            tokenizer.encode(text)
        with pytest.raises(InvalidTextError, match="surrogate"):
            tokenizer.encode_chat([ChatMessage("user", text)])


def test_ten_megabyte_prompt_is_refused_without_tokenizing_it(tokenizer):
    def encode_batch_fast(texts, add_special_tokens):
        raise AssertionError("tokenized")

    untouched = replace(tokenizer, backend=SimpleNamespace(encode_batch_fast=encode_batch_fast))
    with pytest.raises(PromptTooLargeError) as refusal:
        untouched.encode("x " * 5_000_000)
    assert refusal.value.num_characters == 10_000_000
    with pytest.raises(PromptTooLargeError):
        untouched.encode_chat([ChatMessage("user", "x " * 2_500_000)] * 2)


def test_prompt_that_fills_the_context_with_long_tokens_is_within_the_bound(tokenizer):
    assert len(tokenizer.encode("#" * 64 * 8192)) == 8192


def test_characters_that_the_vocabulary_lacks_do_not_count_as_length(tokenizer):
    assert tokenizer.encode("\x04" * 1_000_000 + "hi") == tokenizer.encode("hi")


def test_token_text_shows_broken_characters_and_knows_no_id_beyond_the_vocabulary(tokenizer):
    first, second = tokenizer.encode("😀")[:2]
    assert tokenizer.token_text(tokenizer.encode(" Paris")[0]) == " Paris"
    assert tokenizer.token_text(2) == "<|im_end|>"
    assert tokenizer.token_text(first) == "\ufffd"
    assert "\ufffd" in tokenizer.token_text(second)
    assert tokenizer.token_text(10**6) == ""


def test_special_ids_are_those_of_the_file_and_of_the_model(tokenizer):
    assert tokenizer.special_token_ids == frozenset(range(17))
    named = load(byte_level(), special=SpecialTokens(eos_token_ids=(300, 301), pad_token_id=302))
    assert named.special_token_ids == frozenset({0, 1, 300, 301, 302})


async def test_long_prompt_is_tokenized_in_a_thread_and_its_wait_can_be_cancelled(tokenizer):
    started, may_end, threads = threading.Event(), threading.Event(), []

    def encode_batch_fast(texts, add_special_tokens):
        threads.append(threading.current_thread())
        started.set()
        may_end.wait()
        return [SimpleNamespace(ids=[1])]

    slow = replace(tokenizer, backend=SimpleNamespace(encode_batch_fast=encode_batch_fast))
    task = asyncio.create_task(slow.encode_async("x" * 2_000))
    await asyncio.to_thread(started.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_end.set()
    assert threads[0] is not threading.current_thread()


async def test_waiting_calls_give_the_same_tokens(tokenizer):
    messages = [ChatMessage("user", "hello")]
    assert await tokenizer.encode_async("hello") == tokenizer.encode("hello")
    assert await tokenizer.encode_async("hello " * 1000) == tokenizer.encode("hello " * 1000)
    assert await tokenizer.encode_chat_async(messages) == tokenizer.encode_chat(messages)


@pytest.mark.parametrize("damaged", [b"", b"{", b"[]", b"\xff", b'{"model": 1}'])
def test_damaged_tokenizer_is_refused(damaged):
    with pytest.raises(UnusableTokenizerError, match="cannot be read"):
        Tokenizer.from_model_info(damaged, "", SpecialTokens(), 100)


def test_tokenizer_built_by_the_engine_gives_the_references_tokens(model_path, reference):
    from engine.model.gguf_file import GgufFile
    from engine.model.tokenizer_json import tokenizer_from_gguf

    info = tokenizer_from_gguf(GgufFile(model_path))
    special = SpecialTokens(
        info.bos_token_id, info.eos_token_ids, info.pad_token_id, info.unk_token_id, info.add_bos_token
    )
    built = Tokenizer.from_model_info(info.tokenizer_json, info.chat_template, special, 8192)
    for text in TEXTS:
        assert built.encode(text) == reference(text).input_ids


@pytest.fixture
def threads(tokenizer, monkeypatch) -> list[threading.Thread]:
    """Those that a chat was encoded in. Whether a template was slow is forgotten afterwards."""
    found: list[threading.Thread] = []
    monkeypatch.setattr(Tokenizer, "encode_chat", lambda *_, **__: found.append(threading.current_thread()))
    monkeypatch.setattr(tokenizer.template, "is_slow", False)
    return found


async def test_a_template_that_was_slow_over_a_short_chat_leaves_the_event_loop(tokenizer, threads, monkeypatch):
    clock_ns = iter([0, SLOW_TEMPLATE_NS, 0, SLOW_TEMPLATE_NS + 1])
    monkeypatch.setattr("gateway.tokenizer.tokenizer.time", SimpleNamespace(thread_time_ns=lambda: next(clock_ns)))

    for _ in range(3):
        await tokenizer.encode_chat_async([ChatMessage("user", "hi")])

    assert [thread is threading.main_thread() for thread in threads] == [True, True, False]


LONG = [ChatMessage("user", "x" * (INLINE_CHARACTERS + 1))]
MANY = [ChatMessage("user", "x")] * (INLINE_MESSAGES + 1)


@pytest.mark.parametrize("messages", [LONG, MANY])
async def test_a_long_chat_is_encoded_off_the_event_loop(tokenizer, threads, messages):
    await tokenizer.encode_chat_async(messages)

    assert threads != [threading.main_thread()]
