"""Weights that cannot be run are refused at load, by file and tensor, whatever the format."""

import json
import struct

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.model import weight_reader
from engine.model.errors import ModelFileError, ModelMemoryError, UnsupportedModelError
from engine.model.gguf_file import GgufFile
from engine.model.loader import load_model
from engine.model.safetensors_weights import SafetensorsWeights
from tests.model import tiny_llama

PLACE = "model.layers.1.mlp.up_proj.weight", "blk.1.ffn_up.weight"


@pytest.fixture(scope="module")
def model():
    return tiny_llama.make_model("qwen3")


@pytest.fixture
def folder(tmp_path, model):
    return tiny_llama.write_folder(tmp_path / "m", model)


@pytest.fixture
def shards(tmp_path, model):
    return tiny_llama.write_folder(tmp_path / "m", model, max_shard_size="100KB")


def load(path):
    return load_model(path, dtype="float32", device="cpu")


def change(folder, **tensors):
    """Replace tensors of a folder, by names with "__" for dots; None takes one out."""
    path = folder / "model.safetensors"
    changed = {**load_file(path), **{name.replace("__", "."): tensor for name, tensor in tensors.items()}}
    save_file({name: tensor for name, tensor in changed.items() if tensor is not None}, path)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_in_a_folder(folder, value):
    weight = load_file(folder / "model.safetensors")[PLACE[0]]
    weight[3, 5] = value
    change(folder, **{PLACE[0]: weight})
    with pytest.raises(ModelFileError, match=rf"model\.safetensors: tensor '{PLACE[0]}' holds values that are not fin"):
        load(folder)


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_what_is_not_finite_in_a_gguf_file(tmp_path, value):
    broken = tiny_llama.make_model("qwen3")
    with torch.no_grad():
        broken.model.layers[1].mlp.up_proj.weight[3, 5] = value
    path = tiny_llama.write_gguf(tmp_path / "m.gguf", broken)
    with pytest.raises(ModelFileError, match=rf"m\.gguf: tensor '{PLACE[1]}' holds values that are not finite"):
        load(path)


def test_what_the_dtype_to_run_in_cannot_hold(folder):
    change(folder, model__norm__weight=torch.full((72,), 3.4e38))
    load(folder)
    with pytest.raises(ModelFileError, match=r"tensor 'model\.norm\.weight' .* not finite in bfloat16"):
        load_model(folder, dtype="bfloat16", device="cpu")


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_folder_whose_file_is_cut_off(folder, part):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    header_bytes = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + header_bytes])
    kept = int(part * (len(content) - 8 - header_bytes))
    path.write_bytes(content[: 8 + header_bytes + kept])
    ends = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
    cut = min((begin, name) for name, (begin, end) in ends.items() if end > kept)[1]
    with pytest.raises(ModelFileError, match=rf"model\.safetensors: is cut off: tensor '{cut}'"):
        load(folder)


@pytest.mark.parametrize("length", [0, 4, 8, 30])
def test_folder_whose_file_is_cut_off_in_its_header(folder, length):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ModelFileError, match=r"model\.safetensors: cannot be read"):
        load(folder)


def test_gguf_file_that_is_cut_off(tmp_path, model):
    path = tiny_llama.write_gguf(tmp_path / "m.gguf", model)
    cut = GgufFile(path).tensors[PLACE[1]]
    path.write_bytes(path.read_bytes()[: cut.offset + cut.num_bytes - 1])
    with pytest.raises(ModelFileError, match=rf"m\.gguf: is cut off: tensor '{PLACE[1]}' ends behind"):
        load(path)


def test_tensor_missing_from_a_folder(folder):
    change(folder, **{PLACE[0]: None})
    with pytest.raises(ModelFileError, match=rf"m: its weights have no tensor '{PLACE[0]}'"):
        load(folder)


def test_tensor_missing_from_a_gguf_file(tmp_path, model):
    path = tiny_llama.write_gguf(tmp_path / "m.gguf", model, without=[PLACE[1]])
    with pytest.raises(ModelFileError, match=rf"m\.gguf: its weights have no tensor '{PLACE[1]}'"):
        load(path)


def test_bias_missing_from_a_layer(tmp_path):
    path = tiny_llama.write_gguf(tmp_path / "m.gguf", tiny_llama.make_model("qwen2"), without=["blk.1.attn_k.bias"])
    with pytest.raises(ModelFileError, match=r"m\.gguf: its weights have no tensor 'blk\.1\.attn_k\.bias'"):
        load(path)


def test_wrong_shape_in_a_folder(folder):
    change(folder, **{PLACE[0]: torch.zeros(72, 96)})
    with pytest.raises(ModelFileError, match=rf"'{PLACE[0]}' has shape \(72, 96\), config\.json asks for \(96, 72\)"):
        load(folder)


