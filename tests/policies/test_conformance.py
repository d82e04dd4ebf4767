"""The conformance suite on every installed policy, a stranger's included: the core relies on it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.plugins import PREEMPTION_GROUP, SCHEDULING_GROUP, UnknownPolicyError, installed, load_scheduling_policy
from engine.sim.conformance import Check, check_policy, check_preemption_policy, check_scheduling_policy

pytestmark = pytest.mark.usefixtures("stranger")

SCHEDULING = (*installed(SCHEDULING_GROUP), "shortest_prompt")
PREEMPTION = (*installed(PREEMPTION_GROUP), "longest_output")


def faults(checks: tuple[Check, ...]) -> dict[str, str | None]:
    return {check.name: check.reason for check in checks if not check.passed}


@pytest.mark.parametrize("name", SCHEDULING)
def test_a_scheduling_policy_conforms(name: str):
    report = check_scheduling_policy(name)

    assert faults(report.checks) == {}
    assert report.passed


@pytest.mark.parametrize("name", PREEMPTION)
def test_a_preemption_policy_conforms(name: str):
    report = check_preemption_policy(name)

    assert faults(report.checks) == {}
    assert report.passed


def test_a_policy_is_found_in_either_group_and_each_check_is_told_as_it_ends():
    told: list[Check] = []

    (report,) = check_policy("never", on_check=told.append)

    assert report.kind == "preemption"
    assert tuple(told) == report.checks
    with pytest.raises(UnknownPolicyError, match="no_such_policy"):
        check_policy("no_such_policy")


@pytest.fixture(scope="module")
def digests_by_seed() -> list[dict[str, str]]:
    """By policy, a digest of all that it planned and told; once for each of two seeds of Python's hashes."""
    script = (
        "import hashlib; from engine.plugins import SCHEDULING_GROUP, installed;"
        "from engine.plugins import load_preemption_policy, load_scheduling_policy;"
        "from engine.sim.conformance.traffic import SETTINGS, Run\n"
        "for name in installed(SCHEDULING_GROUP):\n"
        "    pair = lambda: (load_scheduling_policy(name, {}), load_preemption_policy('over_served', {}))\n"
        "    run = Run(SETTINGS[2], pair)\n"
        "    run.play()\n"
        "    print(name, hashlib.sha256(repr((run.plans, run.events)).encode()).hexdigest())\n"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=90,
        ).stdout
        for seed in ("1", "2")
    ]
    return [dict(line.split() for line in output.splitlines()) for output in outputs]


@pytest.mark.parametrize("name", installed(SCHEDULING_GROUP))
def test_the_order_of_hashes_decides_nothing(name: str, digests_by_seed: list[dict[str, str]]):
    one, other = digests_by_seed

    assert one[name] == other[name]


def test_options_reach_the_policy_under_test(monkeypatch: pytest.MonkeyPatch):
    seen = []

    def load(name, options):
        seen.append(dict(options))
        return load_scheduling_policy(name, options)

    monkeypatch.setattr("engine.sim.conformance.suite.SCHEDULING_RULES", {})
    monkeypatch.setattr("engine.sim.conformance.suite._traffic_rules", lambda pair: {})
    monkeypatch.setattr("engine.sim.conformance.suite.load_scheduling_policy", load)
    check_scheduling_policy("drr", {"quantum": "64"})

    assert seen == [{"quantum": "64"}]
