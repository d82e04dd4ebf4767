"""Writes a small model as a GGUF file, laid out as llama.cpp's converter does."""

from collections import abc
from pathlib import Path

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedConfig, PreTrainedModel

from tests.model.tiny_vocabulary import sentence_piece_vocabulary, vocabulary

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_ARCHITECTURES = {"mistral": "llama"}

Quantize = abc.Callable[[str, NDArray[np.float32]], tuple[NDArray[np.generic], gguf.GGMLQuantizationType]]


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    *,
    kind: str = "byte-level",
    quantize: Quantize | None = None,
    extra: abc.Mapping[str, NDArray[np.float32]] | None = None,
    without: abc.Container[str] = (),
    **fields: object,
) -> Path:
    """`fields` replace metadata, "__" for a dot, None for none of it; `architecture` is what the file says it is.

    `kind` is that of its vocabulary; `quantize` gives the bytes of a matrix that it is told by its name in the file;
    `extra` tensors are added and those in `without` left out.
    """
    config = model.config
    architecture = str(fields.pop("architecture", _ARCHITECTURES.get(config.model_type, config.model_type)))
    writer = gguf.GGUFWriter(path, architecture)
    described = _metadata(config, architecture) | _tokenizer(kind)
    for name, value in (described | {name.replace("__", "."): value for name, value in fields.items()}).items():
        if value is not None:
            _add(writer, name, value)
    tensors = {
        gguf_name(name): _interleaved(name, weight, config).numpy() for name, weight in model.state_dict().items()
    }
    if config.tie_word_embeddings:
        del tensors["output.weight"]
    for name, weight in (tensors | _rope_factors(model) | dict(extra or {})).items():
        if name in without:
            continue
        if quantize is not None and weight.ndim == 2:
            packed, quantization = quantize(name, weight)
            writer.add_tensor(name, packed, raw_dtype=quantization)
        else:
            writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(config: PreTrainedConfig, architecture: str) -> dict[str, object]:
    rope = config.rope_parameters
    values: dict[str, object] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": float(rope["rope_theta"]),
    }
    if rope["rope_type"] in ("linear", "yarn"):
        values |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
    if rope["rope_type"] == "yarn":
        values["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        for name in ("beta_fast", "beta_slow"):
            values[f"rope.scaling.yarn_{name}"] = rope.get(name)
    if getattr(config, "sliding_window", None) is not None:
        values["attention.sliding_window"] = config.sliding_window
        if hasattr(config, "layer_types"):
            kinds = [kind == "sliding_attention" for kind in config.layer_types]
            values["attention.sliding_window_pattern"] = kinds
    return {f"{architecture}.{name}": value for name, value in values.items()}


def _tokenizer(kind: str) -> dict[str, object]:
    if kind == "byte-level":
        tokens, merges = vocabulary()
        return {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [3, 3] + [1] * (len(tokens) - 2),
            "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.eos_token_id": 1,
        }
    pieces, scores, types = sentence_piece_vocabulary()
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def _add(writer: gguf.GGUFWriter, name: str, value: object) -> None:
    match value:
        case bool():
            writer.add_bool(name, value)
        case int():
            writer.add_uint32(name, value)
        case float():
            writer.add_float32(name, value)
        case str():
            writer.add_string(name, value)
        case list():
            writer.add_array(name, value)
        case _:
            raise TypeError(name)


def _rope_factors(model: PreTrainedModel) -> dict[str, NDArray[np.float32]]:
    """Llama 3's are computed by the converter."""
    config = model.config
    if config.rope_parameters["rope_type"] != "llama3":
        return {}
    plain = config.rope_parameters["rope_theta"] ** (-torch.arange(0, config.head_dim, 2) / config.head_dim)
    return {"rope_freqs.weight": (plain / model.model.rotary_emb.inv_freq).numpy()}


def gguf_name(name: str) -> str:
    module, _, kind = name.rpartition(".")
    if module in _NAMES:
        return f"{_NAMES[module]}.{kind}"
    _, _, layer, part = module.split(".", 3)
    return f"blk.{layer}.{_NAMES[part]}.{kind}"


def _interleaved(name: str, rows: torch.Tensor, config: PreTrainedConfig) -> torch.Tensor:
    """Row 2i of a head of q or k is row i, row 2i + 1 is row i + D/2; in the architecture llama only."""
    if config.model_type not in ("llama", "mistral") or (".q_proj." not in name and ".k_proj." not in name):
        return rows
    half = config.head_dim // 2
    order = [
        head + row for head in range(0, len(rows), 2 * half) for pair in range(half) for row in (pair, pair + half)
    ]
    return rows[order].contiguous()
