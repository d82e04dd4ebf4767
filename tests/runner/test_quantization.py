"""8-bit weights, from the setting to the logits."""

import pytest
import torch

from engine.errors import SettingsError
from engine.model.loader import load_model
from engine.server.backend import _quantization
from engine.settings import read_settings
from tests.model import tiny_llama

PROMPT = [(17 * index * index + 3) % tiny_llama.VOCABULARY_SIZE for index in range(60)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_llama.write_folder(tmp_path_factory.mktemp("tiny") / "m", tiny_llama.make_model())


def last_logits(model, make_driver):
    driver = make_driver(model)
    driver.add(0, PROMPT)
    driver.prefill([0], chunk_size=40)
    return torch.cat([driver.logits, *driver.decode([0], 1)])


def test_logits_of_8_bit_weights_are_near_the_exact_ones(folder, make_driver):
    """Rounding to 127 steps is wrong by 1/127/√12 of a row's largest number, on both sides of 15 products in a row."""
    exact = last_logits(load_model(folder, dtype="float32", device="cpu"), make_driver)
    quantized = last_logits(load_model(folder, dtype="float32", device="cpu", quantization="int8"), make_driver)
    assert not torch.equal(quantized, exact)
    assert (quantized[0] - exact[0]).std() < 0.1 * exact[0].std()


def test_what_is_quantized_is_told_and_is_another_model(folder):
    plain, quantized = (load_model(folder, dtype="float32", quantization=each).info for each in (None, "int8"))
    assert (plain.quantization, quantized.quantization) == (None, "int8")
    assert plain.model_hash != quantized.model_hash
    assert plain.kv_bytes_per_token == quantized.kv_bytes_per_token


def test_8_bits_are_refused_where_nothing_computes_them():
    def chosen(device, *, has_cuda):
        settings = read_settings({"listen": "127.0.0.1:0", "quantization": "int8", "device": device})
        return _quantization(settings, has_cuda=has_cuda)

    assert chosen("cpu", has_cuda=True) == chosen("auto", has_cuda=False) == "int8"
    for device in ("cuda", "auto"):
        with pytest.raises(SettingsError, match=r"^quantization int8 is computed on a CPU only"):
            chosen(device, has_cuda=True)
    assert _quantization(read_settings({"listen": "127.0.0.1:0"}), has_cuda=True) is None
