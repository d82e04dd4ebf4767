"""`evenflow profile`: the grid of steps fits the engine, and a plan of it is one that a runner accepts."""

import pytest

from engine.commands.profile import poor_fit
from engine.commands.profiling.profile import Measurement, Profile, Shape, grid, make_plan
from engine.sim.cost_lines import CPU
from tests.builders import make_config
from tests.fakes import ReferenceRunner


@pytest.mark.parametrize("max_num_seqs", [1, 4, 64])
@pytest.mark.parametrize("num_device_blocks", [64, 2048])
def test_every_shape_fits_the_engine(max_num_seqs: int, num_device_blocks: int):
    config = make_config(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=256,
        block_size=16,
        num_device_blocks=num_device_blocks,
        max_model_len=8192,
    )

    for shape in grid(config):
        plan = make_plan(config, shape)
        assert sum(plan.num_tokens) <= 256
        assert len(plan.rows) <= max_num_seqs + bool(shape.chunk)
        blocks = [block for start in plan.started for block in start.block_ids]
        assert max(blocks) < num_device_blocks
        assert all(begin + tokens <= 8192 for begin, tokens in zip(plan.starts, plan.num_tokens, strict=True))


def test_decodes_come_before_the_chunk():
    plan = make_plan(make_config(num_device_blocks=512), Shape(num_decodes=3, context=16, start=0, chunk=8))

    assert plan.num_tokens == (1, 1, 1, 8)
    assert plan.starts == (15, 15, 15, 0)


def test_a_reference_runner_computes_a_prompt_of_the_grid():
    config = make_config(num_device_blocks=64)

    ReferenceRunner(config.block_size).execute(make_plan(config, Shape(chunk=8)))


def test_a_line_that_is_far_from_its_measurements_is_warned_of():
    close, far = Measurement(Shape(1, 16), 100.0, 114.0), Measurement(Shape(4, 16), 100.0, 80.0)

    assert poor_fit(Profile(CPU, (close,))) is None
    assert "1 of 2 steps are off by more than 15%, the worst by 20%" in str(poor_fit(Profile(CPU, (close, far))))
