"""Blocks that several prompts share: who has them, who loses them, and what is left after faults."""

import random
from collections import abc

import pytest

from engine.core.config import PreemptionChoice
from engine.core.policy import Concession
from engine.core.types import FinishReason, PriorityClass, SamplingParams, SequenceStatus
from engine.plugins import load_preemption_policy, load_scheduling_policy
from tests.builders import Driver, make_request, make_scheduler
from tests.core.prefixes import COMMON, make_caching, served
from tests.core.scripted import Scripted, end_copies, make_driver, seq_of, status_of
from tests.fakes import expected_output


class TestMemory:
    def test_what_is_shared_takes_its_room_once(self):
        driver = make_caching(num_device_blocks=12, growth_reserve_tokens=0)
        served(driver, make_request("w", prompt=COMMON, max_output_tokens=1))
        driver.add(*[make_request(name, prompt=[*COMMON, 7, ord(name)], max_output_tokens=2) for name in "abcd"])
        driver.step()

        seqs = list(driver.scheduler.lifecycle.running)
        assert len(seqs) == 4
        assert driver.scheduler.stats().num_free_blocks == 0
        assert seqs[0].flow.num_device_blocks == 8 + 4
        assert len({block_id for seq in seqs for block_id in seq.block_table.device}) == 12

    def test_blocks_of_a_changed_class_count_there(self):
        driver = make_caching()
        served(driver, make_request("w", prompt=COMMON, max_output_tokens=1))
        driver.add(*[make_request(name, prompt=[*COMMON, 7, ord(name)]) for name in "ab"])
        driver.step()
        driver.scheduler.set_class("a", PriorityClass("batch", 5), driver.now)

        counts = {flow.priority_class.name: flow.num_device_blocks for flow in driver.scheduler.lifecycle.flows.all()}
        assert counts == {"default": 9, "batch": 9}
        driver.run()  # which checks that the counts stay right

    def test_an_end_leaves_the_blocks_to_those_that_still_read_them(self):
        driver = make_caching()
        served(driver, make_request("w", prompt=COMMON, max_output_tokens=1))
        requests = [make_request(name, prompt=[*COMMON, 7, ord(name)], max_output_tokens=9) for name in "ab"]
        driver.add(*requests)
        driver.step()
        driver.abort("a")
        driver.run()

        assert driver.output("b") == expected_output(requests[1])

    def test_a_flood_leaves_what_others_have_cached_within_their_floor(self):
        driver = make_caching(num_device_blocks=40, cache_min_share=0.25, max_num_seqs=2)
        served(driver, make_request("warm", tenant="b", prompt=COMMON, max_output_tokens=1))
        for number in range(12):  # three times the pool
            served(driver, make_request(tenant="a", prompt=[number, *range(39)], max_output_tokens=1))

        assert driver.scheduler.stats().cache.num_evicted > 40
        assert served(driver, make_request("again", tenant="b", prompt=COMMON)) == [31]

    def test_a_flood_evicts_what_others_have_cached_where_there_is_no_floor(self):
        driver = make_caching(num_device_blocks=40, cache_min_share=0.0, max_num_seqs=2)
        served(driver, make_request("warm", tenant="b", prompt=COMMON, max_output_tokens=1))
        for number in range(12):
            served(driver, make_request(tenant="a", prompt=[number, *range(39)], max_output_tokens=1))

        assert served(driver, make_request("again", tenant="b", prompt=COMMON)) == [0]

    def test_nobody_keeps_more_than_the_ceiling(self):
        driver = make_caching(num_device_blocks=40, cache_min_share=0.0, cache_max_share=0.1)
        served(driver, make_request(prompt=COMMON, max_output_tokens=1))

        stats = driver.scheduler.stats()
        assert (stats.cache.num_kept, stats.tenants[0].num_kept_blocks, stats.num_free_blocks) == (4, 4, 40)
        assert served(driver, make_request(prompt=[*COMMON, 5])) == [16]  # the end of a sequence goes first


