"""Small random models of every family, from a folder and from a GGUF file, against `transformers`.

The window is 24 tokens and the context that scaled rotations were made for 64: a prompt of 9 tokens decodes past the
one, a prompt of 150 in chunks of 40 begins past both.
"""

import json

import pytest
import torch
from gguf import GGMLQuantizationType

from engine.model.loader import load_model
from tests.model import quantized, tiny_llama
from tests.model.tiny_gguf import gguf_name

LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
UPPER_LAYERS = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
LOWER_LAYERS = {
    "use_sliding_window": True,
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention"],
}
MODELS = {
    "llama, linear rotation": ("llama", {"rope_parameters": LINEAR}),
    "llama, yarn rotation": ("llama", {"rope_parameters": YARN}),
    "llama, all biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral, window": ("mistral", {"sliding_window": 24}),
    "mistral, no window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2, tied, yarn rotation": ("qwen2", {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen2, window in the upper layers": ("qwen2", UPPER_LAYERS),
    "qwen3": ("qwen3", {}),
    "qwen3, biases, window in the lower layers": ("qwen3", {"attention_bias": True, **LOWER_LAYERS}),
}
IN_FOLDERS = {
    **MODELS,
    "yarn with every setting": (
        "llama",
        {
            "rope_parameters": YARN
            | {"truncate": False, "attention_factor": 1.3, "beta_fast": 8.0, "beta_slow": 2.0, "factor": 3.0}
        },
    ),
    "yarn with mscale": ("qwen3", {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.2}}),
}
PROMPTS = ([7, 200, 41, 0, 99, 123, 250, 8, 15], [(17 * index * index + 3) % 300 for index in range(150)])
NUM_DECODED = 20


def assert_same_logits(reference, path, make_driver):
    driver = make_driver(load_model(path, dtype="float32", device="cpu"))
    for row, prompt in enumerate(PROMPTS):
        driver.add(row, prompt)
        driver.prefill([row], chunk_size=40)
    logits = torch.stack(driver.decode([0, 1], NUM_DECODED))
    for row in (0, 1):
        with torch.inference_mode():
            expected = reference(torch.tensor([driver.rows[row].token_ids[:-1]])).logits[0, -NUM_DECODED:]
        assert expected.std() > 0.5
        torch.testing.assert_close(logits[:, row], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("family", "settings"), IN_FOLDERS.values(), ids=IN_FOLDERS.keys())
def test_folder_gives_the_references_logits(family, settings, tmp_path, make_driver):
    reference = tiny_llama.make_model(family, **settings)
    assert_same_logits(reference, tiny_llama.write_folder(tmp_path / "m", reference), make_driver)


@pytest.mark.parametrize(("family", "settings"), MODELS.values(), ids=MODELS.keys())
def test_gguf_file_gives_the_references_logits(family, settings, tmp_path, make_driver):
    reference = tiny_llama.make_model(family, **settings)
    assert_same_logits(reference, tiny_llama.write_gguf(tmp_path / "m.gguf", reference), make_driver)


def test_windows_are_seen_in_the_references_logits_so_that_the_tests_above_mean_something():
    windowed, plain = (tiny_llama.make_model("mistral", sliding_window=window) for window in (24, None))
    with torch.inference_mode():
        logits = [model(torch.tensor([PROMPTS[1]])).logits[0] for model in (windowed, plain)]
    torch.testing.assert_close(logits[0][:24], logits[1][:24], atol=1e-4, rtol=0)
    assert (logits[0][24:] - logits[1][24:]).abs().max() > 0.1


@pytest.mark.parametrize("scaling", [LINEAR, YARN], ids=["linear", "yarn"])
def test_older_folder_with_rope_scaling_gives_the_references_logits(scaling, tmp_path, make_driver):
    """Before version 5 of transformers, theta stood beside `rope_scaling`, whose kind was called `type`."""
    reference = tiny_llama.make_model(rope_parameters=scaling)
    folder = tiny_llama.write_folder(tmp_path / "m", reference)
    config = json.loads((folder / "config.json").read_text())
    older = config.pop("rope_parameters")
    config |= {"rope_theta": older.pop("rope_theta"), "rope_scaling": older | {"type": older.pop("rope_type")}}
    (folder / "config.json").write_text(json.dumps(config))
    assert_same_logits(reference, folder, make_driver)


@pytest.mark.parametrize("quantization", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"])
def test_quantized_gguf_file_gives_the_logits_of_its_decoded_weights(quantization, tmp_path, make_driver):
    size = quantized.BLOCK_SIZES[quantization]
    reference = tiny_llama.make_model("qwen3", hidden_size=max(64, size), intermediate_size=max(96, size))
    kinds = set()

    def encode(name, values):
        raw, kind = quantized.encode(quantization, name, values)
        kinds.add(kind)
        return raw, GGMLQuantizationType[kind]

    path = tiny_llama.write_gguf(tmp_path / "m.gguf", reference, quantize=encode)
    assert quantization in kinds
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if parameter.ndim == 2:
                raw, kind = quantized.encode(quantization, gguf_name(name), parameter.numpy())
                parameter.copy_(torch.from_numpy(quantized.decode(kind, raw)))
    assert_same_logits(reference, path, make_driver)
