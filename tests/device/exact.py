"""What kernels and models should compute, in float64 and in the plainest way. Knows nothing of blocks."""

from collections import abc

import torch
from torch import Tensor

from engine.model.config import ModelConfig


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """x [T, N, D] by the angles of which cosine and sine are [T, D/2], elements i and i + D/2 together; float64."""
    cosine, sine = cosine[:, None].double(), sine[:, None].double()
    first, second = x.double().chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def attention(q: Tensor, keys: Tensor, values: Tensor, start: int, window: int | None) -> Tensor:
    """q [T, H, D], of tokens from position `start` on · keys, values [L, KH, D]. Returns [T, H, D] float64."""
    num_shared = q.shape[1] // keys.shape[1]
    keys, values = (of.double().repeat_interleave(num_shared, dim=1) for of in (keys, values))
    scores = torch.einsum("thd,lhd->htl", q.double(), keys) / q.shape[-1] ** 0.5
    key, query = torch.arange(len(keys), device=q.device), start + torch.arange(len(q), device=q.device)[:, None]
    hidden = (key > query) | (key <= query - (window or len(keys)))
    return torch.einsum("htl,lhd->thd", scores.masked_fill(hidden, -torch.inf).softmax(-1), values)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Each row of x to root mean square 1, times `weight`; float64."""
    x = x.double()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight.double()


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.double().chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


class ExactModel:
    """A Llama by its weights in float64, without a cache: each token is computed from all before it."""

    def __init__(self, config: ModelConfig, weights: abc.Mapping[str, Tensor]) -> None:
        self._config = config
        self._weights = {name: weight.double() for name, weight in weights.items()}

    def logits(self, token_ids: abc.Sequence[int]) -> Tensor:
        """[V] float64, of the token that follows."""
        config, weights = self._config, self._weights
        index = torch.tensor(token_ids, device=next(iter(weights.values())).device)
        x = weights["model.embed_tokens.weight"][index]
        for layer in range(config.num_layers):
            prefix = f"model.layers.{layer}."
            normed = rms_norm(x, weights[prefix + "input_layernorm.weight"], config.rms_norm_eps)
            x = x + self._attention(prefix + "self_attn.", normed, config.window(layer))
            normed = rms_norm(x, weights[prefix + "post_attention_layernorm.weight"], config.rms_norm_eps)
            gate_up = torch.cat([normed @ weights[f"{prefix}mlp.{name}_proj.weight"].T for name in ("gate", "up")], -1)
            x = x + silu_mul(gate_up) @ weights[prefix + "mlp.down_proj.weight"].T
        normed = rms_norm(x[-1], weights["model.norm.weight"], config.rms_norm_eps)
        return normed @ weights.get("lm_head.weight", weights["model.embed_tokens.weight"]).T

    def greedy(self, prompt: abc.Sequence[int], num_tokens: int) -> list[int]:
        """The likeliest token, and so on."""
        token_ids = list(prompt)
        for _ in range(num_tokens):
            token_ids.append(int(self.logits(token_ids).argmax()))
        return token_ids[len(prompt) :]

    def _attention(self, prefix: str, x: Tensor, window: int | None) -> Tensor:
        config, positions = self._config, torch.arange(len(x), device=x.device)
        frequencies = torch.tensor(config.rope_frequencies(), dtype=torch.float64, device=x.device)
        q, k, v = (
            (x @ self._weights[f"{prefix}{name}_proj.weight"].T).view(len(x), -1, config.head_dim) for name in "qkv"
        )
        angles = positions[:, None] * frequencies
        q, k = (rotate(of, angles.cos(), angles.sin()) for of in (q, k))
        attended = attention(q, k, v, 0, window)
        return attended.flatten(1) @ self._weights[prefix + "o_proj.weight"].T
