"""How the loop hands on what the runner tells of its copies, what it sleeps for, and what a failed copy does."""

import threading

import pytest

from engine.core.costs import Prices
from engine.core.events import Finished, Resumed
from engine.core.plan import BlockCopy, CopyDirection, StepPlan
from engine.core.types import FinishReason, SequenceKey
from engine.loop import EngineLoop
from engine.loop_messages import Stop, TakeCopies
from tests.engine.fake_runner import FakeRunner
from tests.engine.loop_bench import Bench, Clock, ScriptedScheduler

COPY = BlockCopy(5, CopyDirection.OUT, (1,), (2,))


@pytest.fixture
def runner():
    runner = FakeRunner()
    runner.holds_copies = True
    return runner


def make_loop(scheduler, runner, deliver=lambda _: None, **options):
    return EngineLoop(scheduler, runner, deliver, Clock(), **options)


def turn(loop):
    loop.take_commands()
    return loop.step()


def test_copy_that_ends_with_a_step_is_committed_with_it(runner):
    scheduler = ScriptedScheduler(StepPlan(1, copies=(COPY,)))
    runner.holds_copies = False
    loop = make_loop(scheduler, runner)
    assert turn(loop)
    assert not turn(loop)
    assert scheduler.told == [("commit", (5,))]


def test_copy_that_ends_between_steps_is_told_before_the_next_plan(runner):
    scheduler = ScriptedScheduler(StepPlan(1, copies=(COPY,)))
    loop = make_loop(scheduler, runner)
    turn(loop)
    runner.complete(5)
    scheduler.plans.append(StepPlan(2))
    turn(loop)
    assert scheduler.told == [("commit", ()), ("complete_copies", (5,), 1_000), ("commit", ())]


def test_completion_that_a_step_has_told_of_wakes_for_nothing(runner):
    scheduler = ScriptedScheduler(StepPlan(1, copies=(COPY,)), StepPlan(2))
    loop = make_loop(scheduler, runner)
    turn(loop)
    runner._completed.append(5)
    turn(loop)
    loop.submit(TakeCopies())
    turn(loop)
    assert scheduler.told == [("commit", ()), ("commit", (5,))]


def test_loop_with_nothing_but_copies_sleeps_until_one_ends(runner):
    scheduler = ScriptedScheduler(StepPlan(1, copies=(COPY,)))
    told = threading.Event()
    scheduler.complete_copies = lambda copy_ids, now: told.set() or []
    loop = make_loop(scheduler, runner)
    thread = threading.Thread(target=loop.run)
    thread.start()
    while runner.num_steps == 0:
        threading.Event().wait(0.001)
    assert not told.wait(0.02)
    num_steps = runner.num_steps
    runner.complete(5)
    assert told.wait(10)
    loop.submit(Stop())
    thread.join(10)
    assert runner.num_steps == num_steps == 1


def test_events_of_a_completed_copy_reach_their_request():
    bench = Bench()
    outlet = bench.submit("a", max_output_tokens=9)
    bench.turn()
    bench.loop._scheduler.complete_copies = lambda copy_ids, now: [Resumed(SequenceKey("a", 0))]
    bench.runner.complete(5)
    bench.loop.take_commands()
    bench.loop.step()
    assert Resumed in outlet.kinds


@pytest.mark.parametrize("moment", ["idle", "step"])
def test_failed_copy_ends_every_request_and_is_then_told_as_ended(moment):
    bench = Bench()
    outlet = bench.submit("a", max_output_tokens=9)
    bench.turn()
    told = []
    bench.loop._scheduler.complete_copies = lambda copy_ids, now: told.append(copy_ids) or []
    bench.runner.copy_errors = [RuntimeError("the link is down")]
    if moment == "idle":
        bench.runner.complete(5)
    else:
        bench.runner._completed.append(5)
    bench.turn()
    assert outlet.finished.reason is FinishReason.ERROR
    assert "link" not in outlet.finished.error
    if moment == "step":
        bench.loop.submit(TakeCopies())  # the copy's own, which came meanwhile
    bench.turn()
    assert told == [(5,)]
    later = bench.submit("b")
    bench.until_idle()
    assert isinstance(later.finished, Finished)


class ScriptedCalibrator:
    """Has one set of prices to tell after the second step."""

    def __init__(self) -> None:
        self.prices = Prices(copy_launch_ns=1.0)
        self.steps = []

    def observe_step(self, plan, elapsed_ns):
        self.steps.append((plan.step_id, elapsed_ns))

    def observe_copies(self, timings):
        assert timings == ()

    def due(self, _now):
        return Prices(copy_launch_ns=2.0) if len(self.steps) == 2 else None


def test_prices_are_told_at_the_start_and_when_they_have_changed(runner):
    chunk = {"rows": (0,), "starts": (0,), "num_tokens": (2,), "samples": (False,)}
    scheduler = ScriptedScheduler(StepPlan(1, **chunk), StepPlan(2, copies=(COPY,)), StepPlan(3, **chunk))
    calibrator = ScriptedCalibrator()
    loop = make_loop(scheduler, runner, calibrator=calibrator)
    for _ in range(3):
        turn(loop)
    told = [call for call in scheduler.told if call[0] == "calibrate"]
    assert told == [("calibrate", Prices(copy_launch_ns=1.0), 1_000), ("calibrate", Prices(copy_launch_ns=2.0), 1_000)]
    assert [step_id for step_id, _ in calibrator.steps] == [1, 3], "a plan of copies only says nothing about steps"
