"""The shape of a Llama model, read from Hugging Face's `config.json` or from GGUF metadata.

A setting that would change the output and that the layer stack does not compute is refused here, by name, and never
ignored. Sources: transformers `LlamaConfig`; the GGUF specification, keys `llama.*`.
"""

import math
from collections import abc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.model.errors import ModelFileError, UnsupportedModelError

ARCHITECTURE = "llama"


@dataclass(frozen=True, slots=True)
class Llama3RopeScaling:
    """Stretches the slow rotary frequencies. Source: Llama 3.1, transformers `rope_type` "llama3"."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_tokens: int

    def divisor(self, frequency: float) -> float:
        """What `frequency`, in radians per token, is divided by."""
        num_turns = self.original_context_tokens * frequency / (2 * math.pi)
        if num_turns < self.low_freq_factor:
            return self.factor
        if num_turns > self.high_freq_factor:
            return 1.0
        smooth = (num_turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return 1.0 / ((1 - smooth) / self.factor + smooth)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """`context_tokens` is the longest sequence that positions were trained for; `rope_divisors` slow the rotations."""

    vocabulary_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    context_tokens: int
    tied_embeddings: bool
    rope_divisors: tuple[float, ...] | None = None

    @property
    def num_queries_per_kv_head(self) -> int:
        return self.num_heads // self.num_kv_heads

    def rope_frequencies(self) -> list[float]:
        """Radians per token of each rotated pair, `head_dim` / 2 of them."""
        plain = _plain_frequencies(self.rope_theta, self.head_dim)
        divisors = self.rope_divisors or (1.0,) * len(plain)
        return [frequency / divisor for frequency, divisor in zip(plain, divisors, strict=True)]


def _plain_frequencies(theta: float, head_dim: int) -> list[float]:
    return [theta ** (-2 * pair / head_dim) for pair in range(head_dim // 2)]


@dataclass(frozen=True, slots=True)
class GgufShapes:
    """What a GGUF file says by its tensors instead of its metadata."""

    vocabulary_size: int
    tied_embeddings: bool
    rope_divisors: tuple[float, ...] | None


class _Fields:
    """Typed access to a mapping of unknown content; every complaint names `path` and the key."""

    def __init__(self, path: Path, values: abc.Mapping[str, Any]) -> None:  # Any: JSON or GGUF values, checked here
        self._path = path
        self._values = values

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._values.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelFileError(self._path, f"{key} must be a positive integer, not {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._values.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise ModelFileError(self._path, f"{key} must be a positive number, not {value!r}")
        return float(value)

    def refuse_unless(self, key: str, supported: object) -> None:
        """Raise UnsupportedModelError if `key` is there with any value but `supported`."""
        value = self._values.get(key)
        if value is not None and value != supported:
            raise UnsupportedModelError(self._path, f"{key} {value!r} is not supported, only {supported!r}")

    def refuse_if_set(self, key: str) -> None:
        """Raise UnsupportedModelError if `key` is there and not false, null or zero."""
        if self._values.get(key):
            raise UnsupportedModelError(self._path, f"{key} is not supported")


def config_from_hugging_face(path: Path, values: abc.Mapping[str, Any]) -> ModelConfig:  # Any: parsed JSON
    """The configuration in `values`, the content of `path`.

    Raises ModelFileError where a value is missing or senseless, UnsupportedModelError where it is not computed.
    """
    fields = _Fields(path, values)
    if values.get("model_type") != ARCHITECTURE:
        raise UnsupportedModelError(path, f"model_type {values.get('model_type')!r} is not supported, only llama")
    fields.refuse_unless("hidden_act", "silu")
    for feature in ("attention_bias", "mlp_bias", "quantization_config"):
        fields.refuse_if_set(feature)
    num_heads = fields.integer("num_attention_heads")
    hidden_size = fields.integer("hidden_size")
    head_dim = fields.integer("head_dim", hidden_size // num_heads)
    theta, divisors = _hugging_face_rope(path, values, head_dim)
    config = ModelConfig(
        vocabulary_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=head_dim,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        context_tokens=fields.integer("max_position_embeddings", 2048),
        tied_embeddings=bool(values.get("tie_word_embeddings", False)),
        rope_divisors=divisors,
    )
    return _checked(path, config)


def _hugging_face_rope(
    path: Path,
    values: abc.Mapping[str, Any],  # Any: parsed JSON
    head_dim: int,
) -> tuple[float, tuple[float, ...] | None]:
    """Theta and divisors. Older files split what newer ones keep in `rope_parameters` into two keys."""
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ModelFileError(path, f"rope parameters must be an object, not {rope!r}")
    fields = _Fields(path, rope)
    theta = fields.number("rope_theta", values.get("rope_theta", 10_000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise UnsupportedModelError(path, f"rope type {kind!r} is not supported, only default and llama3")
    scaling = Llama3RopeScaling(
        factor=fields.number("factor"),
        low_freq_factor=fields.number("low_freq_factor"),
        high_freq_factor=fields.number("high_freq_factor"),
        original_context_tokens=fields.integer("original_max_position_embeddings"),
    )
    return theta, tuple(scaling.divisor(frequency) for frequency in _plain_frequencies(theta, head_dim))


def config_from_gguf(
    path: Path,
    metadata: abc.Mapping[str, Any],  # Any: GGUF values of many types
    tensors: GgufShapes,
) -> ModelConfig:
    """The configuration in the `metadata` of the GGUF file `path`. Raises as `config_from_hugging_face`."""
    architecture = metadata.get("general.architecture")
    if architecture != ARCHITECTURE:
        raise UnsupportedModelError(path, f"architecture {architecture!r} is not supported, only llama")
    fields = _Fields(path, metadata)
    fields.refuse_if_set("llama.expert_count")
    fields.refuse_unless("llama.rope.scaling.type", "none")
    hidden_size = fields.integer("llama.embedding_length")
    num_heads = fields.integer("llama.attention.head_count")
    head_dim = fields.integer("llama.attention.key_length", hidden_size // num_heads)
    fields.refuse_unless("llama.attention.value_length", head_dim)
    fields.refuse_unless("llama.rope.dimension_count", head_dim)
    config = ModelConfig(
        vocabulary_size=tensors.vocabulary_size,
        hidden_size=hidden_size,
        intermediate_size=fields.integer("llama.feed_forward_length"),
        num_layers=fields.integer("llama.block_count"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("llama.attention.head_count_kv", num_heads),
        head_dim=head_dim,
        rms_norm_eps=fields.number("llama.attention.layer_norm_rms_epsilon"),
        rope_theta=fields.number("llama.rope.freq_base", 10_000.0),
        context_tokens=fields.integer("llama.context_length"),
        tied_embeddings=tensors.tied_embeddings,
        rope_divisors=tensors.rope_divisors,
    )
    return _checked(path, config)


def _checked(path: Path, config: ModelConfig) -> ModelConfig:
    if config.num_heads % config.num_kv_heads:
        raise ModelFileError(path, f"{config.num_heads} heads cannot share {config.num_kv_heads} key-value heads")
    if config.head_dim % 2:
        raise ModelFileError(path, f"head dimension {config.head_dim} is odd, so it cannot be rotated in pairs")
    if config.rope_divisors is not None and len(config.rope_divisors) != config.head_dim // 2:
        raise ModelFileError(
            path, f"{len(config.rope_divisors)} rope factors do not fit head dimension {config.head_dim}"
        )
    return config
