"""Tokenizers of the other kinds, trained in milliseconds, and a gateway tokenizer around any of them."""

import json
from collections import abc

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from gateway.tokenizer import SpecialTokens, Tokenizer

CORPUS = [
    "the quick brown fox jumps over the lazy dog, and the dog jumps over the fox",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich",
    "Съешь же ещё этих мягких французских булок, да выпей чаю",
    "敏捷的棕色狐狸跳过懒狗  敏捷的棕色狐狸",
    "👩‍👩‍👧‍👦 👍🏽 👍🏽 ✌️ 🇪🇪 e\u0301 ñ",
]


def byte_level(*added: AddedToken) -> Backend:
    """GPT-2's kind, with the whole byte alphabet."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|begin|>", "<|end|>"],
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens(list(added))
    return backend


def sentencepiece() -> Backend:
    """Llama 2's kind: spaces are `▁`, unknown characters fall back to bytes, the leading space is dropped."""
    backend = Backend(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<unk>", "<s>", "</s>", *byte_tokens], show_progress=False
    )
    backend.train_from_iterator(CORPUS[:2], trainer)
    # The trainer makes its byte tokens special, which in a model they are not.
    described = Backend.from_str(backend.to_str())
    return _with_added(described, ["<unk>", "<s>", "</s>"])


def metaspace() -> Backend:
    """A Metaspace pre-tokenizer and decoder, as T5 has them, around a Unigram model."""
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *((f"▁{word}", -2.0) for word in CORPUS[0].split())]
    letters = sorted(set("".join(CORPUS)) | {"▁"})
    backend = Backend(models.Unigram([*dict(pieces).items(), *((letter, -5.0) for letter in letters)], unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


def load(
    backend: Backend, template: str = "", special: SpecialTokens | None = None, context_tokens: int = 1000
) -> Tokenizer:
    """The gateway's tokenizer for `backend`."""
    return Tokenizer.from_model_info(backend.to_str().encode(), template, special or SpecialTokens(), context_tokens)


def _with_added(backend: Backend, special_tokens: abc.Sequence[str]) -> Backend:
    description = json.loads(backend.to_str())
    description["added_tokens"] = [t for t in description["added_tokens"] if t["content"] in special_tokens]
    return Backend.from_str(json.dumps(description))
