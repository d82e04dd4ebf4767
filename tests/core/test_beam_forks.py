"""Searches in the scheduler: forks share blocks, branches that leave free theirs, and all is one request."""

import pytest

from engine.core import invariants
from engine.core.errors import InvariantError
from engine.core.events import Admitted, BeamFound, Finished, Preempted, Resumed
from engine.core.types import FinishReason, Nanos, PriorityClass, SamplingParams
from tests.builders import Driver, make_config, make_request, make_scheduler
from tests.core.searching import assert_found, found, make_search
from tests.core.stories import check_nothing_is_left


def make_driver(**fields) -> Driver:
    return Driver(make_scheduler(**({"max_num_seqs": 8, "max_num_batched_tokens": 64} | fields)))


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("length_penalty", [-1.0, 1.0])
@pytest.mark.parametrize("width", [2, 5])
def test_the_likeliest_outputs_are_found(width, length_penalty, early_stopping, prefix_caching):
    driver = make_driver(enable_prefix_caching=prefix_caching)
    for seed, num_stops in enumerate([0, 1, 20]):
        request = make_search(
            width=width,
            num_returned=width,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            seed=seed,
            stop_token_ids=frozenset(range(num_stops)),
            max_output_tokens=9,
        )
        driver.add(request)
        driver.run()
        assert_found(driver, request)
    check_nothing_is_left(driver)


def test_beams_are_computed_in_one_step_from_the_second_one_on():
    driver = make_driver()
    driver.add(make_search("g", width=4, max_output_tokens=6))
    assert [len(driver.chunks()) for _ in range(6)] == [1, 4, 4, 4, 4, 4]
    assert not driver.scheduler.has_unfinished


def test_nothing_is_told_before_the_end_and_then_the_best_comes_first():
    driver = make_driver()
    driver.add(make_search("g", width=4, num_returned=3, max_output_tokens=5))
    driver.run()
    assert [type(event) for event in driver.events] == [Admitted, BeamFound, BeamFound, BeamFound, Finished]
    scores = [score for score, _, _ in found(driver, "g")]
    assert scores == sorted(scores, reverse=True)


def test_usage_counts_the_prompt_once_and_each_token_of_each_beam():
    driver = make_driver()
    driver.add(make_search("g", width=4, prompt=10, max_output_tokens=5))
    driver.run()
    usage = driver.finished("g").usage
    assert (usage.num_prompt_tokens, usage.num_output_tokens, usage.num_recomputed_tokens) == (10, 1 + 4 * 4, 0)
    assert driver.finished("g").timings.num_decode_steps == 4
    (tenant,) = driver.scheduler.stats().tenants
    assert (tenant.num_prefill_tokens, tenant.num_output_tokens) == (10, 17)


def test_beams_share_the_full_blocks_and_copy_the_last_one():
    driver = make_driver(block_size=4)
    driver.add(make_search("g", width=3, prompt=10, max_output_tokens=8))
    driver.step()
    free = driver.scheduler.stats().num_free_blocks
    assert driver.scheduler.config.num_device_blocks - free == 2 + 3  # two full ones, and each its own third
    plan = driver.plan()
    assert len(plan.block_copies) == 2
    assert len(plan.chosen) == 1
    assert len(plan.started) == 2
    assert plan.num_tokens == (1, 1, 1)
    driver.commit(plan)
    driver.run()


def test_beams_without_a_child_free_their_blocks_and_rows_in_the_same_commit():
    driver = make_driver(block_size=1, num_device_blocks=64)
    driver.add(make_search("g", width=4, prompt=3, max_output_tokens=12))
    for _ in range(11):
        driver.step()
        members = driver.scheduler.lifecycle.by_generation["g"].of_request
        used = {block_id for seq in members for block_id in seq.block_table.device}
        assert driver.scheduler.stats().num_free_blocks == 64 - len(used)
        assert driver.scheduler.lifecycle.rows.num_free >= 8 - 4
    driver.step()
    check_nothing_is_left(driver)


