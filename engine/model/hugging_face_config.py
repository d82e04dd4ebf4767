"""The shape of a model from Hugging Face's `config.json`, of transformers 4 and 5.

A setting that would change the output and that the layer stack does not compute is refused here, by name, and never
ignored. An absent key means what it means to transformers' configuration class of the family.
"""

from collections import abc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.model.config import Heads, ModelConfig, Rope, Windows, checked
from engine.model.errors import ModelFileError, UnsupportedModelError
from engine.model.fields import Fields
from engine.model.rope_scaling import (
    YARN_BETA_FAST,
    YARN_BETA_SLOW,
    LinearRopeScaling,
    Llama3RopeScaling,
    YarnRopeScaling,
    yarn_scale,
)

DEFAULT_THETA = 10_000.0
DEFAULT_WINDOW = 4096
DEFAULT_MAX_WINDOW_LAYERS = 28
FULL, SLIDING = "full_attention", "sliding_attention"
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class _Family:
    """What a family's layers have beside the plain ones.

    context_tokens    where `max_position_embeddings` is absent
    has_qkv_bias      q, k and v have a bias, whatever the configuration says
    asks_for_bias     the configuration's `attention_bias` decides, for q, k, v and o
    asks_for_mlp_bias `mlp_bias` decides
    windows           reads which layers have a window
    """

    context_tokens: int
    windows: abc.Callable[[Fields, int], Windows]
    has_qkv_bias: bool = False
    asks_for_bias: bool = False
    asks_for_mlp_bias: bool = False
    has_qk_norm: bool = False
    head_dim: int | None = None
    num_kv_heads: int | None = None


def config_from_hugging_face(path: Path, values: abc.Mapping[str, Any]) -> ModelConfig:  # Any: parsed JSON
    """The configuration in `values`, the content of `path`.

    Raises ModelFileError where a value is missing or senseless, UnsupportedModelError where it is not computed.
    """
    fields = Fields(path, values)
    model_type, family = _family_of(fields)
    fields.refuse_unless("hidden_act", "silu")
    fields.refuse_if_set("quantization_config")
    heads = _heads(fields, family)
    rope = _rope(fields, family)
    asked_bias = family.asks_for_bias and fields.flag("attention_bias")
    num_layers = fields.integer("num_hidden_layers")
    windows = family.windows(fields, num_layers).within(rope.context_tokens)
    config = ModelConfig(
        architecture=model_type,
        vocabulary_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=heads.num_queries,
        num_kv_heads=heads.num_kv,
        head_dim=heads.dim,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=rope.theta,
        context_tokens=rope.context_tokens,
        tied_embeddings=fields.flag("tie_word_embeddings"),
        rope_divisors=rope.divisors(heads.dim),
        rope_scale=rope.scale,
        qkv_bias=family.has_qkv_bias or asked_bias,
        output_bias=asked_bias,
        mlp_bias=family.asks_for_mlp_bias and fields.flag("mlp_bias"),
        qk_norm=family.has_qk_norm,
        sliding_window=windows.tokens,
        sliding_layers=windows.layers,
    )
    return checked(path, config)


def _family_of(fields: Fields) -> tuple[str, _Family]:
    """The model's type, and what is known of it. Raises UnsupportedModelError if that is nothing."""
    model_type = fields.get("model_type")
    if not isinstance(model_type, str) or model_type not in _FAMILIES:
        known = ", ".join(_FAMILIES)
        raise UnsupportedModelError(fields.path, f"model_type {model_type!r} is not supported, only {known}")
    return model_type, _FAMILIES[model_type]


