"""Which parameters a model has, under Hugging Face's names, before any of them is read."""

from collections import abc

from engine.model.config import ModelConfig

Shape = tuple[int, ...]


def parameter_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Name -> shape of everything that the module of `config` asks for. A tied head is none of its own."""
    embedding = (config.vocabulary_size, config.hidden_size)
    in_layer = _layer_shapes(config)
    layers = {
        f"model.layers.{layer}.{name}": shape for layer in range(config.num_layers) for name, shape in in_layer.items()
    }
    head = {} if config.tied_embeddings else {"lm_head.weight": embedding}
    return {"model.embed_tokens.weight": embedding, **layers, "model.norm.weight": (config.hidden_size,), **head}


def _layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, Shape] = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
    if config.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (config.head_dim,), "self_attn.k_norm.weight": (config.head_dim,)}
    return shapes | {
        **_projection("self_attn.q_proj", query_size, hidden, has_bias=config.qkv_bias),
        **_projection("self_attn.k_proj", kv_size, hidden, has_bias=config.qkv_bias),
        **_projection("self_attn.v_proj", kv_size, hidden, has_bias=config.qkv_bias),
        **_projection("self_attn.o_proj", hidden, query_size, has_bias=config.output_bias),
        **_projection("mlp.gate_proj", inner, hidden, has_bias=config.mlp_bias),
        **_projection("mlp.up_proj", inner, hidden, has_bias=config.mlp_bias),
        **_projection("mlp.down_proj", hidden, inner, has_bias=config.mlp_bias),
    }


def _projection(name: str, rows: int, columns: int, *, has_bias: bool) -> abc.Mapping[str, Shape]:
    weight: dict[str, Shape] = {f"{name}.weight": (rows, columns)}
    return weight | {f"{name}.bias": (rows,)} if has_bias else weight
