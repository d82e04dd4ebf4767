"""Small random Llama models, from a folder and from a GGUF file, against `transformers`."""

import json

import pytest
import torch

from engine.model.loader import load_model
from tests.model import tiny_llama

PROMPT = [(17 * index * index + 3) % tiny_llama.VOCABULARY_SIZE for index in range(150)]
VARIANTS = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "scaled rotation": {"rope_parameters": tiny_llama.LLAMA3_ROPE},
    "one key-value head": {"num_key_value_heads": 1},
    "as many key-value heads as heads": {"num_key_value_heads": 6},
    "other theta and eps": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "rms_norm_eps": 0.01},
}


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def reference(request):
    return tiny_llama.make_model(**request.param)


def assert_same_logits(reference, path, make_driver):
    driver = make_driver(load_model(path, dtype="float32", device="cpu"))
    driver.add(0, PROMPT)
    driver.prefill([0], chunk_size=40)
    logits = torch.cat([driver.logits, *driver.decode([0], 3)])
    with torch.inference_mode():
        expected = reference(torch.tensor([driver.rows[0].token_ids[:-1]])).logits[0, len(PROMPT) - 1 :]
    assert expected.std() > 0.5
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_folder_gives_the_references_logits(reference, tmp_path, make_driver):
    assert_same_logits(reference, tiny_llama.write_folder(tmp_path / "m", reference), make_driver)


def test_gguf_file_gives_the_references_logits(reference, tmp_path, make_driver):
    assert_same_logits(reference, tiny_llama.write_gguf(tmp_path / "m.gguf", reference), make_driver)


def test_folder_in_shards_gives_the_references_logits(tmp_path, make_driver):
    reference = tiny_llama.make_model()
    folder = tiny_llama.write_folder(tmp_path / "m", reference, max_shard_size="100KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    assert_same_logits(reference, folder, make_driver)


def test_older_folder_with_rope_scaling_gives_the_references_logits(tmp_path, make_driver):
    """Before version 5 of transformers, theta stood beside `rope_scaling`."""
    reference = tiny_llama.make_model(rope_parameters=tiny_llama.LLAMA3_ROPE)
    folder = tiny_llama.write_folder(tmp_path / "m", reference)
    config = json.loads((folder / "config.json").read_text())
    scaling = config.pop("rope_parameters")
    config |= {"rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}
    (folder / "config.json").write_text(json.dumps(config))
    assert_same_logits(reference, folder, make_driver)
