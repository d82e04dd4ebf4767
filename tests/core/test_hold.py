"""Sequences that may not go on: their output is not granted, or their reader takes no more."""

from engine.core.events import Admitted, Finished, Preempted, Resumed, TokensEmitted
from engine.core.types import FinishReason, PauseReason, PreemptionMode, PriorityClass, SequenceKey
from tests.builders import Driver, make_request, make_scheduler
from tests.fakes import expected_output

KEY = SequenceKey("g", 0)


def block(driver: Driver, generation_id: str) -> None:
    driver.scheduler.set_reader_blocked(generation_id, blocked=True, now=driver.now)


def unblock(driver: Driver, generation_id: str) -> None:
    driver.scheduler.set_reader_blocked(generation_id, blocked=False, now=driver.now)


def test_a_request_pauses_when_its_grant_is_used_up_and_goes_on_when_it_is_raised():
    driver = Driver(make_scheduler())
    request = make_request("g", prompt=8, max_output_tokens=5, granted_output_tokens=2)
    driver.add(request)
    driver.run()
    assert driver.output("g") == expected_output(request)[:2]

    driver.scheduler.grant("g", 5, driver.now)
    driver.run()

    assert driver.output("g") == expected_output(request)
    assert [event for event in driver.events if not isinstance(event, TokensEmitted)][:-1] == [
        Admitted(KEY, 0),
        Preempted(KEY, PreemptionMode.PAUSE, PauseReason.QUOTA),
        Resumed(KEY),
    ]


def test_a_paused_sequence_keeps_its_blocks_and_leaves_its_row():
    driver = Driver(make_scheduler(max_num_seqs=1))
    driver.add(
        make_request("g", prompt=8, max_output_tokens=5, granted_output_tokens=1), make_request("next", prompt=4)
    )
    driver.step()

    assert driver.chunks() == [("next", 0, 4)]
    assert driver.plans[-1].stopped == (0,)
    assert len(driver.scheduler.lifecycle.by_generation["g"].block_table.device) == 2
    driver.run()
    driver.scheduler.grant("g", 5, driver.now)
    driver.step()

    (start,) = driver.plans[-1].started
    assert (len(start.token_ids), start.num_prompt_tokens) == (9, 8)
    assert driver.plans[-1].starts == (8,)  # nothing is computed again
    driver.run()
    assert driver.finished("g").usage.num_recomputed_tokens == 0


def test_a_request_without_a_grant_is_not_computed():
    driver = Driver(make_scheduler())
    driver.add(make_request("g", granted_output_tokens=0))

    assert driver.plan() is None
    assert driver.scheduler.stats().num_paused == 1

    driver.scheduler.grant("g", 4, driver.now)
    driver.run()
    assert driver.finished("g").reason is FinishReason.LENGTH


def test_the_token_of_the_open_plan_is_delivered_before_a_blocked_reader_pauses_the_request():
    driver = Driver(make_scheduler())
    driver.add(make_request("g", prompt=4))
    plan = driver.plan()
    block(driver, "g")

    events = driver.commit(plan)

    assert [type(event) for event in events] == [Admitted, TokensEmitted, Preempted]
    assert driver.plan() is None


def test_a_reader_that_was_blocked_only_while_the_plan_was_open_changes_nothing():
    driver = Driver(make_scheduler())
    driver.add(make_request("g", prompt=4))
    plan = driver.plan()
    block(driver, "g")
    unblock(driver, "g")
    driver.commit(plan)
    driver.run()

    assert not [event for event in driver.events if isinstance(event, Preempted)]


def test_a_request_held_while_it_waits_keeps_its_place():
    driver = Driver(make_scheduler(max_num_seqs=1))
    driver.add(*(make_request(name, prompt=4, max_output_tokens=3) for name in ("running", "first", "second")))
    driver.step()
    block(driver, "first")
    unblock(driver, "first")
    driver.run()

    starts = [start.key.generation_id for plan in driver.plans for start in plan.started]
    assert starts == ["running", "first", "second"]


def test_held_sequences_are_the_first_victims_whatever_the_policy_says():
    driver = Driver(make_scheduler(num_device_blocks=8, growth_reserve_tokens=0))
    driver.add(make_request("held", prompt=12, max_output_tokens=16, granted_output_tokens=1))
    driver.add(make_request("other", prompt=12, max_output_tokens=16))
    driver.run()
    assert driver.finished("other").usage.num_preemptions == 0
    assert driver.scheduler.lifecycle.by_generation["held"].num_preemptions == 1

    driver.scheduler.grant("held", 16, driver.now)
    driver.run()
    assert driver.finished("held").usage.num_recomputed_tokens == 12


