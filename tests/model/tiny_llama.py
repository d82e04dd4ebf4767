"""Small random models of every family on disk, as a Hugging Face folder and as a GGUF file with the same weights."""

import json
from pathlib import Path

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.model.tiny_gguf import write_gguf
from tests.model.tiny_vocabulary import VOCABULARY_SIZE, byte_alphabet, tokenizer_document, vocabulary

__all__ = [
    "LLAMA3_ROPE",
    "VOCABULARY_SIZE",
    "byte_alphabet",
    "make_model",
    "tokenizer_document",
    "vocabulary",
    "write_folder",
    "write_gguf",
]

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

_FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def make_model(family: str = "llama", **overrides: object) -> PreTrainedModel:
    """Random weights, the same ones each time, large enough that attention is far from uniform."""
    settings = {
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": 72,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "initializer_range": 0.2,
    }
    configuration, module = _FAMILIES[family]
    torch.manual_seed(5)
    model = module(configuration(**(settings | overrides))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".bias"):  # they start as zeros
                parameter.normal_(std=0.5)
            elif name.endswith(("q_norm.weight", "k_norm.weight")):  # and these as ones
                parameter.uniform_(0.5, 1.5)
    return model


def write_folder(folder: Path, model: PreTrainedModel, *, max_shard_size: str = "1GB") -> Path:
    """`model` as `save_pretrained` writes it, with a tokenizer beside it."""
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_document()), encoding="utf-8")
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ messages[0].content }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
