"""A stranger's package: small, shown in the documentation as it is, and as good as our own."""

import ast
from pathlib import Path

import pytest

from engine.plugins import load_preemption_policy, load_scheduling_policy
from engine.sim.conformance.traffic import SETTINGS, Run, check_service
from tests.policies.distributions import SOURCE
from tests.policies.views import MS, drain, make_view

DOCUMENT = Path(__file__).parents[2] / "docs" / "policies.md"
MAX_LINES = 30


@pytest.mark.parametrize("name", ["pyproject.toml", "shortest_prompt.py"])
def test_the_documentation_shows_the_files_that_are_installed_here(name: str):
    assert (SOURCE / name).read_text() in DOCUMENT.read_text()


def test_its_policies_are_of_thirty_lines_at_most():
    tree = ast.parse((SOURCE / "shortest_prompt.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            lines = ast.unparse(node).splitlines()
            assert sum(bool(line.strip()) for line in lines) <= MAX_LINES


@pytest.mark.usefixtures("stranger")
class TestInstalled:
    def test_it_orders_as_it_says(self):
        policy = load_scheduling_policy("shortest_prompt", {"ms_per_token": "10"})
        for index, (prompt, arrived_at_ms) in enumerate(((100, 0), (5, 0), (20, 40), (1, 995))):
            policy.on_arrive(make_view(index, prompt=prompt, arrived_at=arrived_at_ms * MS), arrived_at_ms * MS)

        assert drain(policy) == [1, 2, 0, 3]

    def test_it_is_simulated_beside_ours(self):
        def pair():
            return load_scheduling_policy("shortest_prompt", {}), load_preemption_policy("longest_output", {})

        run = Run(SETTINGS[0], pair)
        run.play()

        assert run.scheduler.stats().num_preemptions > 0
        assert run.scheduler.policy_fault is None
        check_service(pair, SETTINGS[1])
