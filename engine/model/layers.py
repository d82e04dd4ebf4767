"""The parts of a layer, each built from its finished weights. The configuration says which of them are there.

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
    """A product with a weight, which cannot be read back once it is packed, plus a bias if there is one: in `dtype`, or
    in that of what comes in."""

    def __init__(self, *weights: Tensor, bias: Tensor | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self._dtype = dtype
        # A tied weight is a buffer of the embedding's, and none of this module's.
        self.packed: ops.Packed = weights[0].detach() if len(weights) == 1 else torch.cat(weights)
        self.bias = bias

    def pack(self, quantization: str | None) -> None:
        """The weight is in the form that its device reads fastest. Raises ValueError, as `ops.pack` does."""
        assert isinstance(self.packed, Tensor), "it is packed already"
        self.packed = ops.pack(self.packed, self.bias, quantization)

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.packed, self.bias, self._dtype)


class Likeliest(nn.Module):
    """Of what `head` makes of x [R, E], R > 0: the first of the largest of each row [R] int64, and whether all of them
    are finite [R] bool. A row that is not may get any."""

    def __init__(self, head: Linear) -> None:
        super().__init__()
        self._head = head

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return ops.largest_products(x, self._head.packed, self._head.bias)


def projection(weights: Weights, rows: abc.Mapping[str, int], columns: int, *, has_bias: bool) -> Linear:
    """The projections named in `rows` side by side, each from `columns` numbers to as many as it has rows."""
    bias = torch.cat([weights(f"{name}.bias", (size,)) for name, size in rows.items()]) if has_bias else None
    return Linear(*(weights(f"{name}.weight", (size, columns)) for name, size in rows.items()), bias=bias)


class HeadNorm(nn.Module):
    """Norms each head of q and of k, in place, and leaves v as it is."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        super().__init__()
        self._eps = config.rms_norm_eps
        size = (config.head_dim,)
        by_head = [weights("q_norm.weight", size).expand(config.num_heads, -1)]
        by_head.append(weights("k_norm.weight", size).expand(config.num_kv_heads, -1))
        self.weight = nn.Buffer(torch.cat(by_head).float())  # [H + KH, D]

    def forward(self, qkv: Tensor) -> Tensor:
        return ops.norm_heads(qkv, self.weight, self._eps)


class Attention(nn.Module):
    """Grouped-query attention over the paged cache, to the last `window` tokens if there is one."""

    def __init__(self, config: ModelConfig, weights: Weights, window: int | None) -> None:
        super().__init__()
        query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        rows = {"q_proj": query_size, "k_proj": kv_size, "v_proj": kv_size}
        self._head_dim = config.head_dim
        self.window = window
        self.qkv_proj = projection(weights, rows, config.hidden_size, has_bias=config.qkv_bias)
        self.qk_norm = HeadNorm(config, weights) if config.qk_norm else None
        self.o_proj = projection(weights, {"o_proj": config.hidden_size}, query_size, has_bias=config.output_bias)

    def forward(self, x: Tensor, rotation: ops.Rotation, batch: ForwardBatch, kv_cache: Tensor) -> Tensor:
        qkv = self.qkv_proj(x).view(x.shape[0], -1, self._head_dim)  # [T, H + 2 KH, D]
        if self.qk_norm is not None:
            qkv = self.qk_norm(qkv)
        attended: Tensor = self.o_proj(ops.attend(qkv, rotation, kv_cache, batch.attention, self.window))
        return attended


class MLP(nn.Module):
    """The gated feed-forward part."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        super().__init__()
        inner = config.intermediate_size
        inward = {"gate_proj": inner, "up_proj": inner}
        self.gate_up_proj = projection(weights, inward, config.hidden_size, has_bias=config.mlp_bias)
        self.down_proj = projection(weights, {"down_proj": config.hidden_size}, inner, has_bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        activated: Tensor = self.down_proj(ops.silu_mul(self.gate_up_proj(x)))
        return activated


class DecoderLayer(nn.Module):
    """Takes what the layer before leaves to be added to the residual stream, and leaves its own to the next."""

    def __init__(self, config: ModelConfig, weights: Weights, window: int | None) -> None:
        super().__init__()
        size = (config.hidden_size,)
        self.input_layernorm = RMSNorm(weights("input_layernorm.weight", size), config.rms_norm_eps)
        self.self_attn = Attention(config, prefixed(weights, "self_attn."), window)
        self.post_attention_layernorm = RMSNorm(weights("post_attention_layernorm.weight", size), config.rms_norm_eps)
        self.mlp = MLP(config, prefixed(weights, "mlp."))

    def stack_weights(self) -> ops.LayerWeights | None:
        """The layer as a stack of layers is built from; None where its weights are not packed for one."""
        attention, mlp = self.self_attn, self.mlp
        return ops.LayerWeights.of(
            norms=(self.input_layernorm.weight, self.post_attention_layernorm.weight),
            products=(
                attention.qkv_proj.packed,
                attention.o_proj.packed,
                mlp.gate_up_proj.packed,
                mlp.down_proj.packed,
            ),
            head_norms=None if attention.qk_norm is None else attention.qk_norm.weight,
            window=attention.window,
        )

    def forward(
        self, residual: Tensor, delta: Tensor, rotation: ops.Rotation, batch: ForwardBatch, kv_cache: Tensor
    ) -> Tensor:
        attended = self.self_attn(self.input_layernorm(residual, delta), rotation, batch, kv_cache)
        left: Tensor = self.mlp(self.post_attention_layernorm(residual, attended))
        return left
