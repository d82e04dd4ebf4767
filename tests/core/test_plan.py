"""What a step computes: exact plans of small cases."""

import pytest

from engine.core.errors import DuplicateRequestError, RequestTooLargeError, StaleOutputError
from engine.core.plan import RowStart, StepOutput, StepPlan
from engine.core.types import Nanos, SamplingParams, SequenceKey
from tests.builders import Driver, make_request, make_scheduler


def test_an_empty_scheduler_has_nothing_to_do():
    assert make_scheduler().plan(Nanos(0)) is None


def test_the_plans_of_one_request_from_first_chunk_to_last_token():
    driver = Driver(make_scheduler(max_num_batched_tokens=4, block_size=4, num_device_blocks=8))
    driver.add(make_request("g", prompt=[10, 11, 12, 13, 14, 15], max_output_tokens=3, sampling=SamplingParams(seed=1)))
    driver.run()

    start = RowStart(
        row=0,
        key=SequenceKey("g", 0),
        token_ids=(10, 11, 12, 13, 14, 15),
        num_prompt_tokens=6,
        block_ids=(0,),
        sampling=SamplingParams(seed=1),
    )
    assert driver.plans == [
        StepPlan(1, started=(start,), rows=(0,), starts=(0,), num_tokens=(4,), samples=(False,)),
        StepPlan(2, new_blocks=((0, (1,)),), rows=(0,), starts=(4,), num_tokens=(2,), samples=(True,)),
        StepPlan(3, rows=(0,), starts=(6,), num_tokens=(1,), samples=(True,)),
        StepPlan(4, rows=(0,), starts=(7,), num_tokens=(1,), samples=(True,)),
    ]


def test_a_row_that_ended_is_stopped_and_taken_over_by_the_next_request():
    driver = Driver(make_scheduler(max_num_seqs=1))
    driver.add(make_request("a", prompt=4, max_output_tokens=1), make_request("b", prompt=4, max_output_tokens=1))
    driver.run()

    second = driver.plans[1]
    assert second.stopped == (0,)
    assert [(start.row, start.key.generation_id) for start in second.started] == [(0, "b")]


def test_decodes_run_beside_the_chunks_of_a_prompt():
    driver = Driver(make_scheduler(max_num_batched_tokens=8))
    driver.add(make_request("short", prompt=4, max_output_tokens=9))
    driver.step()
    driver.add(make_request("long", prompt=20, max_output_tokens=9))

    assert driver.chunks() == [("short", 4, 1), ("long", 0, 7)]
    assert driver.chunks() == [("short", 5, 1), ("long", 7, 7)]
    assert driver.chunks() == [("short", 6, 1), ("long", 14, 6)]
    assert driver.chunks() == [("short", 7, 1), ("long", 20, 1)]


def test_a_running_prompt_goes_on_before_another_is_admitted():
    driver = Driver(make_scheduler(max_num_batched_tokens=8))
    driver.add(make_request("first", prompt=12), make_request("second", prompt=12))

    assert driver.chunks() == [("first", 0, 8)]
    assert driver.chunks() == [("first", 8, 4), ("second", 0, 4)]
    assert driver.chunks() == [("first", 12, 1), ("second", 4, 7)]


def test_running_prompts_go_on_in_the_order_of_the_policy():
    driver = Driver(make_scheduler("vtc", max_num_batched_tokens=8, max_prefill_share=0.5))
    driver.add(make_request("large", tenant="a", prompt=40), make_request("small", tenant="b", prompt=20))

    assert driver.chunks() == [("large", 0, 4), ("small", 0, 4)]
    assert driver.chunks() == [("small", 4, 4), ("large", 4, 4)]  # b was charged less


def test_columns_begin_with_the_chunks_of_one_token():
    driver = Driver(make_scheduler(max_num_batched_tokens=8))
    driver.add(make_request("long", prompt=6), make_request("single", prompt=1))

    assert driver.chunks() == [("single", 0, 1), ("long", 0, 6)]


def test_no_more_sequences_run_than_there_are_rows():
    driver = Driver(make_scheduler(max_num_seqs=2))
    driver.add(*(make_request(name, prompt=2, max_output_tokens=2) for name in "abc"))

    assert driver.chunks() == [("a", 0, 2), ("b", 0, 2)]
    assert driver.chunks() == [("a", 2, 1), ("b", 2, 1)]
    assert driver.chunks() == [("c", 0, 2)]


def test_a_request_that_ends_makes_way_in_the_next_step():
    driver = Driver(make_scheduler(max_num_seqs=2))
    driver.add(
        make_request("short", prompt=2, max_output_tokens=2),
        make_request("long", prompt=2, max_output_tokens=9),
        make_request("next", prompt=2),
    )
    driver.step()
    driver.step()

    assert driver.chunks() == [("long", 3, 1), ("next", 0, 2)]


def test_without_chunks_a_prompt_waits_until_a_step_has_room_for_all_of_it():
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 16, "enable_chunked_prefill": False}
    driver = Driver(make_scheduler(**limits))
    driver.add(
        make_request("a", prompt=10, max_output_tokens=3),
        make_request("b", prompt=10, max_output_tokens=2),
        make_request("c", prompt=2, max_output_tokens=2),
    )

    assert driver.chunks() == [("a", 0, 10)]  # c fits but does not pass b
    assert driver.chunks() == [("a", 10, 1), ("b", 0, 10), ("c", 0, 2)]


