"""How the attention kernels are cut into programs, and how the choice is kept."""

import json

import pytest
import torch

from engine.kernels.triton.launches import (
    AttentionShape,
    Launch,
    choose_num_splits,
    default_launches,
    next_power_of_2,
    queries_per_tile,
)

from tests.kernels.interpreted import attention  # noqa: F401  isort: skip  # before what imports Triton
from engine.kernels.triton import tuning
from engine.kernels.triton.tuning import OutOfResources, TuningFile, candidates, fastest, key_of

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("num_shared", [1, 3, 8, 71])
def test_a_tile_holds_at_least_one_query_with_all_its_heads(num_shared, head_dim, dtype):
    shape = AttentionShape(num_shared, 2, head_dim, 16, dtype)
    launches = default_launches(shape)
    assert queries_per_tile(shape, launches.prefill) >= 1
    assert launches.decode.rows >= num_shared
    for launch in (launches.prefill, launches.decode):
        assert launch.rows == next_power_of_2(launch.rows) >= 16
        assert launch.keys == next_power_of_2(launch.keys) >= 16


@pytest.mark.parametrize(
    ("num_decodes", "num_kv_heads", "max_keys", "expected"),
    [(1, 8, 8192, 64), (1, 8, 512, 4), (8, 8, 8192, 8), (128, 8, 8192, 1), (1, 1, 100, 1), (0, 8, 8192, 64)],
)
def test_keys_are_split_until_the_device_is_full_and_no_further(num_decodes, num_kv_heads, max_keys, expected):
    assert choose_num_splits(num_decodes, num_kv_heads, max_keys, num_processors=132) == expected


def test_candidates_begin_with_what_is_sure_to_fit_and_differ():
    base = default_launches(AttentionShape(3, 3, 64, 16, torch.bfloat16))
    for launch, is_prefill in ((base.prefill, True), (base.decode, False)):
        found = candidates(launch, is_prefill=is_prefill)
        assert found[0] == launch
        assert len(set(found)) == len(found) > 5
        assert all(one.rows >= launch.rows for one in found)


def test_the_fastest_that_fits_is_taken():
    of = [Launch(16, keys, 4, 2) for keys in (16, 32, 64, 128)]

    def measure(launch):
        if launch.keys == 64:
            raise OutOfResources(200_000, 100_000, "shared memory")
        return {16: 3.0, 32: 2.0, 128: 4.0}[launch.keys]

    assert fastest(of, measure, float("inf")) == of[1]


def test_without_time_the_first_is_taken_unmeasured():
    of = [Launch(16, 16, 4, 2), Launch(16, 32, 4, 2)]
    assert fastest(of, lambda launch: pytest.fail("measured"), 0.0) == of[0]


def test_choices_are_kept_beside_others(tmp_path):
    shape = AttentionShape(3, 3, 64, 16, torch.bfloat16)
    launches = default_launches(shape)
    file = TuningFile(tmp_path / "new")
    assert file.read(key_of(shape, "card")) is None
    file.write(key_of(shape, "other card"), launches)
    file.write(key_of(shape, "card"), launches)
    again = TuningFile(tmp_path / "new")
    assert again.read(key_of(shape, "card")) == again.read(key_of(shape, "other card")) == launches
    assert len(list((tmp_path / "new").iterdir())) == 1


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"key": 3}', '{"key": {"prefill": {}}}', '{"key": {"prefill": [], "decode": []}}'],
)
def test_a_file_that_makes_no_sense_is_as_none(tmp_path, content):
    (tmp_path / "attention-launches.json").write_text(content)
    file = TuningFile(tmp_path)
    assert file.read("key") is None
    file.write("key", default_launches(AttentionShape(1, 1, 64, 16, torch.bfloat16)))
    assert file.read("key") is not None
    assert json.loads((tmp_path / "attention-launches.json").read_text())


def test_nowhere_to_keep_them_is_no_error(tmp_path):
    launches = default_launches(AttentionShape(1, 1, 64, 16, torch.bfloat16))
    for folder in (None, tmp_path / "file" / "folder"):
        (tmp_path / "file").write_text("")
        TuningFile(folder).write("key", launches)
        assert TuningFile(folder).read("key") is None


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_measured_is_attention_over_blocks_that_are_there(monkeypatch):
    for name, number in {"_NUM_DECODES": 2, "_NUM_KEYS": 200, "_PROMPT": 40}.items():
        monkeypatch.setattr(tuning, name, number)
    outputs = []

    def clock(work):
        outputs.append(work())
        return 1.0

    shape = AttentionShape(3, 1, 16, 4, torch.float32)
    scene = tuning.TuningScene(shape, torch.device("cpu"), 132, clock)
    base = default_launches(shape)
    assert scene.decode_ms(base.decode) == scene.prefill_ms(base.prefill) == 1.0
    assert [tuple(output.shape) for output in outputs] == [(2, 3, 16), (40, 3, 16)]
    assert not any(output.isnan().any() for output in outputs)
