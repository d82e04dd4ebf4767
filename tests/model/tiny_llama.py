"""Small random Llama models on disk, as a Hugging Face folder and as a GGUF file with the same weights."""

import json
from pathlib import Path

import gguf
import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY_SIZE = 300
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

_GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def byte_alphabet() -> list[str]:
    """GPT-2's printable character for each byte, in order of the byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def vocabulary() -> tuple[list[str], list[str]]:
    """Two special tokens, the bytes, a few merges: (tokens, merges)."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "1 2"]
    tokens = ["<s>", "</s>", *byte_alphabet(), *(merge.replace(" ", "") for merge in merges)]
    return tokens + [f"<unused{index}>" for index in range(VOCABULARY_SIZE - len(tokens))], merges


def make_model(**overrides: object) -> LlamaForCausalLM:
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
    torch.manual_seed(5)
    return LlamaForCausalLM(LlamaConfig(**(settings | overrides))).eval()


def write_folder(folder: Path, model: LlamaForCausalLM, *, max_shard_size: str = "1GB") -> Path:
    """`model` as `save_pretrained` writes it, with a tokenizer beside it."""
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_document()), encoding="utf-8")
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ messages[0].content }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def tokenizer_document() -> dict[str, object]:
    tokens, merges = vocabulary()
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": token_id,
                "content": tokens[token_id],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token_id in (0, 1)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": merges,
        },
    }


def write_gguf(path: Path, model: LlamaForCausalLM, **fields: str) -> Path:
    """`model` as llama.cpp's converter lays it out; `fields` replace string metadata."""
    config = model.config
    writer = gguf.GGUFWriter(path, fields.pop("architecture", "llama"))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    tokens, merges = vocabulary()
    strings = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2"} | {
        name.replace("__", "."): value for name, value in fields.items()
    }
    for name, value in strings.items():
        writer.add_string(name, value)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for name, weight in model.state_dict().items():
        writer.add_tensor(_gguf_name(name), _interleaved(name, weight, config).numpy())
    if config.rope_parameters["rope_type"] == "llama3":
        plain = config.rope_parameters["rope_theta"] ** (-torch.arange(0, config.head_dim, 2) / config.head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_name(name: str) -> str:
    if name in _GGUF_NAMES:
        return _GGUF_NAMES[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{_GGUF_NAMES[part]}.weight"


def _interleaved(name: str, weight: torch.Tensor, config: LlamaConfig) -> torch.Tensor:
    """Row 2i of a head of q or k is row i, row 2i + 1 is row i + D/2."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return weight
    half = config.head_dim // 2
    order = [
        head + row for head in range(0, len(weight), 2 * half) for pair in range(half) for row in (pair, pair + half)
    ]
    return weight[order].contiguous()
