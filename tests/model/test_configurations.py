"""Configurations as they are read, against the configuration classes and rotations of `transformers`."""

import json
import random
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.model.config import ModelConfig
from engine.model.hugging_face_config import config_from_hugging_face
from engine.model.parameters import parameter_shapes
from tests.model import tiny_llama

PATH = Path("config.json")
CLASSES = {"llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
SMALLEST = {
    "vocab_size": 300,
    "hidden_size": 256,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 32,
}


def read(values):
    return config_from_hugging_face(PATH, values)


@pytest.mark.parametrize("family", CLASSES)
def test_what_is_absent_is_what_it_is_to_transformers(family):
    config, expected = read(SMALLEST | {"model_type": family}), CLASSES[family](**SMALLEST)
    assert config.num_kv_heads == expected.num_key_value_heads
    assert config.head_dim == (getattr(expected, "head_dim", None) or 8)
    assert config.context_tokens == expected.max_position_embeddings
    assert config.rms_norm_eps == expected.rms_norm_eps
    assert config.rope_theta == expected.rope_parameters["rope_theta"]
    assert config.tied_embeddings == expected.tie_word_embeddings
    assert [config.window(layer) for layer in range(3)] == [
        expected.sliding_window if family == "mistral" else None
    ] * 3


def random_scaling(rng):
    factor, original = rng.uniform(1.0, 16.0), rng.choice([64, 512, 8192])
    kind = rng.choice(["linear", "llama3", "yarn"])
    scaling = {"rope_type": kind, "rope_theta": rng.choice([500.0, 1e4, 1e6]), "factor": factor}
    if kind != "linear":
        scaling["original_max_position_embeddings"] = original
    if kind == "llama3":
        scaling |= {"low_freq_factor": rng.uniform(0.5, 2), "high_freq_factor": rng.uniform(3, 8)}
    if kind == "yarn":
        optional = {
            "attention_factor": rng.uniform(0.5, 2),
            "beta_fast": rng.uniform(8, 40),
            "beta_slow": rng.uniform(0.5, 4),
            "truncate": rng.random() < 0.5,
        }
        scaling |= {name: value for name, value in optional.items() if rng.random() < 0.5}
    return scaling


@pytest.mark.parametrize("seed", range(60))
def test_rotations_are_the_references(seed):
    rng = random.Random(seed)
    settings = SMALLEST | {"head_dim": rng.choice([16, 64, 128]), "rope_parameters": random_scaling(rng)}
    expected = LlamaRotaryEmbedding(LlamaConfig(**json.loads(json.dumps(settings))))
    config = read(settings | {"model_type": "llama"})
    torch.testing.assert_close(torch.tensor(config.rope_frequencies()), expected.inv_freq, rtol=2e-6, atol=0)
    assert config.rope_scale == pytest.approx(expected.attention_scaling, rel=1e-9)


@pytest.mark.parametrize(
    ("scaling", "context_tokens"),
    [
        ({}, 2048),
        ({"rope_type": "linear", "factor": 4.0}, 2048),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}, 2048),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}, 8192),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, 2048),
        ({"rope_type": "yarn", "factor": 4.0}, 8192),
    ],
)
def test_context_is_what_the_file_says_or_what_yarn_extends_it_to(scaling, context_tokens):
    assert read(SMALLEST | {"model_type": "llama", "rope_scaling": scaling}).context_tokens == context_tokens


def test_original_context_beside_the_scaling_is_taken_before_that_within():
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    values = SMALLEST | {"model_type": "llama", "rope_scaling": scaling, "original_max_position_embeddings": 1024}
    assert read(values).context_tokens == 4096


def test_window_as_long_as_the_context_is_none():
    for length in (24, 2047, 2048, 4096):
        values = SMALLEST | {"model_type": "mistral", "sliding_window": length, "max_position_embeddings": 2048}
        assert read(values).sliding_window == (length if length < 2048 else None)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
@pytest.mark.parametrize("first", [0, 2, 3, 28])
def test_layers_with_a_window_are_the_references(family, first):
    settings = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": first}
    config, expected = read(SMALLEST | settings | {"model_type": family}), CLASSES[family](**SMALLEST, **settings)
    windows = ["full_attention" if config.window(layer) is None else "sliding_attention" for layer in range(3)]
    assert windows == expected.layer_types


def test_windows_that_are_not_switched_on_are_none():
    for family in ("qwen2", "qwen3"):
        assert read(SMALLEST | {"model_type": family, "sliding_window": 24, "max_window_layers": 0}).window(2) is None


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("mistral", {}),
        ("qwen2", {}),
        ("qwen3", {"attention_bias": True}),
    ],
)
def test_parameters_are_the_references(family, settings):
    model = tiny_llama.make_model(family, **settings)
    config = read(json.loads(model.config.to_json_string()))
    assert parameter_shapes(config) == {name: tuple(weight.shape) for name, weight in model.named_parameters()}


def test_frequencies_of_a_configuration_made_by_hand():
    config = ModelConfig(300, 64, 96, 2, 4, 2, 8, 1e-6, 10_000.0, 512, tied_embeddings=True, rope_divisors=(1, 2, 4, 8))
    assert config.rope_frequencies() == pytest.approx([1.0, 0.05, 0.0025, 0.000125])
