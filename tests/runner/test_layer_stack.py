"""The layers in one call, against the same layers one operation after the other."""

import pytest
import torch

from engine.model.loader import load_model
from tests.model import tiny_llama

PROMPTS = (1, 7, 40, 90)
VARIANTS = {
    "plain": {},
    "one key-value head": {"num_key_value_heads": 1},
    "as many key-value heads as heads": {"num_key_value_heads": 6},
}


def prompt(length):
    return [(31 * index * index + length) % tiny_llama.VOCABULARY_SIZE for index in range(length)]


def logits_of(driver):
    """Of each prompt's last token: computed token by token, in small and in large chunks, and side by side."""
    logits = []
    for row, (length, chunk_size) in enumerate((length, size) for length in PROMPTS for size in (1, 5, 24)):
        driver.add(row, prompt(length))
        driver.prefill([row], chunk_size)
        logits.append(driver.logits)
    driver.add(14, prompt(30))
    driver.step({14: 30, **dict.fromkeys(range(12), 1)})
    return torch.cat([*logits, driver.logits[:1]])


CASES = [("plain", "bfloat16", 0.1), *((variant, "float32", 1e-4) for variant in VARIANTS)]


@pytest.mark.parametrize(("variant", "dtype", "tolerance"), CASES)
def test_layers_in_one_call_give_what_they_give_one_by_one(variant, dtype, tolerance, make_driver, tmp_path):
    folder = tiny_llama.write_folder(tmp_path / "m", tiny_llama.make_model(**VARIANTS[variant]))
    fused, plain = (load_model(folder, dtype=dtype, device="cpu") for _ in range(2))
    assert fused.module.model._stack is not None
    plain.module.model._stack = None
    torch.testing.assert_close(logits_of(make_driver(fused)), logits_of(make_driver(plain)), atol=tolerance, rtol=0)
