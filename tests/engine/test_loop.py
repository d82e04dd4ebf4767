"""The loop turn by turn, on a virtual clock: who hears what, when, and what a failing runner does."""

import threading

import pytest

from engine.core.errors import DuplicateRequestError, RequestTooLargeError
from engine.core.events import Admitted, Finished, Preempted, Resumed, TokensEmitted
from engine.core.requeues import NO_MEMORY
from engine.core.types import FinishReason, Nanos, PathNode, PauseReason, PriorityClass, Request
from engine.errors import RunnerFailedError
from engine.loop_messages import (
    Abort,
    Accepted,
    Grant,
    LoopStats,
    ReadStats,
    Refused,
    SetClass,
    SetReaderBlocked,
    Stop,
    Submit,
)
from tests.engine.loop_bench import CONFIG, Bench, Outlet
from tests.engine.wire import expected_tokens


@pytest.fixture
def bench():
    return Bench()


def test_request_is_accepted_admitted_and_served_to_its_end(bench):
    outlet = bench.submit("a")
    assert bench.until_idle() == 3
    assert outlet.kinds == [Accepted, Admitted, TokensEmitted, TokensEmitted, TokensEmitted, Finished]
    assert outlet.token_ids == expected_tokens(3)
    assert outlet.finished.reason is FinishReason.LENGTH


def test_idle_turn_computes_nothing(bench):
    assert not bench.turn()
    assert bench.runner.num_steps == 0
    assert bench.num_deliveries == 0


def test_acceptance_is_published_before_the_step_is_computed(bench):
    outlet = bench.submit("a")
    kinds_during_step = []
    execute = bench.runner.execute

    class Watching:
        def execute(self, plan):
            kinds_during_step.extend(outlet.kinds)
            return execute(plan)

    bench.loop._runner = Watching()
    bench.turn()
    assert kinds_during_step == [Accepted]


def test_a_step_is_published_in_one_go(bench):
    outlets = [bench.submit(name) for name in "abc"]
    bench.turn()
    num_before = bench.num_deliveries
    bench.turn()
    assert bench.num_deliveries == num_before + 1
    assert [len(outlet.token_ids) for outlet in outlets] == [2, 2, 2]


def test_updates_carry_the_time_of_the_turn_that_brought_them(bench):
    outlet = bench.submit("a")
    bench.turn()
    bench.clock.now_ns = 5_000
    bench.turn()
    assert outlet.times[0] == 1_000
    assert outlet.times[-1] == 5_000


def test_refusals_name_their_cause_and_leave_others_alone(bench):
    first = bench.submit("a")
    bench.loop.take_commands()
    duplicate, huge = bench.submit("a"), bench.submit("b", max_output_tokens=62)
    bench.until_idle()
    assert isinstance(duplicate.updates[0].error, DuplicateRequestError)
    assert isinstance(huge.updates[0].error, RequestTooLargeError)
    assert duplicate.kinds == huge.kinds == [Refused]
    assert first.token_ids == expected_tokens(3)


def test_abort_takes_effect_before_the_next_plan(bench):
    outlet = bench.submit("a", max_output_tokens=50)
    bench.turn()
    bench.loop.submit(Abort(outlet, "a", FinishReason.DEADLINE))
    num_steps = bench.runner.num_steps
    assert not bench.turn()
    assert bench.runner.num_steps == num_steps
    assert outlet.finished.reason is FinishReason.DEADLINE


def test_commands_of_a_refused_duplicate_do_not_reach_the_first(bench):
    first = bench.submit("a")
    duplicate = bench.submit("a")
    bench.loop.submit(Abort(duplicate, "a", FinishReason.CANCELLED))
    bench.loop.submit(SetReaderBlocked(duplicate, "a", blocked=True))
    bench.until_idle()
    assert first.finished.reason is FinishReason.LENGTH


def test_commands_after_the_end_are_harmless_even_if_the_id_lives_again(bench):
    first = bench.submit("a")
    bench.until_idle()
    second = bench.submit("a")
    for command in (Abort(first, "a", FinishReason.CANCELLED), Grant(first, "a", 1)):
        bench.loop.submit(command)
    bench.until_idle()
    assert first.finished.reason is second.finished.reason is FinishReason.LENGTH


def test_grant_reader_and_class_reach_the_scheduler(bench):
    outlet = bench.submit("a", max_output_tokens=6, granted_output_tokens=2)
    bench.until_idle()
    assert outlet.updates[-1].reason is PauseReason.QUOTA
    bench.loop.submit(Grant(outlet, "a", 6))
    bench.loop.submit(SetReaderBlocked(outlet, "a", blocked=True))
    bench.until_idle()
    bench.loop.submit(SetReaderBlocked(outlet, "a", blocked=False))
    bench.loop.submit(SetClass(outlet, "a", PriorityClass("batch", 200)))
    bench.until_idle()
    assert {Preempted, Resumed} <= set(outlet.kinds)
    assert outlet.token_ids == expected_tokens(6)