def test_a_prompt_takes_its_share_of_a_step_while_others_want_tokens():
    driver = Driver(make_scheduler(max_num_batched_tokens=8, max_prefill_share=0.5))
    driver.add(make_request("long", prompt=40), make_request("other", prompt=40))

    assert driver.chunks() == [("long", 0, 4), ("other", 0, 4)]
    assert driver.chunks() == [("long", 4, 4), ("other", 4, 4)]


def test_what_nobody_else_can_use_goes_round_again():
    driver = Driver(make_scheduler(max_num_batched_tokens=16, max_prefill_share=0.25))
    driver.add(make_request("long", prompt=40), make_request("longer", prompt=60), make_request("short", prompt=2))

    assert driver.chunks() == [("long", 0, 8), ("longer", 0, 6), ("short", 0, 2)]


def test_a_prompt_that_is_alone_takes_the_whole_step():
    driver = Driver(make_scheduler(max_num_batched_tokens=16, max_prefill_share=0.25))
    driver.add(make_request("long", prompt=40))

    assert driver.chunks() == [("long", 0, 16)]


def test_short_prompts_do_not_wait_out_a_long_one():
    driver = Driver(
        make_scheduler(max_num_seqs=8, max_num_batched_tokens=16, max_prefill_share=0.5, max_model_len=4096)
    )
    driver.add(make_request("long", prompt=100))
    driver.step()
    for number in range(4):
        driver.add(make_request(f"short{number}", prompt=4, max_output_tokens=1))
    steps = 0
    while len(driver.output("short3")) == 0:
        driver.step()
        steps += 1

    assert steps <= 3
    assert driver.output("long") == []


def test_a_waiting_request_that_does_not_fit_ends_admission_but_not_running_work():
    driver = Driver(make_scheduler(num_device_blocks=8, block_size=4, growth_reserve_tokens=0))
    driver.add(make_request("running", prompt=16, max_output_tokens=8))
    driver.step()
    driver.add(make_request("large", prompt=20, max_output_tokens=4), make_request("small", prompt=4))

    assert driver.chunks() == [("running", 16, 1)]


def test_admission_leaves_room_for_what_running_prompts_still_need():
    driver = Driver(make_scheduler(num_device_blocks=8, max_num_batched_tokens=4, max_prefill_share=0.5))
    driver.add(make_request("first", prompt=24, max_output_tokens=4), make_request("second", prompt=8))

    # "first" has taken 1 of 8 blocks, but will need 7 of them.
    assert driver.chunks() == [("first", 0, 4)]
    assert driver.chunks() == [("first", 4, 4)]


def test_admission_leaves_room_to_grow():
    driver = Driver(make_scheduler(num_device_blocks=8, block_size=4, growth_reserve_tokens=8))
    driver.add(make_request("first", prompt=12, max_output_tokens=20), make_request("second", prompt=8))

    # Known tokens take 3 + 2 blocks, growth 2 + 1: that fits. A ninth block would not.
    assert driver.chunks() == [("first", 0, 12), ("second", 0, 8)]
    driver = Driver(make_scheduler(num_device_blocks=8, block_size=4, growth_reserve_tokens=12))
    driver.add(
        make_request("first", prompt=12, max_output_tokens=20), make_request("second", prompt=8, max_output_tokens=5)
    )

    assert driver.chunks() == [("first", 0, 12)]


def test_a_request_that_can_never_fit_is_refused_alone():
    scheduler = make_scheduler(num_device_blocks=4, block_size=4)
    driver = Driver(scheduler)
    driver.add(fitting := make_request(prompt=12, max_output_tokens=4))

    with pytest.raises(RequestTooLargeError, match="17 tokens, a single request can hold 16") as refusal:
        driver.add(make_request(prompt=12, max_output_tokens=5))
    driver.run()

    assert (refusal.value.num_tokens, refusal.value.max_tokens) == (17, 16)
    assert len(driver.output(fitting.generation_id)) == 4


def test_a_request_longer_than_the_context_is_refused():
    with pytest.raises(RequestTooLargeError):
        make_scheduler(max_model_len=15).add(make_request(prompt=12, max_output_tokens=4), Nanos(0))


def test_a_generation_id_that_is_known_is_refused_until_it_has_ended():
    driver = Driver(make_scheduler())
    driver.add(make_request("g"))
    with pytest.raises(DuplicateRequestError, match="generation g "):
        driver.add(make_request("g"))

    driver.run()
    driver.add(make_request("g"))


def test_an_output_of_another_step_is_refused_and_changes_nothing():
    driver = Driver(make_scheduler())
    driver.add(make_request("g", prompt=4, max_output_tokens=1))
    plan = driver.plan()

    with pytest.raises(StaleOutputError):
        driver.scheduler.commit(StepOutput(plan.step_id + 1, {0: (7,)}), Nanos(1))
    driver.commit(plan)

    assert len(driver.output("g")) == 1


def test_an_output_without_a_result_for_a_row_that_samples_is_refused_and_changes_nothing():
    driver = Driver(make_scheduler())
    driver.add(make_request("g", prompt=4, max_output_tokens=1))
    plan = driver.plan()

    with pytest.raises(StaleOutputError, match="row 0"):
        driver.scheduler.commit(StepOutput(plan.step_id), Nanos(1))
    driver.commit(plan)

    assert len(driver.output("g")) == 1


def test_no_output_is_accepted_when_no_plan_is_open():
    with pytest.raises(StaleOutputError):
        make_scheduler().commit(StepOutput(1), Nanos(0))


def test_one_plan_is_open_at_a_time():
    driver = Driver(make_scheduler())
    driver.add(make_request())
    driver.plan()

    with pytest.raises(AssertionError, match="not committed"):
        driver.scheduler.plan(Nanos(0))
