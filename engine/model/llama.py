"""The Llama family (Llama, SmolLM2): token ids and a paged cache in, logits out. Mirrors Hugging Face's module tree."""

import torch
from torch import Tensor, nn

from engine.kernels import ops
from engine.model.config import ModelConfig
from engine.model.forward_batch import ForwardBatch
from engine.model.layers import DecoderLayer, Embedding, Linear, RMSNorm, Weights, prefixed


class LlamaModel(nn.Module):
    """Embedding and layers; the final norm is the caller's, because only sampled tokens need it."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        super().__init__()
        embedded = weights("embed_tokens.weight", (config.vocabulary_size, config.hidden_size))
        self.embed_tokens = Embedding(embedded)
        self.layers = nn.ModuleList(
            DecoderLayer(config, prefixed(weights, f"layers.{index}.")) for index in range(config.num_layers)
        )
        self.norm = RMSNorm(weights("norm.weight", (config.hidden_size,)), config.rms_norm_eps)
        frequencies = torch.tensor(config.rope_frequencies(), dtype=torch.float32, device=embedded.device)
        self.rope_frequencies = nn.Buffer(frequencies, persistent=False)

    def forward(self, batch: ForwardBatch, kv_caches: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream [T, E] float32 behind the last layer, and what that one adds to it.

        kv_caches [layers, B, S, 2, KH, D], written
        """
        delta: Tensor = self.embed_tokens(batch.token_ids)
        residual = torch.zeros_like(delta, dtype=torch.float32)
        rotation = ops.rotation(batch.positions, self.rope_frequencies)
        for layer, kv_cache in zip(self.layers, kv_caches.unbind(), strict=True):
            delta = layer(residual, delta, rotation, batch, kv_cache)
        return residual, delta


class LlamaForCausalLM(nn.Module):
    """The whole model. `forward` is the one door to the layer stack, so that a fused path can take its place."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        super().__init__()
        self.config = config
        self.model = LlamaModel(config, prefixed(weights, "model."))
        if config.tied_embeddings:
            self.lm_head = Linear(self.model.embed_tokens.weight)
        else:
            self.lm_head = Linear(weights("lm_head.weight", (config.vocabulary_size, config.hidden_size)))

    def forward(self, batch: ForwardBatch, kv_caches: Tensor) -> Tensor:
        """Logits [R, vocabulary] float32 of `batch.sampled_index`; the step's keys and values are in `kv_caches`."""
        streams = self.model(batch, kv_caches)
        if not batch.sampled_index.numel():
            return torch.empty((0, self.config.vocabulary_size))
        sampled = self.model.norm(*(stream.index_select(0, batch.sampled_index) for stream in streams))
        logits: Tensor = self.lm_head(sampled)
        return logits.float()