def test_one_token_needs_no_fork():
    driver = make_driver(num_device_blocks=4)
    request = make_search("g", width=8, num_returned=8, prompt=12, max_output_tokens=1)
    driver.add(request)
    driver.run()
    assert_found(driver, request)


def test_log_probabilities_of_each_token_come_with_the_hypothesis():
    driver = make_driver()
    sampling = SamplingParams(temperature=0.0, num_logprobs=2)
    driver.add(make_search("g", width=3, num_returned=3, max_output_tokens=6, sampling=sampling))
    driver.run()
    for event in driver.events:
        if isinstance(event, BeamFound):
            told = event.hypothesis.logprobs
            assert len(told) == len(event.hypothesis.token_ids) == 6
            assert sum(entry.logprob for entry in told) == pytest.approx(event.hypothesis.cumulative_logprob)
            assert all(len(entry.top) == 2 for entry in told)


@pytest.mark.parametrize("num_blocks", [8, 12])
@pytest.mark.parametrize("num_host_blocks", [0, 3, 64])
@pytest.mark.parametrize("max_num_seqs", [1, 8])
@pytest.mark.parametrize("prefix_caching", [False, True])
def test_beams_that_give_way_find_what_they_would_have_found(num_blocks, num_host_blocks, max_num_seqs, prefix_caching):
    """Beams of two tenants and plain requests, in pools that hold only some of them."""
    driver = make_driver(
        num_device_blocks=num_blocks,
        num_host_blocks=num_host_blocks,
        max_num_seqs=max_num_seqs,
        block_size=4,
        max_model_len=64,
        growth_reserve_tokens=0,
        enable_prefix_caching=prefix_caching,
        scheduling="fair",
        preemption="over_served",
        min_resident_steps=1,
    )
    searches = [
        make_search(f"s{n}", tenant="ab"[n % 2], width=2, prompt=9, num_returned=2, max_output_tokens=7, seed=n)
        for n in range(3)
    ]
    plain = [make_request(f"p{n}", tenant="bc"[n % 2], prompt=6, max_output_tokens=10) for n in range(3)]
    for search, request in zip(searches, plain, strict=True):
        driver.add(search, request)
    driver.run()
    for search in searches:
        assert_found(driver, search)
    check_nothing_is_left(driver)


