"""Steps as the Triton kernels get them: one transfer, tables on the device, padded decodes that are recorded."""

import random

import numpy as np
import pytest
import torch

from tests.kernels.interpreted import attention  # noqa: F401  isort: skip  # before what imports Triton
from engine.core.config import SchedulerConfig
from engine.core.plan import CopyDirection, RowStart, StepPlan
from engine.core.types import SamplingParams, SequenceKey
from engine.runner import block_copier, step_path
from engine.runner.block_copier import PieceCopier
from engine.runner.decode_graphs import ladder
from engine.runner.kv_cache import KvCache
from engine.runner.row_table import RowTable
from engine.runner.step_columns import StepColumns
from engine.runner.triton_inputs import TritonInputs
from tests.device.models import TINY, make_model
from tests.runner.driver import Driver
from tests.torch_threads import one_thread  # noqa: F401  a fixture

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

CPU = torch.device("cpu")
CONFIG = SchedulerConfig(6, 40, 4, num_device_blocks=60, max_model_len=100, num_host_blocks=20)


@pytest.fixture(scope="module")
def model():
    return make_model(TINY, CPU, torch.float32).loaded


def test_columns_of_one_size_lie_where_they_lay_before():
    columns = StepColumns(40, CPU)
    addresses = []
    for number in (1, 2):
        columns.begin()
        views = [columns.put(np.full(shape, number)) for shape in ((3,), (2, 5), (0,), (1,))]
        columns.send()
        assert all(bool((view == number).all()) for view in views)
        assert [view.shape for view in views] == [(3,), (2, 5), (0,), (1,)]
        addresses.append([view.data_ptr() for view in views if view.numel()])
    assert addresses[0] == addresses[1]
    assert all(address % 16 == addresses[0][0] % 16 for address in addresses[0])


def test_columns_refuse_what_they_have_no_room_for():
    columns = StepColumns(10, CPU)
    columns.put(np.zeros(7, dtype=np.int64))
    assert columns.num_free == 2
    with pytest.raises(ValueError, match="3 numbers do not fit"):
        columns.put(np.zeros(3, dtype=np.int64))


def test_ladder_ends_with_the_most_rows_and_pads_less_the_larger_it_is():
    assert ladder(1) == (1,)
    assert ladder(3) == (1, 2, 3)
    assert ladder(64) == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
    assert ladder(100) == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 100)
    assert ladder(1000)[-3:] == (960, 992, 1000)


@pytest.mark.parametrize("capacity", [None, 230])
def test_tables_on_the_device_follow_the_rows(model, capacity, monkeypatch):
    """However few numbers the columns hold beside the step's own."""
    rng = random.Random(1)
    rows = RowTable(CONFIG)
    inputs = TritonInputs(model, KvCache(model, CONFIG), rows, CONFIG, ())
    if capacity is not None:
        inputs._columns = inputs.planner._columns = StepColumns(capacity, CPU)
    num_owned = {}
    for step in range(40):
        started, new_blocks = [], []
        for row in rng.sample(range(6), rng.randrange(1, 4)):
            count = rng.randrange(1, 9)
            blocks = tuple(rng.randrange(60) for _ in range(count))
            if row in num_owned and rng.random() < 0.6 and num_owned[row] + count <= 25:
                new_blocks.append((row, blocks))
                num_owned[row] += count
            else:
                started.append(RowStart(row, SequenceKey("", row), (1,), 1, blocks, SamplingParams()))
                num_owned[row] = count
        plan = StepPlan(step, (), tuple(started), tuple(new_blocks), (min(num_owned),), (0,), (1,), (True,))
        rows.apply(plan)
        if step % 3:  # a step without chunks builds nothing
            inputs.build(plan)
            for row, count in num_owned.items():
                assert inputs.planner._table[row, :count].tolist() == rows.block_ids[row, :count].tolist()


def test_only_steps_of_decodes_that_all_sample_are_padded(model):
    rows = RowTable(CONFIG)
    inputs = TritonInputs(model, KvCache(model, CONFIG), rows, CONFIG, ladder(6))
    starts = tuple(RowStart(row, SequenceKey("", row), (1,) * 9, 9, (row,), SamplingParams()) for row in range(6))
    rows.apply(StepPlan(0, (), starts))

    def padded(num_tokens, samples):
        count = len(num_tokens)
        built = inputs.build(StepPlan(0, (), (), (), tuple(range(count)), (0,) * count, num_tokens, samples))
        assert len(built.batch.sampled_index) == len(built.sampled_rows) == sum(samples)
        return built.padded_size, len(built.batch.token_ids)

    assert padded((1, 1, 1), (True, True, True)) == (4, 4)
    assert padded((1, 1, 1, 1, 1), (True,) * 5) == (6, 6)
    assert padded((1, 1, 1), (True, False, True)) == (0, 3)
    assert padded((1, 1, 3), (True, True, True)) == (0, 5)


def serve(driver):
    """A few sequences, some of which lose their blocks; what they said."""
    rng = random.Random(4)
    for row in range(3):
        driver.add(row, [rng.randrange(2, TINY.vocabulary_size) for _ in range(3 + 2 * row)])
    driver.prefill(range(3), chunk_size=6)
    driver.decode([0, 1], 2)
    driver.swap_out(1, 1)
    driver.decode([2], 1)
    driver.swap_in(1)
    driver.finish_copies()
    driver.preempt(2)
    driver.prefill_again(2, 5)
    driver.decode([2, 1, 0], 2)
    return [driver.rows[row].output for row in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("is_recorded", [False, True])
def test_steps_of_the_kernels_say_what_steps_on_a_processor_say(model, is_recorded, monkeypatch):
    sizes = {"num_rows": 4, "num_blocks": 40, "num_host_blocks": 10, "block_size": 4}
    plain = Driver(model, **sizes)
    expected = serve(plain)
    plain.close()
    monkeypatch.setattr(step_path, "runs_on", lambda device_type: True)
    driver = Driver(model, **sizes)
    try:
        if is_recorded:
            driver.runner._path.prepare()
        replayed = []
        run = driver.runner._path._graphs.run
        monkeypatch.setattr(
            driver.runner._path._graphs, "run", lambda *arguments: replayed.append(run(*arguments)) or replayed[-1]
        )
        assert serve(driver) == expected
    finally:
        driver.close()
    assert sum(logits is not None for logits in replayed) == (6 if is_recorded else 0)


@pytest.mark.parametrize("run_bytes", [1, 1 << 30])
def test_a_piece_is_copied_whole_by_runs_and_by_the_kernel(model, run_bytes, monkeypatch):
    monkeypatch.setattr(block_copier, "LONG_RUN_BYTES", run_bytes)
    cache = KvCache(model, CONFIG)
    cache.blocks.normal_()
    cache.host_blocks.normal_()
    device, host = cache.blocks.clone(), cache.host_blocks.clone()
    copier = PieceCopier(cache, gathers=True)
    piece = [(3, 5, 2), (9, 2, 1), (0, 1, 1)]
    is_gathered = copier.copy(CopyDirection.OUT, piece) is not None
    assert is_gathered == (run_bytes > 1)
    host[[5, 6, 2, 1]] = device[[3, 4, 9, 0]]
    assert torch.equal(cache.host_blocks, host)
    copier.copy(CopyDirection.IN, [(11, 5, 2), (20, 1, 1)])
    device[[11, 12, 20]] = host[[5, 6, 1]]
    assert torch.equal(cache.blocks, device)
    assert torch.equal(cache.host_blocks, host)