def test_held_sequences_give_way_to_a_request_that_would_not_fit():
    driver = Driver(make_scheduler(num_device_blocks=8))
    driver.add(make_request("held", prompt=16, max_output_tokens=16, granted_output_tokens=1))
    driver.run()
    driver.add(make_request("next", prompt=24, max_output_tokens=4))

    assert driver.chunks() == [("next", 0, 24)]


def test_held_sequences_keep_their_blocks_if_those_would_not_suffice():
    driver = Driver(make_scheduler(num_device_blocks=12))
    driver.add(make_request("held", prompt=4, max_output_tokens=4, granted_output_tokens=1))
    driver.add(make_request("running", prompt=16, max_output_tokens=16))
    driver.step()
    driver.add(make_request("large", prompt=32, max_output_tokens=4))
    driver.step()

    assert driver.scheduler.lifecycle.by_generation["held"].num_preemptions == 0


def test_nobody_stops_the_engine_by_not_reading():
    driver = Driver(make_scheduler(num_device_blocks=8, max_num_seqs=2))
    for number in range(6):
        driver.add(make_request(f"blocked{number}", tenant="slow", prompt=8, max_output_tokens=8))
    driver.step()
    for number in range(6):
        block(driver, f"blocked{number}")
    driver.add(make_request("other", prompt=20, max_output_tokens=12))
    driver.run()

    assert driver.finished("other").reason is FinishReason.LENGTH


def test_what_resumes_takes_the_next_free_row_before_anyone_is_admitted():
    driver = Driver(make_scheduler(max_num_seqs=1))
    driver.add(make_request("g", prompt=4, max_output_tokens=3, granted_output_tokens=1))
    driver.step()
    driver.add(make_request("running", prompt=4, max_output_tokens=3), make_request("waiting", prompt=4))
    driver.step()
    driver.scheduler.grant("g", 3, driver.now)
    driver.run()

    starts = [start.key.generation_id for plan in driver.plans for start in plan.started]
    assert starts == ["g", "running", "g", "waiting"]


def test_what_is_preempted_while_it_resumes_does_not_return_in_the_same_plan():
    driver = Driver(make_scheduler(num_device_blocks=8, growth_reserve_tokens=0))
    for name in ("first", "second"):
        driver.add(make_request(name, prompt=16, max_output_tokens=8, granted_output_tokens=1))
    driver.step()
    driver.scheduler.grant("first", 8, driver.now)
    driver.scheduler.grant("second", 8, driver.now)

    assert driver.chunks() == [("first", 16, 1)]
    assert driver.scheduler.stats().num_waiting == 1


def test_tokens_computed_for_the_third_time_are_not_taken_for_new():
    driver = Driver(make_scheduler(num_device_blocks=8, max_num_batched_tokens=4))
    driver.add(request := make_request("g", prompt=12, max_output_tokens=2))
    for number in range(2):
        while driver.scheduler.lifecycle.by_generation["g"].num_computed_tokens < (12, 4)[number]:
            driver.step()
        block(driver, "g")
        driver.add(make_request(f"large{number}", tenant="b", prompt=28))
        driver.run()
        unblock(driver, "g")
    driver.run()

    assert driver.output("g") == expected_output(request)
    assert driver.finished("g").usage.num_preemptions == 2
    assert driver.finished("g").usage.num_recomputed_tokens == 4 + 12
    assert driver.scheduler.stats().tenants[0].num_prefill_tokens == 12


def test_a_prompt_can_be_paused_half_way():
    driver = Driver(make_scheduler(max_num_batched_tokens=4))
    request = make_request("g", prompt=12)
    driver.add(request)
    driver.step()
    block(driver, "g")
    assert driver.plan() is None

    unblock(driver, "g")
    assert driver.chunks() == [("g", 4, 4)]
    driver.run()
    assert driver.output("g") == expected_output(request)


def test_commands_for_a_request_that_has_ended_do_nothing():
    scheduler = make_scheduler()
    driver = Driver(scheduler)

    scheduler.grant("gone", 4, driver.now)
    scheduler.set_reader_blocked("gone", blocked=True, now=driver.now)
    scheduler.set_class("gone", PriorityClass("other"), driver.now)

    assert driver.abort("gone") == []


def test_a_class_that_is_set_governs_the_request():
    driver = Driver(make_scheduler())
    driver.add(make_request("g"))

    driver.scheduler.set_class("g", PriorityClass("batch", rank=200), driver.now)

    assert driver.scheduler.lifecycle.by_generation["g"].priority_class.rank == 200


def test_a_paused_request_that_is_aborted_gives_its_blocks_back():
    driver = Driver(make_scheduler())
    driver.add(make_request("g", granted_output_tokens=1))
    driver.run()
    assert driver.scheduler.stats().num_free_blocks < 64

    events = driver.abort("g")

    assert [type(event) for event in events] == [Finished]
    assert driver.scheduler.stats().num_free_blocks == 64
