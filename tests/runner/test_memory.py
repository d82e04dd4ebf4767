"""A pool that finds no room is refused by the name of its setting."""

import pytest
import torch

from engine.core.config import SchedulerConfig
from engine.errors import SettingsError
from engine.model.loader import load_model
from engine.runner.kv_cache import KvCache
from tests.model import tiny_llama

NO_ROOM = [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"), MemoryError()]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tiny_llama.write_folder(tmp_path_factory.mktemp("tiny") / "m", tiny_llama.make_model())
    return load_model(folder, dtype="float32", device="cpu")


@pytest.mark.parametrize(("setting", "function"), [("num_device_blocks", "zeros"), ("num_host_blocks", "empty")])
@pytest.mark.parametrize("error", NO_ROOM)
def test_pool_without_room_names_its_setting(model, monkeypatch, setting, function, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(torch, function, fail)
    with pytest.raises(SettingsError, match=rf"{setting} is 7, which do not fit on cpu: \d+\.\d\d GiB are free"):
        KvCache(model, SchedulerConfig(4, 64, 16, 7, 512, num_host_blocks=7))


def test_pool_larger_than_any_machine_is_refused_by_the_allocator_itself(model):
    with pytest.raises(SettingsError, match="num_device_blocks is 1000000000000"):
        KvCache(model, SchedulerConfig(4, 64, 16, 10**12, 512))


def test_error_that_is_not_about_memory_stays_what_it_is(model, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("a bug")

    monkeypatch.setattr(torch, "zeros", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        KvCache(model, SchedulerConfig(4, 64, 16, 7, 512))
