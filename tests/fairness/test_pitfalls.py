"""Each rule that looks right breaks a theorem on traffic made for it, and the true rule does not."""

from dataclasses import replace

import pytest

from engine.core.admission import Turns
from tests.fairness.changed_code import Edit, changed
from tests.fairness.changes import CHANGES, Change
from tests.fairness.counterexamples import COUNTEREXAMPLES, Counterexample, F, G
from tests.fairness.judge import shows_breach
from tests.fairness.machine import Machine
from tests.fairness.model import Model
from tests.fairness.observer import Observer, Report
from tests.fairness.random_runs import random_run
from tests.fairness.runs import Flood, drive
from tests.fairness.scheduler_world import SchedulerWorld


def play(case: Counterexample, *changes: str) -> Report:
    observer = Observer(case.machine.bounds(), compare_counters=not changes)
    return drive(Model(case.machine, changes), case.traffic, observer, case.num_steps)


@pytest.mark.parametrize("case", COUNTEREXAMPLES, ids=lambda case: case.change)
def test_a_changed_rule_breaks_a_theorem_in_the_model(case: Counterexample):
    true_report, report = play(case), play(case, case.change)
    assert true_report.breaches == {}
    assert not shows_breach(case, true_report, true_report)
    assert shows_breach(case, report, true_report)


def run_scheduler(case: Counterexample, change: Change | None = None) -> Report:
    world = SchedulerWorld(case.machine, options={"pace_prefill": False})
    if change is not None and change.rewrite is not None:
        world.policy.rewrites.append(change.rewrite(world))
    if change is not None and change.forge is not None:
        world.policy.forgeries.append(change.forge())
    observer = Observer(world.bounds(), compare_counters=change is None)
    report = drive(world, case.traffic, observer, case.num_steps)
    if world.num_deadlocks:
        report.breach("idle", f"{world.num_deadlocks} plans in which nothing could run")
    return report


@pytest.mark.parametrize("case", COUNTEREXAMPLES, ids=lambda case: case.change)
def test_the_scheduler_keeps_the_theorem_on_the_counterexample(case: Counterexample):
    report = run_scheduler(case)
    assert report.breaches == {}
    assert not shows_breach(case, report, report)


SEEDS_FOR_SCHEDULER = {"kept_claim": 70, "growth_eats_claim": 70}


def _for_scheduler(case: Counterexample) -> Counterexample:
    """Where the scheduler gets by, on the traffic that suffices for the model, random traffic on which it does not."""
    if case.change not in SEEDS_FOR_SCHEDULER:
        return case
    run = random_run(SEEDS_FOR_SCHEDULER[case.change], 250)
    return replace(case, machine=run.machine, traffic=run.traffic, num_steps=250)


@pytest.mark.parametrize(
    "case",
    [_for_scheduler(case) for case in COUNTEREXAMPLES if case.change in CHANGES],
    ids=lambda case: case.change,
)
def test_a_changed_rule_breaks_a_theorem_in_the_scheduler(case: Counterexample):
    true_report = run_scheduler(case)
    with changed(*CHANGES[case.change].edits):
        report = run_scheduler(case, CHANGES[case.change])
    assert shows_breach(case, report, true_report)


def test_a_cap_on_a_request_bounds_a_grant_and_not_the_step():
    """Were it kept while others yield, they would wait for one that is slowed by rule, and the device idle."""

    def served() -> float:
        world = SchedulerWorld(Machine(), options={"pace_prefill": False}, config={"max_prefill_share": 0.25})
        report = drive(world, (Flood(F, 16, 60, 1), Flood(G, 480, 2, 1)), Observer(world.bounds()), 200)
        assert report.breaches == {}
        return report.served[F[:2]]

    true = served()
    with changed(Edit(Turns, "end_turn", {"if goes_on:": "if False:"})):
        assert served() < true / 2
