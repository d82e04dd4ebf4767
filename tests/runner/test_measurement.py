"""The measurement before the first request: what it covers, what it leaves behind, and how long it takes."""

import time

import pytest

from engine.core.config import SchedulerConfig
from engine.core.costs import Prices
from engine.core.plan import StepPlan
from engine.model.loader import load_model
from engine.runner import measurement
from engine.runner.model_runner import ModelRunner
from tests.model import tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tiny_llama.write_folder(tmp_path_factory.mktemp("tiny") / "m", tiny_llama.make_model())
    return load_model(folder, dtype="float32", device="cpu")


CONFIGS = {
    "usual": SchedulerConfig(16, 64, 4, num_device_blocks=100, max_model_len=256, num_host_blocks=50),
    "one row": SchedulerConfig(1, 8, 4, num_device_blocks=20, max_model_len=80, num_host_blocks=1),
    "one block": SchedulerConfig(2, 8, 8, num_device_blocks=1, max_model_len=100, num_host_blocks=1),
    "one token": SchedulerConfig(1, 1, 1, num_device_blocks=2, max_model_len=100),
    "nothing fits": SchedulerConfig(1, 1, 1, num_device_blocks=1, max_model_len=100, num_host_blocks=1),
    "no host": SchedulerConfig(4, 64, 4, num_device_blocks=100, max_model_len=256),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_any_engine_can_be_measured(model, config):
    runner = ModelRunner(model, config)
    prices = measurement.measure(runner, config, budget_s=0.2).prices
    costs = prices.step
    assert (costs.base_ns + costs.decode_ns > 0) == (config.max_request_tokens > 1)
    if config.num_host_blocks:
        assert 0 < prices.copy_out_block_ns < 1e9
        assert 0 < prices.copy_in_block_ns < 1e9
    else:
        assert prices.copy_out_block_ns == Prices().copy_out_block_ns
    assert runner.take_completed() == runner.take_copy_timings() == ()
    assert runner.execute(StepPlan(1)).completed_copies == ()


def test_shapes_respect_the_limits_of_a_step():
    for config in CONFIGS.values():
        for plan in measurement.shapes(config):
            assert len(plan.rows) <= config.max_num_seqs
            assert sum(plan.num_tokens) <= config.max_num_batched_tokens
            for start in plan.started:
                assert len(start.token_ids) < config.max_request_tokens
                assert max(start.block_ids) < config.num_device_blocks
                assert len(start.block_ids) * config.block_size >= len(start.token_ids)


def test_slow_device_is_measured_with_few_steps(model):
    class Slow(ModelRunner):
        num_steps = 0

        def execute(self, plan):
            self.num_steps += bool(plan.rows)
            time.sleep(0.03)
            return super().execute(plan)

    config = CONFIGS["usual"]
    runner = Slow(model, config)
    measurement.measure(runner, config, budget_s=0.1)  # which the copies use up
    assert runner.num_steps == 4 * 2 + measurement.REPETITIONS  # the first shapes and the one beside a copy
