"""The shape of a model from a GGUF file: its metadata, and which tensors there are.

Source: the GGUF specification and llama.cpp's reading of it. Its architecture `llama` is that of Mistral's files, too.
What would change the output and is not computed is refused by name.
"""

import math

from engine.model.config import Heads, ModelConfig, Rope, Windows, checked
from engine.model.errors import ModelFileError, UnsupportedModelError
from engine.model.fields import Fields
from engine.model.gguf_file import GgufFile
from engine.model.rope_scaling import (
    YARN_BETA_FAST,
    YARN_BETA_SLOW,
    LinearRopeScaling,
    YarnRopeScaling,
    yarn_scale,
)

ARCHITECTURES = ("llama", "qwen2", "qwen3")
EMBEDDING, HEAD, ROPE_DIVISORS = "token_embd.weight", "output.weight", "rope_freqs.weight"
DEFAULT_THETA = 10_000.0


def config_from_gguf(file: GgufFile) -> ModelConfig:
    """Raises ModelFileError where a value is missing or senseless, UnsupportedModelError where it is not computed."""
    architecture = _architecture_of(file)
    fields = Fields(file.path, file.metadata, f"{architecture}.")
    fields.refuse_if_set("expert_count")
    heads = _heads(fields)
    rope = _rope(fields)
    num_layers = fields.integer("block_count")
    windows = _windows(fields, num_layers).within(rope.context_tokens)
    config = ModelConfig(
        architecture=architecture,
        vocabulary_size=file.tensors[EMBEDDING].shape[0],
        hidden_size=fields.integer("embedding_length"),
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=num_layers,
        num_heads=heads.num_queries,
        num_kv_heads=heads.num_kv,
        head_dim=heads.dim,
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope_theta=rope.theta,
        context_tokens=rope.context_tokens,
        tied_embeddings=HEAD not in file.tensors,
        rope_divisors=_divisors(file, rope, heads.dim),
        rope_scale=rope.scale,
        qkv_bias=architecture == "qwen2" or "blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        qk_norm=architecture == "qwen3",
        sliding_window=windows.tokens,
        sliding_layers=windows.layers,
    )
    return checked(file.path, config)


def _architecture_of(file: GgufFile) -> str:
    """Raises UnsupportedModelError where it is not computed, ModelFileError where the file holds no language model."""
    architecture = file.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedModelError(file.path, f"architecture {architecture!r} is not supported, only {known}")
    if EMBEDDING not in file.tensors:
        raise ModelFileError(file.path, f"has no tensor {EMBEDDING!r}, so it is not a language model")
    return str(architecture)


def _heads(fields: Fields) -> Heads:
    num_queries = fields.integer("attention.head_count")
    dim = fields.integer("attention.key_length", fields.integer("embedding_length") // num_queries)
    fields.refuse_unless("attention.value_length", dim)
    fields.refuse_unless("rope.dimension_count", dim)
    return Heads(num_queries, fields.integer("attention.head_count_kv", num_queries), dim)


def _rope(fields: Fields) -> Rope:
    theta, length = fields.number("rope.freq_base", DEFAULT_THETA), fields.integer("context_length")
    if theta <= 1:
        raise ModelFileError(fields.path, f"{fields.prefix}rope.freq_base must be above 1, not {theta!r}")
    factor = fields.get("rope.scaling.factor") or fields.get("rope.scale_linear")
    # As llama.cpp reads it: a factor alone is a linear one.
    kind = fields.get("rope.scaling.type", "linear" if factor else "none")
    if kind == "yarn":
        scaling = _yarn(fields, length)
        return Rope(theta, max(length, int(scaling.original_context_tokens * scaling.factor)), scaling)
    fields.refuse_unless("rope.scaling.type", "none", "linear", "yarn")
    fields.refuse_unless("rope.scaling.attn_factor", 1.0)
    if kind == "none" or not factor:
        return Rope(theta, length)
    key = "rope.scaling.factor" if fields.get("rope.scaling.factor") else "rope.scale_linear"
    return Rope(theta, length, LinearRopeScaling(fields.number(key)))


def _yarn(fields: Fields, length: int) -> YarnRopeScaling:
    """`yarn_attn_factor` is refused: the converter writes the whole scale there, and llama.cpp reads a part of it."""
    for key in ("rope.scaling.yarn_attn_factor", "rope.scaling.yarn_log_multiplier"):
        fields.refuse_if_set(key)
    fields.refuse_unless("rope.scaling.yarn_ext_factor", 1.0, -1.0)
    factor = fields.number("rope.scaling.factor")
    return YarnRopeScaling(
        factor=factor,
        original_context_tokens=fields.integer("rope.scaling.original_context_length", length),
        scale=yarn_scale(factor) * fields.number("rope.scaling.attn_factor", 1.0),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", YARN_BETA_FAST),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", YARN_BETA_SLOW),
    )


def _windows(fields: Fields, num_layers: int) -> Windows:
    if not fields.get("attention.sliding_window"):
        return Windows()
    tokens = fields.integer("attention.sliding_window")
    pattern = fields.get("attention.sliding_window_pattern", [True] * num_layers)
    if not isinstance(pattern, list) or len(pattern) != num_layers:
        problem = f"{fields.prefix}attention.sliding_window_pattern must say for each layer whether it has a window"
        raise UnsupportedModelError(fields.path, problem)
    return Windows(tokens, frozenset(layer for layer, has_window in enumerate(pattern) if has_window))


def _divisors(file: GgufFile, rope: Rope, head_dim: int) -> tuple[float, ...] | None:
    """Those of the scaling, times those that the converter computed for Llama 3's."""
    divisors = rope.divisors(head_dim)
    if ROPE_DIVISORS not in file.tensors:
        return divisors
    computed = tuple(file.tensor(ROPE_DIVISORS).ravel().tolist())
    if not all(math.isfinite(divisor) and divisor > 0 for divisor in computed):
        raise ModelFileError(file.path, f"tensor {ROPE_DIVISORS!r} must hold positive numbers")
    if divisors is None or len(computed) != len(divisors):  # a wrong number of them is refused with the rest
        return computed
    return tuple(one * other for one, other in zip(computed, divisors, strict=True))
