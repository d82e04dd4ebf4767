"""Writes the default model's weights as a Hugging Face folder, which peers can load: `python -m
tests.bench.peers.export FOLDER`. Names and order are those of Hugging Face, numbers those that our own loader reads."""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from engine.model.default_model import find_default_model
from engine.model.gguf_file import GgufFile
from engine.model.gguf_weights import GgufWeights
from engine.model.loader import load_model
from engine.model.parameters import parameter_shapes


def export(folder: Path, dtype: torch.dtype) -> None:
    """`folder` holds config.json, tokenizer.json and model.safetensors."""
    source = GgufWeights(GgufFile(find_default_model()))
    config, info = source.config, load_model(None, device="cpu").info
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: source.weight(name).to(dtype).contiguous() for name in parameter_shapes(config)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "tokenizer.json").write_bytes(info.tokenizer_json)
    shape = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": config.vocabulary_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_tokens,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tied_embeddings,
        "bos_token_id": info.bos_token_id,
        "eos_token_id": info.eos_token_ids[0],
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    (folder / "config.json").write_text(json.dumps(shape, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    args = parser.parse_args()
    export(args.folder, getattr(torch, args.dtype))


if __name__ == "__main__":
    main()
