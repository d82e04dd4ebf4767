"""Llama and the families that share its layers (SmolLM2, Mistral, Qwen2, Qwen3): token ids and a paged cache in, logits
out. Mirrors Hugging Face's module tree."""

import torch
from torch import Tensor, nn

from engine.kernels import ops
from engine.model.config import ModelConfig
from engine.model.forward_batch import ForwardBatch
from engine.model.layers import DecoderLayer, Embedding, Likeliest, Linear, RMSNorm, Weights, prefixed


class LlamaModel(nn.Module):
    """Embedding and layers; the final norm is the caller's, because only sampled tokens need it."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        super().__init__()
        embedded = weights("embed_tokens.weight", (config.vocabulary_size, config.hidden_size))
        self.embed_tokens = Embedding(embedded)
        self.layers = nn.ModuleList(
            DecoderLayer(config, prefixed(weights, f"layers.{index}."), config.window(index))
            for index in range(config.num_layers)
        )
        self.norm = RMSNorm(weights("norm.weight", (config.hidden_size,)), config.rms_norm_eps)
        self._rope_scale = config.rope_scale
        frequencies = torch.tensor(config.rope_frequencies(), dtype=torch.float32, device=embedded.device)
        self.rope_frequencies = nn.Buffer(frequencies, persistent=False)
        self._heads = ops.HeadShape(config.num_heads, config.num_kv_heads, config.head_dim)
        self._eps = config.rms_norm_eps
        self._stack: ops.LayerStack | None = None

    def fuse(self) -> None:
        """The layers, whose weights are packed, are computed in one call where the device has one for them."""
        layers = [layer.stack_weights() for layer in self.layers if isinstance(layer, DecoderLayer)]
        fitting = [layer for layer in layers if layer is not None]
        if len(fitting) == len(layers):
            self._stack = ops.LayerStack(fitting, self._heads, self._eps)

    def forward(self, batch: ForwardBatch, kv_caches: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream [T, E] float32 behind the last layer, and what that one adds to it.

        kv_caches [layers, B, S, 2, KH, D], written
        """
        delta: Tensor = self.embed_tokens(batch.token_ids)
        rotation = ops.rotation(batch.positions, self.rope_frequencies, self._rope_scale)
        if self._stack is not None and isinstance(batch.attention, ops.PagedChunks):
            residual = delta.to(torch.float32, copy=True)
            self._stack.forward(residual, rotation, kv_caches, batch.attention)
            return residual, torch.zeros_like(delta)
        residual = torch.zeros_like(delta, dtype=torch.float32)
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
            self.lm_head = Linear(self.model.embed_tokens.weight, dtype=torch.float32)
        else:
            size = (config.vocabulary_size, config.hidden_size)
            self.lm_head = Linear(weights("lm_head.weight", size), dtype=torch.float32)
        self.likeliest_head = Likeliest(self.lm_head)

    def pack(self, quantization: str | None = None) -> None:
        """Weights are in the form that the device reads fastest, and quantized if asked for; called once, before the
        first step. Raises ValueError where the device does not compute that."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.pack(quantization)
        self.model.fuse()

    def forward(self, batch: ForwardBatch, kv_caches: Tensor) -> Tensor:
        """Logits [R, vocabulary] float32 of `batch.sampled_index`; the step's keys and values are in `kv_caches`."""
        return self.logits(self.model(batch, kv_caches), batch.sampled_index)

    def logits(self, streams: tuple[Tensor, Tensor], index: Tensor) -> Tensor:
        """Logits [R, vocabulary] float32 of the tokens at `index` [R] of what `model` returned, which stays as it
        is."""
        if not index.numel():
            return torch.empty((0, self.config.vocabulary_size))
        logits: Tensor = self.lm_head(self._normed(streams, index))
        return logits

    def likeliest(self, batch: ForwardBatch, kv_caches: Tensor) -> tuple[Tensor, Tensor]:
        """As `forward`, but of the logits only the first of the largest of each row [R] int64, R > 0, and whether all
        of the row are finite [R] bool."""
        found: tuple[Tensor, Tensor] = self.likeliest_head(
            self._normed(self.model(batch, kv_caches), batch.sampled_index)
        )
        return found

    def _normed(self, streams: tuple[Tensor, Tensor], index: Tensor) -> Tensor:
        normed: Tensor = self.model.norm(*(stream.index_select(0, index) for stream in streams))
        return normed
