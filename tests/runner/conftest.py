import os
from collections import abc

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.model.default_model import find_default_model
from engine.model.info import LoadedModel
from engine.model.loader import load_model
from tests.runner.driver import Driver


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> abc.Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def default_model(one_thread: None) -> LoadedModel:
    return load_model(None, dtype="float32", device="cpu")


@pytest.fixture(scope="session")
def reference_model(one_thread: None) -> PreTrainedModel:
    """The default model as `transformers` reads, names, permutes and dequantizes it."""
    path = os.fspath(find_default_model())
    parsed = load_gguf_checkpoint(path)["config"]
    config = LlamaConfig(**{key: value for key, value in parsed.items() if key != "model_type"})
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    model = model.to_empty(device="cpu")
    model.model.rotary_emb = LlamaRotaryEmbedding(config)  # its frequencies are no parameter, so nothing loads them
    report = model.load_state_dict(tensors, strict=False)
    assert report.missing_keys == ["lm_head.weight"]  # tied
    assert not report.unexpected_keys
    model.tie_weights()
    return model.eval()


@pytest.fixture
def make_driver() -> abc.Iterator[abc.Callable[..., Driver]]:
    """`Driver`, closed after the test."""
    drivers = []

    def make(model: LoadedModel, **sizes: int) -> Driver:
        drivers.append(Driver(model, **sizes))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.close()
