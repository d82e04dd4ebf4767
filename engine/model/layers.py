"""The parts of a Llama layer, each built from its finished weights.

Attributes carry Hugging Face's names; q, k, v and gate, up are one product each, as the two fused names say.
The residual stream stays in float32, whatever the dtype of the weights.
"""

from collections import abc

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from engine.kernels import ops
from engine.model.config import ModelConfig
from engine.model.forward_batch import ForwardBatch

Weights = abc.Callable[[str, tuple[int, ...]], Tensor]
"""Name under the module's own prefix and expected shape -> the parameter, on the device and in the dtype to run in."""


def prefixed(weights: Weights, prefix: str) -> Weights:
    """`weights` for a module that is called `prefix` where they come from."""
    return lambda name, shape: weights(prefix + name, shape)


class RMSNorm(nn.Module):
    """Adds to the residual stream, in place, and returns the norm of what it is then."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self._eps = eps
        self.weight = nn.Buffer(weight.float())

    def forward(self, residual: Tensor, delta: Tensor) -> Tensor:
        return ops.add_rms_norm(residual, delta, self.weight, self._eps)


class Embedding(nn.Module):
    """Token ids [T] in, their rows [T, E] out."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Buffer(weight)

    def forward(self, token_ids: Tensor) -> Tensor:
        return embedding(token_ids, self.weight)


class Linear(nn.Module):
    """A product with a packed weight, which cannot be read back."""

    def __init__(self, *weights: Tensor) -> None:
        super().__init__()
        self.packed_weight = nn.Buffer(ops.pack(torch.cat(weights)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.packed_weight)


class Attention(nn.Module):
    """Grouped-query attention over the paged cache."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        super().__init__()
        query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self._head_dim = config.head_dim
        self.qkv_proj = Linear(
            weights("q_proj.weight", (query_size, config.hidden_size)),
            weights("k_proj.weight", (kv_size, config.hidden_size)),
            weights("v_proj.weight", (kv_size, config.hidden_size)),
        )
        self.o_proj = Linear(weights("o_proj.weight", (config.hidden_size, query_size)))

    def forward(self, x: Tensor, rotation: ops.Rotation, batch: ForwardBatch, kv_cache: Tensor) -> Tensor:
        qkv = self.qkv_proj(x).view(x.shape[0], -1, self._head_dim)  # [T, H + 2 KH, D]
        attended: Tensor = self.o_proj(ops.attend(qkv, rotation, kv_cache, batch.attention))
        return attended


class MLP(nn.Module):
    """The gated feed-forward part."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        super().__init__()
        inward = (config.intermediate_size, config.hidden_size)
        self.gate_up_proj = Linear(weights("gate_proj.weight", inward), weights("up_proj.weight", inward))
        self.down_proj = Linear(weights("down_proj.weight", (config.hidden_size, config.intermediate_size)))

    def forward(self, x: Tensor) -> Tensor:
        activated: Tensor = self.down_proj(ops.silu_mul(self.gate_up_proj(x)))
        return activated


class DecoderLayer(nn.Module):
    """Takes what the layer before leaves to be added to the residual stream, and leaves its own to the next."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        super().__init__()
        size = (config.hidden_size,)
        self.input_layernorm = RMSNorm(weights("input_layernorm.weight", size), config.rms_norm_eps)
        self.self_attn = Attention(config, prefixed(weights, "self_attn."))
        self.post_attention_layernorm = RMSNorm(weights("post_attention_layernorm.weight", size), config.rms_norm_eps)
        self.mlp = MLP(config, prefixed(weights, "mlp."))

    def forward(
        self, residual: Tensor, delta: Tensor, rotation: ops.Rotation, batch: ForwardBatch, kv_cache: Tensor
    ) -> Tensor:
        attended = self.self_attn(self.input_layernorm(residual, delta), rotation, batch, kv_cache)
        left: Tensor = self.mlp(self.post_attention_layernorm(residual, attended))
        return left