def test_deadline_that_passes_while_idle_wakes_the_loop(bench):
    outlet = bench.submit("a", granted_output_tokens=1, deadline=Nanos(9_000))
    bench.until_idle()
    assert bench.loop._sleep_s() == pytest.approx(8e-6)
    bench.clock.now_ns = 9_000
    assert bench.loop._sleep_s() == 0
    bench.loop.take_commands(wait=True)
    bench.turn()
    assert outlet.finished.reason is FinishReason.DEADLINE


def test_deadline_at_the_end_of_time_is_no_overflow(bench):
    bench.submit("a", granted_output_tokens=1, deadline=Nanos(bench.clock.now_ns + 2**63 - 1))
    bench.until_idle()
    assert bench.loop._sleep_s() <= threading.TIMEOUT_MAX


def test_failed_step_ends_every_request_and_the_loop_goes_on(bench):
    running = bench.submit("a", max_output_tokens=9)
    bench.turn()
    waiting = bench.submit("b", max_output_tokens=9)
    bench.runner.errors = [RuntimeError("boom")]
    bench.turn()
    for outlet in (running, waiting):
        assert outlet.finished.reason is FinishReason.ERROR
        assert "boom" not in outlet.finished.error
    assert running.token_ids == expected_tokens(1)
    later = bench.submit("a")
    bench.until_idle()
    assert later.token_ids == expected_tokens(3)


def test_step_without_memory_is_computed_again_and_its_requests_notice_nothing(bench):
    running = bench.submit("a", max_output_tokens=4)
    bench.turn()
    other = bench.submit("b", max_output_tokens=4)
    bench.runner.errors = [MemoryError("no room")]
    bench.turn()
    bench.until_idle()
    for outlet in (running, other):
        assert outlet.token_ids == expected_tokens(4)
        assert outlet.finished.reason is FinishReason.LENGTH
    assert [Preempted in outlet.kinds for outlet in (running, other)] == [True, True]
    assert running.finished.usage.num_preemptions == 1


def test_step_without_memory_twice_in_a_row_ends_its_requests_and_the_loop_goes_on(bench):
    outlet = bench.submit("a")
    bench.runner.errors = [MemoryError("no room")] * 2
    bench.turn()
    later = bench.submit("b", max_output_tokens=2)
    bench.loop.submit(Abort(later, "b", FinishReason.CANCELLED))
    bench.turn()
    assert outlet.finished.reason is FinishReason.ERROR
    assert outlet.finished.error == NO_MEMORY
    again = bench.submit("a")
    bench.until_idle()
    assert again.token_ids == expected_tokens(3)


def test_device_without_memory_three_times_in_a_row_ends_the_loop_after_everyone_was_told(bench):
    bench.runner.errors = [MemoryError("no room")] * 3
    outlets = []
    for name in "abc":
        outlets.append(bench.submit(name))
        bench.loop.take_commands()
        if name != "c":
            assert bench.loop.step()
    with pytest.raises(RunnerFailedError):
        bench.loop.step()
    assert all(outlet.finished.reason is FinishReason.ERROR for outlet in outlets)


def test_failures_with_a_step_between_them_are_forgiven(bench):
    for _ in range(5):
        bench.runner.errors = [RuntimeError("boom")]
        bench.submit("a")
        bench.turn()
        ok = bench.submit("b")
        bench.until_idle()
        assert ok.finished.reason is FinishReason.LENGTH


def test_third_failure_in_a_row_ends_the_loop_after_everyone_was_told(bench):
    bench.runner.errors = [RuntimeError("gone")] * 3
    for name in "ab":
        bench.submit(name)
        bench.turn()
    last = bench.submit("c")
    bench.loop.take_commands()
    with pytest.raises(RunnerFailedError):
        bench.loop.step()
    assert last.finished.reason is FinishReason.ERROR


def test_stats_count_steps_and_their_mean_length(bench):
    execute = bench.runner.execute

    class Slow:
        def execute(self, plan):
            bench.clock.now_ns += 2_000_000
            return execute(plan)

    bench.loop._runner = Slow()
    bench.submit("a")
    bench.until_idle()
    reply = Outlet()
    bench.loop.submit(ReadStats(reply))
    bench.turn()
    (stats,) = reply.updates
    assert isinstance(stats, LoopStats)
    assert stats.num_steps == 3
    assert stats.mean_step_ms == pytest.approx(2.0)
    assert stats.uptime_s == pytest.approx(0.006)
    assert stats.scheduler.num_free_blocks == CONFIG.num_device_blocks


def test_thread_serves_while_commands_come_and_ends_on_stop():
    bench = Bench()
    finished = threading.Event()

    class Ringing(Outlet):
        def put(self, update, at):
            super().put(update, at)
            if isinstance(update, Finished):
                finished.set()

    thread = threading.Thread(target=bench.loop.run)
    thread.start()
    outlet = Ringing()
    request = Request("a", (PathNode("acme", 1.0),), (5, 6), 3, bench.loop.now())
    bench.loop.submit(Submit(outlet, request))
    assert finished.wait(10)
    bench.loop.submit(Stop())
    thread.join(10)
    assert not thread.is_alive()
    assert outlet.token_ids == expected_tokens(3)