class TestPreemption:
    def test_what_is_computed_again_is_found_as_far_as_it_is_left(self):
        driver = make_caching(num_device_blocks=8, growth_reserve_tokens=0, max_num_batched_tokens=12)
        requests = [
            make_request("old", prompt=12, max_output_tokens=16),
            make_request("new", prompt=12, max_output_tokens=10),
        ]
        driver.add(*requests)
        driver.run()

        usage = driver.finished("new").usage
        assert usage.num_preemptions == 1
        assert usage.num_recomputed_tokens < 14
        assert usage.num_cached_prompt_tokens == 0
        assert [driver.output(request.generation_id) for request in requests] == list(map(expected_output, requests))

    def test_blocks_that_others_read_stay_where_they_are(self):
        policy = Scripted(first="b", yielding="a", concedes={"a": Concession.ANYTHING})
        driver = make_driver(policy, num_device_blocks=12, enable_prefix_caching=True, max_num_seqs=8)
        served(driver, make_request("w", tenant="a", prompt=COMMON[:16], max_output_tokens=1))
        requests = [make_request(f"a{n}", tenant="a", prompt=[*COMMON[:16], n], max_output_tokens=12) for n in range(3)]
        driver.add(*requests)
        driver.step()
        shared = set(seq_of(driver, "a0").block_table.device[:4])
        driver.add(make_request("b", tenant="b", prompt=24, max_output_tokens=4))
        while status_of(driver, "b") is SequenceStatus.WAITING:
            for entry in driver.scheduler.lifecycle.blocks.in_flight.values():
                assert not shared & set(entry.copy.device_block_ids)
            driver.step()
        driver.run()

        assert [driver.output(request.generation_id) for request in requests] == list(map(expected_output, requests))

    def test_nobody_finds_a_block_while_it_is_copied_and_everybody_does_afterwards(self):
        policy = Scripted(first="b", yielding="a", concedes={"a": Concession.ANYTHING})
        driver = make_driver(policy, is_late=True, enable_prefix_caching=True, partial_swap=False)
        driver.add(make_request("a", tenant="a", prompt=COMMON[:24], max_output_tokens=8))
        driver.step()
        driver.add(make_request("b", tenant="b", prompt=16, max_output_tokens=1))
        driver.step()
        assert status_of(driver, "a") is SequenceStatus.SWAPPING_OUT
        driver.add(make_request("late", tenant="a", prompt=COMMON[:24], max_output_tokens=1))
        assert seq_of(driver, "late").num_cached_prompt_tokens == 0

        end_copies(driver)
        driver.step()
        driver.wait()

        assert seq_of(driver, "late").num_cached_prompt_tokens == 23
        driver.runner.copies.max_delay = 0
        driver.runner.copies.random = random.Random(0)
        driver.run()
        assert driver.finished("late").usage.num_cached_prompt_tokens > 0


class TestFaults:
    def test_what_failed_is_not_found(self):
        driver = make_caching()
        driver.add(make_request("bad", prompt=COMMON))
        driver.runner.errors["bad"] = "numbers went wrong"
        driver.run()

        assert driver.finished("bad").reason is FinishReason.ERROR
        assert served(driver, make_request("b", prompt=COMMON)) == [0]

    def test_nothing_is_found_after_a_lost_step(self):
        driver = make_caching()
        served(driver, make_request("a", prompt=COMMON))
        driver.add(make_request("b", prompt=[*COMMON, 1]))
        driver.runner.execute(driver.plan())
        driver.events += driver.scheduler.fail_all("lost", driver.now)
        driver.runner.cache.clear()

        assert driver.scheduler.stats().cache.num_named == 0
        assert served(driver, make_request("c", prompt=COMMON)) == [0]

    @pytest.mark.parametrize("num_steps", range(6))
    def test_an_abort_at_any_time_keeps_what_is_complete(self, num_steps: int):
        driver = make_caching(max_num_batched_tokens=8)
        driver.add(make_request("a", prompt=COMMON, max_output_tokens=2))
        for _ in range(num_steps):
            driver.step()
        driver.abort("a")

        assert served(driver, make_request("b", prompt=COMMON)) == [min(31, 8 * num_steps)]


def traffic(seed: int) -> abc.Iterator[tuple[int, object]]:
    """Requests with the step before which each one comes: conversations, shared beginnings, and lone prompts."""
    source, step = random.Random(seed), 0
    texts = [[source.randrange(97) for _ in range(60)] for _ in range(4)]
    for number in range(30):
        step += source.randrange(4)
        text = texts[source.randrange(4)][: source.randrange(1, 50)]
        prompt = [*text, *[source.randrange(97) for _ in range(source.randrange(0, 6))]] or [1]
        yield (
            step,
            make_request(
                f"g{number}",
                tenant=source.choice("abc"),
                prompt=prompt,
                max_output_tokens=source.randrange(1, 20),
                cache_salt=source.choice([b"", b"public"]),
                sampling=SamplingParams(seed=number % 3),
            ),
        )


@pytest.mark.parametrize("mode", list(PreemptionChoice))
@pytest.mark.parametrize("seed", range(4))
def test_the_cache_changes_no_output(seed: int, mode: PreemptionChoice):
    limits = {
        "num_device_blocks": 30,
        "num_host_blocks": 0 if mode is PreemptionChoice.RECOMPUTE else 40,
        "preemption_mode": mode,
        "growth_reserve_tokens": 0,
        "max_num_seqs": 6,
        "max_num_batched_tokens": 6 + 5 * seed,
        "partial_swap": seed % 2 == 0,
        "min_resident_steps": 0,
    }
    scheduling = load_scheduling_policy(("fair", "fcfs", "priority", "srpt")[seed], {})
    victims = load_preemption_policy("over_served", {})
    scheduler = make_scheduler(scheduling, victims, enable_prefix_caching=True, **limits)
    driver = Driver(scheduler, max_copy_delay=seed, seed=seed)
    requests = []
    for step, request in traffic(seed):
        while len(driver.plans) < step and driver.scheduler.has_unfinished:
            driver.step()
        driver.add(request)
        requests.append(request)
    driver.run()

    assert [driver.output(request.generation_id) for request in requests] == list(map(expected_output, requests))
    assert sum(driver.finished(request.generation_id).usage.num_cached_prompt_tokens for request in requests) > 100
    driver.scheduler.lifecycle.blocks.forget_cached()
    assert len(list(driver.scheduler.lifecycle.blocks.pool.free_ids)) == 30
