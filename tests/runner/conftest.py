import functools
import os
from collections import abc

import gguf
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.model.default_model import find_default_model
from engine.model.gguf_file import GgufFile
from engine.model.info import LoadedModel
from engine.model.loader import load_model
from tests.runner.driver import Driver
from tests.torch_threads import one_thread, torch_threads  # noqa: F401  fixtures


@pytest.fixture(scope="session")
def default_model() -> LoadedModel:
    return load_model(None, dtype="float32", device="cpu")


@pytest.fixture(scope="session")
def reference_model() -> PreTrainedModel:
    """The default model's weights as `transformers` reads, names, permutes and dequantizes them."""
    path = find_default_model()
    metadata = GgufFile(path).metadata
    config = LlamaConfig(
        vocab_size=metadata["llama.vocab_size"],
        hidden_size=metadata["llama.embedding_length"],
        intermediate_size=metadata["llama.feed_forward_length"],
        num_hidden_layers=metadata["llama.block_count"],
        num_attention_heads=metadata["llama.attention.head_count"],
        num_key_value_heads=metadata["llama.attention.head_count_kv"],
        max_position_embeddings=metadata["llama.context_length"],
        rms_norm_eps=metadata["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": metadata["llama.rope.freq_base"]},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    with pytest.MonkeyPatch.context() as patch:
        # It is built anew for each of 400 modules, always the same: half of the time that loading takes.
        patch.setattr(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map))
        tensors = load_gguf_checkpoint(os.fspath(path), return_tensors=True, model_to_load=model)["tensors"]
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
