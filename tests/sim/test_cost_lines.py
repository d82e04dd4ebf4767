"""Cost lines come by name or from a file; wrong ones are refused in words that say what to change."""

import json
from pathlib import Path

import pytest

from engine.core.plan import StepPlan
from engine.sim.cost_lines import A10G, CPU, CostLine, StepTimes, from_coefficients, load_cost_line
from engine.sim.errors import CostLineError
from tests.sim.simulations import LINE


def test_the_built_in_lines_say_what_was_published():
    plan = StepPlan(1, rows=(0, 1), starts=(99, 99), num_tokens=(1, 1), samples=(True, True))

    assert StepTimes(A10G).step_ns(plan) == 14_300_000 + 2 * 271_500 + 200 * 2400
    assert StepTimes(CPU).step_ns(plan) == 6_000_000 + 2 * 3_500_000


def test_many_decode_steps_take_the_sum_of_single_ones():
    times = StepTimes(LINE)
    plan = StepPlan(1, rows=(0, 1, 2), starts=(7, 20, 33), num_tokens=(1, 1, 1), samples=(True,) * 3)

    assert times.decode_step_ns(3, 8 + 21 + 34) == times.step_ns(plan)


def test_a_file_gives_the_line_that_was_written(tmp_path: Path):
    path = tmp_path / "line.json"
    path.write_text(json.dumps({"name": "mine", "coefficients": A10G.scaled(2).coefficients()}))

    line = load_cost_line(str(path))

    assert line.name == "mine"
    assert line.coefficients() == {name: 2 * value for name, value in A10G.coefficients().items()}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is not JSON"),
        ("[]", "has no object `coefficients`"),
        ('{"coefficients": {"speed": 1}}', "no coefficient speed"),
        ('{"coefficients": {"base_ns": "1"}}', "base_ns must be a number"),
        ('{"coefficients": {"base_ns": -1}}', "base_ns must be finite and at least 0"),
        ('{"coefficients": {"base_ns": NaN}}', "base_ns must be finite and at least 0"),
    ],
)
def test_a_file_that_is_no_line_is_refused(tmp_path: Path, content: str, problem: str):
    path = tmp_path / "line.json"
    path.write_text(content)

    with pytest.raises(CostLineError, match=problem):
        load_cost_line(str(path))


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(CostLineError, match="a10g, cpu"):
        load_cost_line("h9000")


def test_what_is_left_out_is_free():
    line = from_coefficients("free", {"base_ns": 5})

    assert isinstance(line, CostLine)
    assert {name for name, value in line.coefficients().items() if value} == {"base_ns"}
