"""The tokenizer built from a GGUF file, run by the `tokenizers` library, against published ones."""

import os

import pytest
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from transformers import AutoTokenizer

from engine.model.default_model import find_default_model
from engine.model.errors import ModelFileError, UnsupportedModelError
from engine.model.gguf_file import GgufFile
from engine.model.tokenizer_json import tokenizer_from_gguf
from tests.model import tiny_llama

TEXTS = [
    "",
    " ",
    "Hello world",
    " leading and trailing ",
    "It's what they'll've said, isn't it? DON'T",
    "tabs\tand\nnewlines\r\n\r\n  indented\n\n\n",
    "def f(x):\n    return {'a': [x ** 2, -1.5e-3]}  # comment\n",
    "Zürich, naïve café, Ελληνικά, Русский, العربية, हिन्दी, 日本語のテキスト, 한국어",
    "🙂 👩‍👩‍👧‍👦 🇨🇭 ☃️ 🤷🏽‍♀️",
    "e\u0301 versus \u00e9, \u200bzero\u200d width\u2028separators\u00a0here",
    "In 1984 there were 3.14159 reasons, v2.0.1",
    "a" * 300,
    "((((____----====>>>>",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "\x00\x01\x7f\ufffd\U0010ffff",
]
SPACES_BEFORE_DIGITS = [
    "a  1",
    "x   42\n\n 7",
    "sum =    100",
    "\n1\n\n2",
    "half ½, squared ², Roman Ⅷ, Arabic-Indic ٣٤٥, full-width １２３",
]


@pytest.fixture(scope="module")
def built():
    return tokenizer_from_gguf(GgufFile(find_default_model()))


@pytest.fixture(scope="module")
def published():
    path = find_default_model()
    return AutoTokenizer.from_pretrained(os.fspath(path.parent), gguf_file=path.name)


def test_default_models_tokens_are_the_references(built, published):
    tokenizer = Tokenizer.from_str(built.tokenizer_json.decode())
    for text in TEXTS:
        token_ids = tokenizer.encode(text).ids
        assert token_ids == published(text, add_special_tokens=False).input_ids
        assert tokenizer.decode(token_ids, skip_special_tokens=False) == published.decode(token_ids)
        assert published.decode(token_ids) == text


def test_default_model_splits_digits_before_anything_else(built, published):
    """The reference forgets that step when it reads a GGUF file, so it is put back as the model was published with."""
    backend = Tokenizer.from_str(published.backend_tokenizer.to_str())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer = Tokenizer.from_str(built.tokenizer_json.decode())
    for text in [*TEXTS, *SPACES_BEFORE_DIGITS]:
        assert tokenizer.encode(text).ids == backend.encode(text).ids


def test_default_models_special_tokens_and_template_are_those_of_the_file(built, published):
    assert built.chat_template == published.chat_template
    assert built.bos_token_id == published.bos_token_id
    assert built.eos_token_ids == (published.eos_token_id,)
    assert built.pad_token_id == published.pad_token_id
    assert built.unk_token_id == published.unk_token_id
    assert not built.add_bos_token


LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace("{1,3}", "")
TEKKEN_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def by_pattern(pattern):
    """As the published `tokenizer.json` of these families has it."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


@pytest.mark.parametrize(
    ("kind", "pre_tokenizer", "normalizer"),
    [
        ("gpt-2", pre_tokenizers.ByteLevel(add_prefix_space=False), None),
        ("llama-bpe", by_pattern(LLAMA3_PATTERN), None),
        ("llama3", by_pattern(LLAMA3_PATTERN), None),
        ("qwen2", by_pattern(QWEN2_PATTERN), normalizers.NFC()),
        ("tekken", by_pattern(TEKKEN_PATTERN), None),
    ],
)
def test_each_known_kind_splits_as_published(tmp_path, kind, pre_tokenizer, normalizer):
    path = tiny_llama.write_gguf(tmp_path / "m.gguf", tiny_llama.make_model(), tokenizer__ggml__pre=kind)
    built = tokenizer_from_gguf(GgufFile(path))
    tokenizer = Tokenizer.from_str(built.tokenizer_json.decode())
    for text in [*TEXTS, *SPACES_BEFORE_DIGITS, "hello world 1234567"]:
        normal = normalizer.normalize_str(text) if normalizer else text
        assert tokenizer.pre_tokenizer.pre_tokenize_str(normal) == pre_tokenizer.pre_tokenize_str(normal)
        assert tokenizer.decode(tokenizer.encode(text).ids) == normal
    assert built.add_bos_token == (kind in ("llama-bpe", "llama3", "tekken"))


def test_word_that_is_a_token_stays_whole_in_llama_bpe(tmp_path):
    """Its merges would make `12` of the digits only where the split leaves them together."""
    path = tiny_llama.write_gguf(tmp_path / "m.gguf", tiny_llama.make_model(), tokenizer__ggml__pre="llama-bpe")
    tokenizer = Tokenizer.from_str(tokenizer_from_gguf(GgufFile(path)).tokenizer_json.decode())
    assert tokenizer.encode("<unused0>").tokens != ["<unused0>"]
    assert tokenizer.encode("hello").tokens == ["hello"]
    assert tokenizer.encode("12").tokens == ["12"]
    assert tokenizer.encode("<s>").ids == [0]


def test_unknown_kinds_are_refused_with_the_known_ones(tmp_path):
    model = tiny_llama.make_model()
    path = tiny_llama.write_gguf(tmp_path / "pre.gguf", model, tokenizer__ggml__pre="falcon")
    with pytest.raises(UnsupportedModelError, match=r"pre\.gguf: pre-tokenizer 'falcon' .* gpt-2, llama-bpe, .*qwen2"):
        tokenizer_from_gguf(GgufFile(path))
    path = tiny_llama.write_gguf(tmp_path / "kind.gguf", model, tokenizer__ggml__model="rwkv")
    with pytest.raises(UnsupportedModelError, match=r"kind\.gguf: tokenizer 'rwkv' .* gpt2 .* llama"):
        tokenizer_from_gguf(GgufFile(path))


def test_vocabulary_of_uneven_length_is_refused(tmp_path):
    file = GgufFile(tiny_llama.write_gguf(tmp_path / "m.gguf", tiny_llama.make_model()))
    file.metadata["tokenizer.ggml.token_type"].pop()
    with pytest.raises(ModelFileError, match=r"m\.gguf: its vocabulary is incomplete"):
        tokenizer_from_gguf(file)