def _heads(fields: Fields, family: _Family) -> Heads:
    num_queries = fields.integer("num_attention_heads")
    num_kv = fields.integer("num_key_value_heads", family.num_kv_heads or num_queries)
    dim = fields.integer("head_dim", family.head_dim or fields.integer("hidden_size") // num_queries)
    return Heads(num_queries, num_kv, dim)


def _no_windows(fields: Fields, num_layers: int) -> Windows:
    return Windows()


def _windows_everywhere(fields: Fields, num_layers: int) -> Windows:
    """Mistral. Absent is the published 4,096, null is none; layers of several kinds belong to other models."""
    if fields.is_null("sliding_window"):
        return Windows()
    if fields.get("layer_types", [SLIDING] * num_layers) != [SLIDING] * num_layers:
        raise UnsupportedModelError(fields.path, f"layer_types other than {SLIDING!r} are not supported for mistral")
    return Windows(fields.integer("sliding_window", DEFAULT_WINDOW), frozenset(range(num_layers)))


def _windows_where_switched_on(fields: Fields, num_layers: int) -> Windows:
    """Qwen2 and Qwen3: the layers from `max_window_layers` on, or those that `layer_types` names."""
    if not fields.flag("use_sliding_window") or fields.is_null("sliding_window"):
        return Windows()
    tokens = fields.integer("sliding_window", DEFAULT_WINDOW)
    kinds = fields.get("layer_types")
    if kinds is None:
        first = fields.integer("max_window_layers", DEFAULT_MAX_WINDOW_LAYERS, minimum=0)
        return Windows(tokens, frozenset(range(first, num_layers)))
    if not isinstance(kinds, list) or len(kinds) != num_layers or not {*map(str, kinds)} <= {FULL, SLIDING}:
        raise ModelFileError(fields.path, f"layer_types must name {FULL!r} or {SLIDING!r} for each of the layers")
    return Windows(tokens, frozenset(layer for layer, kind in enumerate(kinds) if kind == SLIDING))


def _rope(fields: Fields, family: _Family) -> Rope:
    """Older files split what newer ones keep in `rope_parameters` into two keys."""
    given = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    if not isinstance(given, dict):
        raise ModelFileError(fields.path, f"rope parameters must be an object, not {given!r}")
    rope = Fields(fields.path, given)
    for part in (fields, rope):
        part.refuse_unless("partial_rotary_factor", 1.0)
    for layers in (FULL, SLIDING):
        rope.refuse_if_set(layers)  # parameters of their own
    theta = rope.number("rope_theta", fields.get("rope_theta", DEFAULT_THETA))
    if theta <= 1:
        raise ModelFileError(fields.path, f"rope_theta must be above 1, not {theta!r}")
    return _scaled(fields, rope, theta, fields.integer("max_position_embeddings", family.context_tokens))


def _scaled(fields: Fields, rope: Fields, theta: float, length: int) -> Rope:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise UnsupportedModelError(fields.path, f"rope type {kind!r} is not supported, only {', '.join(ROPE_TYPES)}")
    if kind == "default":
        return Rope(theta, length)
    if kind == "linear":
        return Rope(theta, length, LinearRopeScaling(rope.number("factor")))
    original = fields.integer(
        "original_max_position_embeddings", rope.integer("original_max_position_embeddings", length)
    )
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if low >= high:
            raise ModelFileError(fields.path, f"low_freq_factor {low} must be below high_freq_factor {high}")
        return Rope(theta, length, Llama3RopeScaling(rope.number("factor"), low, high, original))
    scaling = _yarn(rope, length, original)
    return Rope(theta, max(length, int(original * scaling.factor)), scaling)


def _yarn(rope: Fields, length: int, original: int) -> YarnRopeScaling:
    factor = rope.number("factor", length / original)
    scale = yarn_scale(factor)
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        scale = yarn_scale(factor, rope.number("mscale")) / yarn_scale(factor, rope.number("mscale_all_dim"))
    return YarnRopeScaling(
        factor=factor,
        original_context_tokens=original,
        scale=rope.number("attention_factor", scale),
        beta_fast=rope.number("beta_fast", YARN_BETA_FAST),
        beta_slow=rope.number("beta_slow", YARN_BETA_SLOW),
        truncate=rope.flag("truncate", default=True),
    )


_FAMILIES: abc.Mapping[str, _Family] = {
    "llama": _Family(2048, _no_windows, asks_for_bias=True, asks_for_mlp_bias=True),
    "mistral": _Family(131_072, _windows_everywhere, num_kv_heads=8),
    "qwen2": _Family(32_768, _windows_where_switched_on, has_qkv_bias=True, num_kv_heads=32),
    "qwen3": _Family(
        32_768, _windows_where_switched_on, asks_for_bias=True, has_qk_norm=True, head_dim=128, num_kv_heads=32
    ),
}
