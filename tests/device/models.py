"""Models of random weights, built without a file, a tokenizer or any package but torch."""

from collections import abc
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.config import ModelConfig
from engine.model.info import LoadedModel, ModelInfo
from engine.model.llama import LlamaForCausalLM

TINY = ModelConfig(
    vocabulary_size=300,
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    context_tokens=256,
    tied_embeddings=False,
)
SMOLLM2_135M = ModelConfig(
    vocabulary_size=49_152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    rms_norm_eps=1e-5,
    rope_theta=100_000.0,
    context_tokens=8192,
    tied_embeddings=True,
)
LLAMA_8B = ModelConfig(
    vocabulary_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    rms_norm_eps=1e-5,
    rope_theta=500_000.0,
    context_tokens=8192,
    tied_embeddings=False,
)


@dataclass(frozen=True, slots=True)
class RandomModel:
    """`weights` by Hugging Face's names, as `loaded` has them."""

    loaded: LoadedModel
    weights: abc.Mapping[str, Tensor]


def make_model(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, *, spread: float = 0.2, seed: int = 5
) -> RandomModel:
    """`spread` is the deviation of the weights: at 0.2 a small model's attention is far from uniform."""
    generator = torch.Generator(device).manual_seed(seed)
    weights: dict[str, Tensor] = {}

    def weight(name: str, shape: tuple[int, ...]) -> Tensor:
        weights[name] = torch.empty(shape, dtype=dtype, device=device).normal_(0, spread, generator=generator)
        if name.endswith("norm.weight"):
            weights[name] += 1
        return weights[name]

    with torch.inference_mode():
        module = LlamaForCausalLM(config, weight).eval()
    kv_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize
    num_parameters = sum(tensor.numel() for tensor in weights.values())
    info = ModelInfo(
        name="random",
        architecture=config.architecture,
        dtype=str(dtype).removeprefix("torch."),
        quantization=None,
        parameter_count=num_parameters,
        context_tokens=config.context_tokens,
        vocabulary_size=config.vocabulary_size,
        tokenizer_json=b"{}",
        chat_template="",
        bos_token_id=None,
        eos_token_ids=(0,),
        pad_token_id=None,
        unk_token_id=None,
        add_bos_token=False,
        model_hash="",
        kv_bytes_per_token=kv_bytes,
    )
    return RandomModel(LoadedModel(info, config, module, device, dtype), weights)
