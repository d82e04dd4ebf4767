"""Policies, weights and classes that change while the loop runs, and a policy that fails."""

import io
import json
from types import SimpleNamespace

import pytest
import structlog

from engine.core.plan import StepPlan
from engine.core.types import PriorityClass
from engine.decision_log import DecisionLog, LogHeader, PolicyChoice, RecordedScheduler
from engine.loop import EngineLoop
from engine.loop_messages import Accepted, Policies, Refused, SetPolicies, UpdateClasses, UpdateNodes
from tests.engine.fake_runner import CONFIG, FakeRunner
from tests.engine.loop_bench import Clock, Outlet, ScriptedScheduler

STRICT = SimpleNamespace(requires_preemption=True)
LENIENT = SimpleNamespace(requires_preemption=False)
NEVER = SimpleNamespace(preempts=False)
EAGER = SimpleNamespace(preempts=True)


def make_loop(scheduler, policies=None):
    return EngineLoop(scheduler, FakeRunner(), deliver, Clock(), policies=policies)


def deliver(deliveries):
    for outlet, update, at in deliveries:
        outlet.put(update, at)


def turn(loop):
    loop.take_commands()
    return loop.step()


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ((LENIENT, None), [("set_scheduling_policy", LENIENT, 1_000)]),
        ((None, EAGER), [("set_preemption_policy", EAGER, 1_000)]),
        ((STRICT, EAGER), [("set_scheduling_policy", STRICT, 1_000), ("set_preemption_policy", EAGER, 1_000)]),
    ],
)
def test_policies_that_go_together_are_in_force_before_the_next_plan(command, told):
    scheduler, outlet = ScriptedScheduler(), Outlet()
    loop = make_loop(scheduler, Policies(LENIENT, NEVER))
    loop.submit(SetPolicies(outlet, *command))
    turn(loop)
    assert outlet.updates == [Accepted()]
    assert scheduler.told == told


@pytest.mark.parametrize(
    ("in_force", "command", "field"),
    [
        (Policies(LENIENT, NEVER), (STRICT, None), "name"),
        (Policies(STRICT, EAGER), (None, NEVER), "preemption_name"),
        (Policies(LENIENT, EAGER), (STRICT, NEVER), "preemption_name"),
    ],
)
def test_pair_that_does_not_go_together_is_refused_and_changes_nothing(in_force, command, field):
    scheduler, outlet = ScriptedScheduler(), Outlet()
    loop = make_loop(scheduler, in_force)
    loop.submit(SetPolicies(outlet, *command))
    turn(loop)
    (refused,) = outlet.updates
    assert isinstance(refused, Refused)
    assert refused.error.field == field
    assert scheduler.told == []


def test_pair_is_judged_by_what_was_switched_to_before():
    scheduler, outlet = ScriptedScheduler(), Outlet()
    loop = make_loop(scheduler, Policies(LENIENT, NEVER))
    loop.submit(SetPolicies(outlet, None, EAGER))
    loop.submit(SetPolicies(outlet, STRICT, None))
    loop.submit(SetPolicies(outlet, None, NEVER))
    turn(loop)
    assert [type(update) for update in outlet.updates] == [Accepted, Accepted, Refused]


def test_switch_is_in_the_decision_log_by_its_name():
    file, scheduler = io.StringIO(), ScriptedScheduler()
    header = LogHeader(CONFIG, PolicyChoice("fair", {}), PolicyChoice("never", {}))
    loop = make_loop(RecordedScheduler(scheduler, DecisionLog(file, header)))
    loop.submit(SetPolicies(Outlet(), LENIENT, None, PolicyChoice("vtc", {"output_cost": "3"})))
    turn(loop)
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    (switch,) = [line for line in lines if line.get("e") == "set_scheduling_policy"]
    assert (switch["name"], switch["options"]) == ("vtc", {"output_cost": "3"})


def test_weights_and_classes_reach_the_scheduler():
    scheduler = ScriptedScheduler()
    loop = make_loop(scheduler)
    nodes, classes = [(("acme", "web"), 2.0, 7)], [PriorityClass("batch", 200)]
    loop.submit(UpdateNodes(nodes))
    loop.submit(UpdateClasses(classes, 8))
    turn(loop)
    assert scheduler.told == [("update_nodes", nodes, 1_000), ("update_classes", classes, 8, 1_000)]


def test_policy_that_was_replaced_is_logged_once():
    scheduler = ScriptedScheduler(StepPlan(1), StepPlan(2), StepPlan(3))
    loop = make_loop(scheduler)
    turn(loop)
    scheduler.policy_fault = "drr raised ZeroDivisionError in select"
    with structlog.testing.capture_logs() as logs:
        turn(loop)
        turn(loop)
    (entry,) = logs
    assert entry["log_level"] == "error"
    assert entry["fault"] == scheduler.policy_fault
