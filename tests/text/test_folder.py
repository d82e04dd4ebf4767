"""The exported folder: what `transformers` makes of it counts and words prompts as the gateway does."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import processors
from transformers import AutoTokenizer

from gateway.tokenizer import ChatMessage, SpecialTokens, Tokenizer, UnusableTokenizerError, tokenizer_files
from tests.gateway.fake_engine import CHAT_TEMPLATE, byte_tokenizer_json
from tests.text.conftest import CONTEXT_TOKENS

END, BEGIN = 256, 257
TEXTS = ("a", "Why is the sky blue?", "  two  spaces\n\n", "naïve café, 東京 🙂", "<|im_start|>user", "x" * 300)
CHATS = (
    [ChatMessage("user", "Why is the sky blue?")],
    [ChatMessage("system", "Be brief."), ChatMessage("user", "Hi"), ChatMessage("assistant", "Hello!")],
)


def loaded(folder: Path, files: dict[str, str]) -> Any:
    """The folder of `files`, as tools load it."""
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


def turns(chat: list[ChatMessage]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in chat]


def test_the_default_models_folder_gives_the_same_ids_and_the_same_chats(
    tokenizer: Tokenizer, reference: Any, tmp_path: Path
):
    files = tokenizer_files(
        reference.backend_tokenizer.to_str().encode(), reference.chat_template, tokenizer.special, CONTEXT_TOKENS
    )

    found = loaded(tmp_path, files)

    for text in TEXTS:
        assert found(text).input_ids == tokenizer.encode(text)
        assert found.decode(found(text).input_ids) == text
    for chat in CHATS:
        for adds in (True, False):
            rendered = found.apply_chat_template(turns(chat), tokenize=False, add_generation_prompt=adds)
            ids = found.apply_chat_template(turns(chat), add_generation_prompt=adds, return_dict=False)
            assert rendered == tokenizer.render_chat(chat, add_generation_prompt=adds)
            assert ids == tokenizer.encode_chat(chat, add_generation_prompt=adds)
    assert (found.model_max_length, found.eos_token_id) == (CONTEXT_TOKENS, tokenizer.special.eos_token_ids[0])
    assert found.chat_template == reference.chat_template


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("has_own", [True, False])
def test_a_text_begins_as_it_does_where_it_is_billed(tmp_path: Path, adds_bos: bool, has_own: bool):
    special = SpecialTokens(bos_token_id=BEGIN, eos_token_ids=(END,), add_bos_token=adds_bos)
    backend = Backend.from_buffer(byte_tokenizer_json())
    if has_own:
        ends = [("<|begin|>", BEGIN), ("<|end|>", END)]
        backend.post_processor = processors.TemplateProcessing(single="<|begin|> $A <|end|>", special_tokens=ends)
    own = Tokenizer.from_model_info(backend.to_str().encode(), CHAT_TEMPLATE, special, CONTEXT_TOKENS)

    found = loaded(tmp_path, tokenizer_files(backend.to_str().encode(), CHAT_TEMPLATE, special, CONTEXT_TOKENS))

    assert found("hi").input_ids == own.encode("hi") == ([BEGIN] if adds_bos else []) + [104, 105]
    assert found.apply_chat_template(turns(CHATS[0]), return_dict=False) == own.encode_chat(
        CHATS[0], add_generation_prompt=False
    )


def test_a_model_without_a_template_has_none_in_its_folder(tmp_path: Path):
    found = loaded(tmp_path, tokenizer_files(byte_tokenizer_json(), "", SpecialTokens(eos_token_ids=(END,)), 64))

    assert not found.chat_template


def test_what_is_no_tokenizer_is_no_folder():
    with pytest.raises(UnusableTokenizerError):
        tokenizer_files(b"{}", "", SpecialTokens(), 64)
