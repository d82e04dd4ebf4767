"""The rules of `fair`, played by a small model, keep every bound, and the observer that says so is no yes-man."""

import pytest

from tests.fairness.counterexamples import F, G
from tests.fairness.machine import Machine
from tests.fairness.model import Model
from tests.fairness.observer import Observer, Report
from tests.fairness.random_runs import random_run
from tests.fairness.runs import Flood, drive


def play(seed: int, num_steps: int) -> Report:
    run = random_run(seed, num_steps)
    return drive(Model(run.machine, seed=seed), run.traffic, Observer(run.machine.bounds()), num_steps)


@pytest.mark.parametrize("seed", range(6))
def test_the_rules_keep_every_bound(seed: int):
    assert play(seed, 400).breaches == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_rules_keep_every_bound_on_much_traffic():
    for seed in range(480):
        assert play(seed, 1200).breaches == {}, f"seed {seed}"


def test_waiting_when_the_step_began_is_no_sign_of_being_denied():
    """By that sign a correct scheduler looks unfair: one-token requests that are served at once always wait first."""

    class Naive(Observer):
        def before_plan(self, seqs):
            super().before_plan(seqs)
            self.waiting = {seq.leaf for seq in seqs if not seq.num_computed_tokens}

        def denied(self, seqs):
            return super().denied(seqs) | self.waiting

    machine = Machine()
    traffic = (Flood(F, 16, 40, 8), Flood(G, 1, 1, 1))
    naive = drive(Model(machine), traffic, Naive(machine.bounds(), compare_counters=False), 800)
    assert "gap" in naive.breaches
    assert drive(Model(machine), traffic, Observer(machine.bounds()), 800).breaches == {}
