"""The shape of a model. Every family served is one layer with parts that are there or not: biases, norms, windows."""

from dataclasses import dataclass
from pathlib import Path

from engine.model.errors import ModelFileError
from engine.model.rope_scaling import RopeScaling, plain_frequencies


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """context_tokens   the longest sequence that positions are good for, scaled rotations included
    rope_divisors    what each pair's frequency is divided by
    rope_scale       what cosine and sine are multiplied by
    architecture     Hugging Face's `model_type`
    qkv_bias         q, k and v add a bias; `output_bias`: so does o; `mlp_bias`: so do gate, up and down
    qk_norm          each head of q and k is normed before it is rotated
    sliding_window   how many tokens, its own included, a token sees in the layers `sliding_layers`
    """

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
    rope_scale: float = 1.0
    architecture: str = "llama"
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    sliding_layers: frozenset[int] = frozenset()

    @property
    def num_queries_per_kv_head(self) -> int:
        return self.num_heads // self.num_kv_heads

    def window(self, layer: int) -> int | None:
        """How many tokens a token of `layer` sees, its own included; None: every one up to its own."""
        return self.sliding_window if layer in self.sliding_layers else None

    def rope_frequencies(self) -> list[float]:
        """Radians per token of each rotated pair, `head_dim` / 2 of them."""
        plain = plain_frequencies(self.rope_theta, self.head_dim)
        divisors = self.rope_divisors or (1.0,) * len(plain)
        return [frequency / divisor for frequency, divisor in zip(plain, divisors, strict=True)]


@dataclass(frozen=True, slots=True)
class Heads:
    """Those of queries, those of keys and values, and the numbers that each has."""

    num_queries: int
    num_kv: int
    dim: int


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotations as a file asks for them; `context_tokens` is what it says of the length, which a scaling may extend."""

    theta: float
    context_tokens: int
    scaling: RopeScaling | None = None

    def divisors(self, head_dim: int) -> tuple[float, ...] | None:
        return None if self.scaling is None else self.scaling.divisors(self.theta, head_dim)

    @property
    def scale(self) -> float:
        return 1.0 if self.scaling is None else self.scaling.scale


@dataclass(frozen=True, slots=True)
class Windows:
    """`tokens` that are seen in `layers`, and everything in the others; None: everything in all of them."""

    tokens: int | None = None
    layers: frozenset[int] = frozenset()

    def within(self, context_tokens: int) -> "Windows":
        """The same, and none where no sequence is longer than the window."""
        return self if self.layers and self.tokens is not None and self.tokens < context_tokens else Windows()


def checked(path: Path, config: ModelConfig) -> ModelConfig:
    """`config` as read from `path`. Raises ModelFileError if its numbers contradict each other."""
    if config.num_heads % config.num_kv_heads:
        raise ModelFileError(path, f"{config.num_heads} heads cannot share {config.num_kv_heads} key-value heads")
    if config.head_dim % 2:
        raise ModelFileError(path, f"head dimension {config.head_dim} is odd, so it cannot be rotated in pairs")
    if config.rope_divisors is not None and len(config.rope_divisors) != config.head_dim // 2:
        raise ModelFileError(
            path, f"{len(config.rope_divisors)} rope factors do not fit head dimension {config.head_dim}"
        )
    return config
