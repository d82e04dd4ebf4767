"""A loaded model: what others may know of it, and what the runner runs."""

from dataclasses import dataclass

import torch

from engine.model.config import ModelConfig
from engine.model.llama import LlamaForCausalLM


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the gateway learns of the model.

    dtype               "float32" or "bfloat16": that of the KV cache, and of weights that are not quantized
    quantization        of the weights; None: they are as `dtype` says
    parameter_count     a tied head counted once
    tokenizer_json      the Hugging Face `tokenizers` form, UTF-8
    chat_template       Jinja2; empty if the model has none
    eos_token_ids       the first one is the model's own
    model_hash          SHA-256, hexadecimal, over the files, the dtype and the quantization
    kv_bytes_per_token  keys and values of one token in all layers
    """

    name: str
    architecture: str
    dtype: str
    quantization: str | None
    parameter_count: int
    context_tokens: int
    vocabulary_size: int
    tokenizer_json: bytes
    chat_template: str
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None
    unk_token_id: int | None
    add_bos_token: bool
    model_hash: str
    kv_bytes_per_token: int


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """`module` is on `device` and computes in `dtype`; `config` is its shape."""

    info: ModelInfo
    config: ModelConfig
    module: LlamaForCausalLM
    device: torch.device
    dtype: torch.dtype
