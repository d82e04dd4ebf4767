"""Cost lines, decision logs and commands that cannot be used end in one line that says where, before much is done."""

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine.commands.sim import app
from engine.core.config import SchedulerConfig
from engine.decision_log import PolicyChoice
from engine.sim.cost_lines import from_coefficients, load_cost_line
from engine.sim.errors import CostLineError, ReplayError, ScenarioError
from engine.sim.replay import replay
from engine.sim.run import Setup, simulate
from engine.sim.samples import Samples
from engine.sim.traffic.row import Arrival
from tests.sim.test_bad_input import DEEP, DIGITS, LARGE, written
from tests.sim.test_decision_log import simulated_log


@pytest.fixture(scope="module")
def log() -> list[str]:
    return simulated_log("fcfs")


class TestCostLines:
    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            ('{"coefficients": {"base_ns": 1e306}}', r"at most 1e\+15 ns"),
            (f'{{"coefficients": {{"base_ns": {LARGE}}}}}', "base_ns is too large"),
            (f'{{"coefficients": {{"base_ns": {DIGITS}}}}}', "too many digits"),
            (DEEP, "nested too deeply"),
            ('{"name": "\\ud800", "coefficients": {}}', "half of a character"),
            ('{"name": "a\\nb", "coefficients": {}}', "text of one line"),
            ('{"name": 5, "coefficients": {}}', "text of one line"),
            (b"\xff\xfe", "this is not text"),
        ],
    )
    def test_a_file_that_cannot_be_used_is_named(self, tmp_path: Path, content: str | bytes, problem: str):
        path = written(tmp_path, content)

        with pytest.raises(CostLineError, match=problem) as caught:
            load_cost_line(str(path))

        assert str(caught.value).startswith(f"{path}: ")

    def test_a_run_that_would_take_for_ever_says_so(self):
        config = SchedulerConfig(4, 64, 4, 4_096, 65_536)
        line = from_coefficients("slow", {"base_ns": 1e15})
        setup = Setup(config, line, PolicyChoice("fcfs", {}), PolicyChoice("never", {}))

        with pytest.raises(ScenarioError, match="more than twenty years"):
            simulate(setup, [Arrival(0, "o/t", 3, 5_000)], Samples())