def test_a_search_that_is_preempted_says_so_once_and_resumes_once():
    driver = make_driver(num_device_blocks=12, num_host_blocks=64, block_size=2, max_model_len=64)
    driver.add(make_search("g", width=3, prompt=6, max_output_tokens=4))
    driver.step()
    driver.step()
    driver.add(make_request("x", prompt=6, max_output_tokens=12))
    driver.run()
    kinds = [type(e) for e in driver.events if e.key.generation_id == "g" and isinstance(e, Preempted | Resumed)]
    assert kinds == [Preempted, Resumed] * (len(kinds) // 2)
    timings = driver.finished("g").timings
    assert 0 <= timings.preempted_ns <= timings.prefill_ns + timings.decode_ns


@pytest.mark.parametrize("num_steps", range(7))
def test_cancel_in_the_middle_frees_everything(num_steps):
    driver = make_driver(num_device_blocks=24)
    driver.add(make_search("g", width=4, max_output_tokens=9))
    for _ in range(num_steps):
        driver.step()
    plan = driver.plan()
    driver.abort("g")
    driver.commit(plan)
    assert driver.finished("g").reason is FinishReason.CANCELLED
    assert not found(driver, "g")
    assert driver.finished("g").usage.num_output_tokens == (1 + 4 * (num_steps - 1) if num_steps else 0)
    check_nothing_is_left(driver)


def test_deadline_ends_the_search():
    driver = make_driver()
    driver.add(make_search("g", width=3, max_output_tokens=9, deadline=Nanos(3_000_000)))
    driver.run()
    assert driver.finished("g").reason is FinishReason.DEADLINE
    check_nothing_is_left(driver)


def test_values_that_are_not_finite_in_one_beam_end_the_request():
    driver = make_driver()
    driver.add(make_search("g", width=3, max_output_tokens=9), make_request("x"))
    driver.step()
    driver.runner.errors["g"] = "numbers went wrong"
    driver.run()
    assert (driver.finished("g").reason, driver.finished("g").error) == (FinishReason.ERROR, "numbers went wrong")
    assert driver.finished("x").reason is FinishReason.LENGTH
    check_nothing_is_left(driver)


def test_a_lost_step_ends_the_search_once():
    driver = make_driver()
    driver.add(make_search("g", width=3, max_output_tokens=9))
    driver.step()
    driver.plan()
    driver.events += driver.scheduler.fail_all("the step failed", driver.now)
    assert driver.finished("g").reason is FinishReason.ERROR
    check_nothing_is_left(driver)


def test_change_of_class_moves_all_beams():
    driver = make_driver(scheduling="fair")
    request = make_search("g", width=4, max_output_tokens=6)
    driver.add(request)
    driver.step()
    driver.scheduler.set_class("g", PriorityClass("batch", 5), driver.now)
    flows = {seq.flow.priority_class.name for seq in driver.scheduler.lifecycle.by_generation["g"].of_request}
    assert flows == {"batch"}
    driver.run()
    assert_found(driver, request)


def test_penalties_and_speculation_do_not_stand_in_the_way():
    driver = make_driver(num_draft_tokens=4)
    request = make_search("g", width=3, max_output_tokens=8)
    driver.add(request, make_request("x", max_output_tokens=20))
    driver.run()
    assert_found(driver, request)
    assert driver.finished("g").usage.num_drafted_tokens == 0


def test_a_search_is_one_request_in_the_list_and_in_the_queue():
    driver = make_driver(max_num_seqs=2, num_device_blocks=24)
    driver.add(make_search("g", width=4, max_output_tokens=9), make_request("x"))
    for _ in range(4):
        driver.step()
        order = driver.scheduler.queue_order(driver.now)
        assert len(set(order.generation_ids)) == len(order.generation_ids) == order.num_waiting
        seq = driver.scheduler.lifecycle.by_generation["g"]
        told = driver.scheduler.explain(seq, order, driver.now)
        assert told.request.generation_id == "g"
        assert told.request.arrival_index == seq.arrival_index
        assert told.request.max_output_tokens == 36
        assert told.blocked_by != "siblings"
    driver.run()


def test_tenants_are_served_alike_whether_they_search_or_not():
    """Both are backlogged all the time: each gets half of the tokens, whatever they are for."""
    driver = make_driver(scheduling="fair", preemption="over_served", max_num_seqs=4, num_device_blocks=60)
    for number in range(6):
        driver.add(make_search(f"s{number}", tenant="a", width=4, prompt=8, max_output_tokens=20))
    for number in range(24):
        driver.add(make_request(f"p{number}", tenant="b", prompt=8, max_output_tokens=20))
    config, worst = make_config(), 0.0
    for _ in range(60):
        driver.step()
        tenants = driver.scheduler.stats().tenants
        served = {each.tenant_id[-1]: each.num_prefill_tokens + 2 * each.num_output_tokens for each in tenants}
        worst = max(worst, abs(served["a"] - served["b"]))
    bound = driver.scheduler.stats().gap_bound
    assert bound is not None
    assert worst <= bound + config.max_num_batched_tokens
    driver.run()


@pytest.mark.parametrize("field", ["num_round_tokens", "num_given", "num_suspended"])
def test_invariants_notice_beams_that_were_counted_wrong(field):
    driver = make_driver()
    driver.add(make_search("g", max_output_tokens=6))
    driver.step()
    group = driver.scheduler.lifecycle.by_generation["g"].beam.group
    setattr(group, field, getattr(group, field) + 1)
    with pytest.raises(InvariantError, match="beams live"):
        invariants.check(driver.scheduler)