def test_wrong_shape_in_a_gguf_file(tmp_path, model):
    wrong = {PLACE[1]: np.zeros((72, 96), np.float32)}
    path = tiny_llama.write_gguf(tmp_path / "m.gguf", model, without=[], extra=wrong)
    with pytest.raises(ModelFileError, match=rf"'{PLACE[1]}' has shape \(72, 96\), its metadata asks for \(96, 72\)"):
        load(path)


def test_tensor_that_has_no_place_in_a_folder(folder):
    change(folder, model__layers__0__mlp__experts__0__weight=torch.zeros(1))
    with pytest.raises(
        UnsupportedModelError, match=r"safetensors: tensor '.*experts\.0\.weight' has no place .* qwen3"
    ):
        load(folder)


@pytest.mark.parametrize("name", ["blk.0.ssm_in.weight", "blk.0.attn_q.bias_2", "cls.output.weight"])
def test_tensor_of_an_unknown_kind_in_a_gguf_file(tmp_path, model, name):
    path = tiny_llama.write_gguf(tmp_path / "m.gguf", model, extra={name: np.zeros(4, np.float32)})
    with pytest.raises(UnsupportedModelError, match=rf"m\.gguf: tensor '{name}' is of a kind that is not supported"):
        load(path)


def test_tensor_that_has_no_place_in_a_gguf_file(tmp_path, model):
    extra = {"blk.2.attn_norm.weight": np.zeros(72, np.float32)}
    path = tiny_llama.write_gguf(tmp_path / "m.gguf", model, extra=extra)
    with pytest.raises(UnsupportedModelError, match=r"m\.gguf: tensor 'blk\.2\.attn_norm\.weight' has no place"):
        load(path)


def test_frequencies_that_older_versions_stored_are_no_tensor_of_the_model(folder):
    change(folder, model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(8))
    load(folder)


def test_shard_that_is_missing(shards):
    [first, *_] = sorted(shards.glob("model-*.safetensors"))
    first.unlink()
    with pytest.raises(ModelFileError, match=rf"index\.json: keeps tensor '\S+' in {first.name}, which is missing"):
        load(shards)


def edit_index(shards, name, file):
    path = shards / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"][name] = file
    path.write_text(json.dumps(index))


def test_index_that_names_an_absent_file(shards):
    edit_index(shards, PLACE[0], "gone.safetensors")
    with pytest.raises(ModelFileError, match=rf"index\.json: keeps tensor '{PLACE[0]}' in gone\.safetensors"):
        load(shards)


def test_index_that_names_a_file_without_the_tensor(shards):
    index = json.loads((shards / "model.safetensors.index.json").read_text())["weight_map"]
    other = next(file for file in index.values() if file != index[PLACE[0]])
    edit_index(shards, PLACE[0], other)
    with pytest.raises(ModelFileError, match=rf"{other}: has no tensor '{PLACE[0]}', although"):
        load(shards)


def test_index_that_leaves_the_folder_is_not_followed(shards, tmp_path):
    save_file({PLACE[0]: torch.zeros(96, 72)}, tmp_path / "outside.safetensors")
    edit_index(shards, PLACE[0], "../outside.safetensors")
    with pytest.raises(ModelFileError, match=r"in outside\.safetensors, which is missing"):
        load(shards)


def test_numbers_that_are_no_plain_floats(folder):
    change(folder, **{PLACE[0]: torch.zeros(96, 72, dtype=torch.int8)})
    with pytest.raises(UnsupportedModelError, match=rf"tensor '{PLACE[0]}' of type torch\.int8 is not supported"):
        load(folder)


def test_folder_of_another_form_names_what_is_wanted(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelFileError, match=r"has neither model\.safetensors nor model\.safetensors\.index\.json"):
        load(folder)


def test_weights_that_do_not_fit_are_told_before_any_is_read(folder, model, monkeypatch):
    monkeypatch.setattr(weight_reader, "free_memory", lambda device: 100_000)
    with pytest.raises(ModelMemoryError, match=r"the weights of m do not fit on cpu: 0\.00 GiB are needed") as refusal:
        load(folder)
    assert refusal.value.num_bytes == 4 * sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        MemoryError(),
    ],
)
def test_allocation_that_fails_names_the_tensor(folder, monkeypatch, error):
    class Crowded:
        def to(self, *_):
            raise error

    weight = SafetensorsWeights.weight
    monkeypatch.setattr(
        SafetensorsWeights, "weight", lambda self, name: Crowded() if name == PLACE[0] else weight(self, name)
    )
    with pytest.raises(ModelMemoryError, match=rf"tensor '{PLACE[0]}' and those after it do not fit on cpu"):
        load(folder)


def test_error_that_is_not_about_memory_is_not_taken_for_one(folder, monkeypatch):
    class Odd:
        def to(self, *_):
            raise RuntimeError("a bug")

    monkeypatch.setattr(SafetensorsWeights, "weight", lambda self, name: Odd())
    with pytest.raises(RuntimeError, match="a bug"):
        load(folder)