class TestDecisionLogs:
    @staticmethod
    def number_of(log: list[str], method: str) -> int:
        return next(number for number, text in enumerate(log, start=1) if f'"e":"{method}"' in text)

    def refused(self, log: list[str], method: str, **change: object) -> str:
        """What is said of the first such line when it is changed so; it is said of that line."""
        number = self.number_of(log, method)
        line = json.dumps(json.loads(log[number - 1]) | change)
        with pytest.raises(ReplayError) as caught:
            replay([*log[: number - 1], line, *log[number:]])
        assert caught.value.line_number == number
        return caught.value.problem

    def test_a_plan_twice_is_refused_at_the_second(self, log: list[str]):
        number = self.number_of(log, "plan")

        with pytest.raises(ReplayError, match=f"line {number + 1}: plans again although step 1 was not committed"):
            replay([*log[:number], log[number - 1], *log[number:]])

    def test_a_commit_that_is_missing_is_found_at_the_next_plan(self, log: list[str]):
        number = self.number_of(log, "commit")

        with pytest.raises(ReplayError, match="plans again although step 1 was not committed"):
            replay([*log[: number - 1], *log[number:]])

    @pytest.mark.parametrize("t", [math.nan, -1, "1", None, 1.5, 10**30])
    def test_a_time_that_is_none_is_refused(self, log: list[str], t: object):
        assert self.refused(log, "commit", t=t).startswith("t: ")

    def test_a_time_that_goes_back_is_refused(self, log: list[str]):
        assert "the time goes back" in self.refused(log, "commit", t=0)

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            ({"lengths": {"0": 10**12}}, "lengths.0: "),
            ({"lengths": {"0": -1}}, "lengths.0: "),
            ({"lengths": {"0": 2.5}}, "lengths.0: "),
            ({"lengths": {"x": 1}}, "lengths.x"),
            ({"lengths": {str(row): 65_536 for row in range(20)}}, "at most 1,000,000 tokens"),
            ({"ended": {"0": 10**12}}, "ended.0: "),
            ({"ended": {"0": 5}}, "row 0 ends at token 5 of 1"),
            ({"errors": {"0": None}}, "errors.0: "),
            ({"copies": 5}, "copies: "),
            ({"what": 5}, "what: "),
        ],
    )
    def test_a_commit_that_no_step_gives_is_refused(self, log: list[str], change: dict[str, object], problem: str):
        assert problem in self.refused(log, "commit", **change)

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            ({"e": "set_scheduling_policy", "name": "nope", "options": {}}, "there is no policy nope"),
            ({"e": "set_scheduling_policy", "name": "fair", "options": {"theta": 5}}, "options.theta"),
            ({"e": "update_classes", "classes": [{"name": "d", "min_share": math.nan}], "revision": 1}, "min_share"),
            ({"e": "calibrate", "prices": {"step": {"base_ns": math.nan}}}, "prices.step.base_ns"),
            ({"e": "update_nodes", "nodes": [[["o"], math.inf, 1]]}, "weight of o"),
            ({"e": ["plan"]}, "is missing or unknown"),
        ],
    )
    def test_a_call_that_nobody_can_make_is_refused(self, log: list[str], line: dict[str, object], problem: str):
        with pytest.raises(ReplayError, match="line 2: ") as caught:
            replay([log[0], json.dumps({"t": 0} | line)])

        assert problem in caught.value.problem

    @pytest.mark.parametrize("text", [DEEP, DIGITS, '{"t": "\\ud800"}'])
    def test_a_line_that_is_no_json_for_us_is_named(self, log: list[str], text: str):
        with pytest.raises(ReplayError, match="line 2: the JSON"):
            replay([log[0], text])

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            ({"admission_interval": 1.5}, "config.admission_interval"),
            ({"enable_chunked_prefill": "x"}, "config.enable_chunked_prefill"),
            ({"num_device_blocks": True}, "config.num_device_blocks"),
            ({"max_prefill_share": math.nan}, "config.max_prefill_share"),
            ({"speed": 1}, "config.speed"),
        ],
    )
    def test_settings_of_another_type_are_refused(self, log: list[str], change: dict[str, object], problem: str):
        header = json.loads(log[0])
        header["config"] |= change

        with pytest.raises(ReplayError, match=f"line 1: .*{problem}"):
            replay([json.dumps(header)])

    def test_a_policy_that_is_not_installed_is_told_with_the_header(self, log: list[str]):
        header = json.loads(log[0]) | {"scheduling_policy": {"name": "nope", "options": {}}}

        with pytest.raises(ReplayError, match=r"line 1: .*there is no policy nope"):
            replay([json.dumps(header)])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--model", "/nowhere"), "--model /nowhere"),
        (("--costs", "/nowhere"), "there is no cost line /nowhere"),
        (("--policy", "nope"), "there is no policy nope"),
        (("--preemption-policy", "nope"), "there is no policy nope"),
        (("--generate", "requests=0"), "the traffic is empty"),
    ],
)
def test_a_validation_is_refused_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], problem: str
):
    def load(*args: object) -> None:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr("engine.commands.simulation.validation.validate", load)
    traffic = () if "--generate" in arguments else ("--generate", "requests=5")

    result = CliRunner().invoke(app, ["validate", *traffic, *arguments])

    assert result.exit_code == 2
    [line] = result.stderr.splitlines()
    assert problem in line


@pytest.mark.parametrize("argument", ["--weight=o/\udcff=2", "--class=\udcff=2", "--weight=generated=1e300"])
def test_records_that_nothing_can_hold_are_refused(argument: str):
    result = CliRunner().invoke(app, ["run", "--generate", "requests=5", "--policy", "fcfs", argument])

    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
