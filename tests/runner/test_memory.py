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


@pytest.mark.parametrize(("setting", "num_blocks"), [("num_device_blocks", 7 + 1), ("num_host_blocks", 7)])
@pytest.mark.parametrize("error", NO_ROOM)
def test_pool_without_room_names_its_setting(model, monkeypatch, setting, num_blocks, error):
    empty = torch.empty

    def fail(shape, **settings):
        if shape[0] == num_blocks:
            raise error
        return empty(shape, **settings)

    monkeypatch.setattr(torch, "empty", fail)
    with pytest.raises(SettingsError, match=rf"{setting} is 7, which do not fit on cpu: \d+\.\d\d GiB are free"):
        KvCache(model, SchedulerConfig(4, 64, 16, 7, 512, num_host_blocks=7))


def test_pool_larger_than_any_machine_is_refused_by_the_allocator_itself(model):
    with pytest.raises(SettingsError, match="num_device_blocks is 1000000000000"):
        KvCache(model, SchedulerConfig(4, 64, 16, 10**12, 512))


def test_error_that_is_not_about_memory_stays_what_it_is(model, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("a bug")

    monkeypatch.setattr(torch, "empty", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        KvCache(model, SchedulerConfig(4, 64, 16, 7, 512))
