"""Prompts that find a part of a block: it is copied, and nobody waits, pays or reads more than that is worth."""

import random

import pytest

from engine.core.costs import Prices, StepCosts
from engine.core.policy import Concession, Service
from engine.core.types import FinishReason, PriorityClass, SamplingParams, SequenceStatus
from engine.plugins import SCHEDULING_GROUP, installed, load_scheduling_policy
from tests.builders import Driver, make_request, make_scheduler
from tests.core.prefixes import COMMON, make_caching, served
from tests.core.scripted import Scripted, end_copies, make_driver, seq_of, status_of
from tests.fakes import expected_output

PROMPT = [*COMMON[:8], 60, 61, 62]  # two blocks and three tokens of a third


def samples(num: int, prompt: list[int], **fields: object) -> list[object]:
    """Requests of one prompt that say different things."""
    return [
        make_request(f"s{n}", prompt=prompt, sampling=SamplingParams(seed=n), **({"max_output_tokens": 5} | fields))
        for n in range(num)
    ]


def num_prompt_tokens(driver: Driver) -> dict[str, int]:
    """Tokens of prompts in the chunks of the plans so far, by request; outputs are not counted."""
    counts: dict[str, int] = {}
    names: dict[int, str] = {}
    lengths: dict[int, int] = {}
    for plan in driver.plans:
        for start in plan.started:
            names[start.row], lengths[start.row] = start.key.generation_id, start.num_prompt_tokens
        for row, start, num_tokens in zip(plan.rows, plan.starts, plan.num_tokens, strict=True):
            of_prompt = max(0, min(start + num_tokens, lengths[row]) - start)
            counts[names[row]] = counts.get(names[row], 0) + of_prompt
    return counts


def copies(driver: Driver) -> list[tuple[int, int]]:
    return [pair for plan in driver.plans for pair in plan.block_copies]


class TestSamplesOfOnePrompt:
    @pytest.mark.parametrize("policy", installed(SCHEDULING_GROUP))
    @pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:8], PROMPT[:10], PROMPT[:3], PROMPT[:2]])
    def test_are_computed_once_but_for_one_token_each(self, policy: str, prompt: list[int]):
        driver = make_caching(policy, max_num_seqs=8)
        requests = samples(4, prompt)
        found = served(driver, *requests)

        assert sorted(found) == [0, *[len(prompt) - 1] * 3]
        assert sorted(num_prompt_tokens(driver).values()) == [1, 1, 1, len(prompt)]
        assert [driver.output(each.generation_id) for each in requests] == list(map(expected_output, requests))

    def test_each_has_a_copy_of_the_last_block_and_shares_the_others(self):
        driver = make_caching(max_num_seqs=8)
        driver.add(*samples(4, PROMPT))
        driver.step()
        driver.step()

        tables = [seq.block_table.device for seq in driver.scheduler.lifecycle.running]
        assert len({tuple(table[:2]) for table in tables}) == 1
        assert len({table[2] for table in tables}) == 4
        assert driver.plans[1].block_copies == tuple((tables[0][2], table[2]) for table in tables[1:])
        assert driver.scheduler.stats().num_free_blocks == 64 - 2 - 4

    def test_come_in_right_after_the_first_one(self):
        driver = make_caching(max_num_seqs=8)
        driver.add(*samples(3, PROMPT))

        assert driver.chunks() == [("s0", 0, 11)]
        assert driver.chunks() == [("s0", 11, 1), ("s1", 10, 1), ("s2", 10, 1)]

    def test_a_short_prompt_is_computed_by_all_where_that_is_sooner_than_one_step_more(self):
        driver = make_caching(max_num_seqs=8)
        dear = Prices(StepCosts(base_ns=5e6, prefill_token_ns=1e6), are_measured=True)
        driver.scheduler.calibrate(dear, driver.now)
        driver.add(*samples(2, PROMPT[:3]))
        assert driver.chunks() == [("s0", 0, 3), ("s1", 0, 3)]

        cheap = make_caching(max_num_seqs=8)
        cheap.scheduler.calibrate(Prices(StepCosts(base_ns=2e6, prefill_token_ns=1e6), are_measured=True), cheap.now)
        cheap.add(*samples(2, PROMPT[:3]))
        assert cheap.chunks() == [("s0", 0, 3)]

    def test_nobody_waits_for_a_prompt_that_ends_otherwise(self):
        driver = make_caching(max_num_seqs=8)
        driver.add(make_request("a", prompt=[1, 2, 3]), make_request("b", prompt=[1, 2, 4]))

        assert driver.chunks() == [("a", 0, 3), ("b", 0, 3)]

    def test_without_the_cache_each_computes_all(self):
        driver = Driver(make_scheduler(max_num_batched_tokens=64))
        requests = samples(4, PROMPT)

        assert served(driver, *requests) == [0] * 4
        assert set(num_prompt_tokens(driver).values()) == {11}
        assert not copies(driver)

    @pytest.mark.parametrize("chunk", [1, 2, 3, 5, 64])
    @pytest.mark.parametrize("num_drafts", [0, 3])
    def test_in_chunks_and_with_drafts_they_say_the_same(self, chunk: int, num_drafts: int):
        driver = make_caching(max_num_seqs=4, max_num_batched_tokens=4 + chunk, num_draft_tokens=num_drafts)
        requests = samples(4, PROMPT, max_output_tokens=12)
        served(driver, *requests)

        assert sorted(num_prompt_tokens(driver).values()) == [1, 1, 1, 11]
        assert [driver.output(each.generation_id) for each in requests] == list(map(expected_output, requests))


class TestWhatIsFound:
    def test_a_prompt_again_after_its_end(self):
        driver = make_caching()
        served(driver, make_request("a", prompt=PROMPT, max_output_tokens=1))

        assert served(driver, make_request("b", prompt=PROMPT)) == [10]

    def test_a_prompt_whose_last_block_was_filled_by_its_answer(self):
        driver = make_caching()
        served(driver, make_request("a", prompt=PROMPT, max_output_tokens=9))
        request = make_request("b", prompt=PROMPT)

        assert served(driver, request) == [10]
        assert driver.output("b") == expected_output(request)

    def test_a_prompt_that_goes_on_behind_the_end_of_another(self):
        driver = make_caching()
        served(driver, make_request("a", prompt=PROMPT, max_output_tokens=1))
        driver.add(make_request("b", prompt=[*PROMPT, 70, 71]))

        assert driver.chunks() == [("b", 11, 2)]

    def test_nothing_of_a_prompt_that_parts_with_the_first_token_of_a_block(self):
        driver = make_caching()
        served(driver, make_request("a", prompt=PROMPT, max_output_tokens=1))
        driver.add(make_request("b", prompt=[*PROMPT[:8], 5, 61, 62]))

        assert driver.chunks() == [("b", 8, 3)]
        assert not copies(driver)

    def test_never_what_was_answered(self):
        driver = make_caching()
        first = make_request("a", prompt=PROMPT[:9], max_output_tokens=3)
        served(driver, first)

        assert served(driver, make_request("b", prompt=[*PROMPT[:9], *driver.output("a"), 5])) == [9]

    def test_nothing_by_a_prompt_that_is_scored(self):
        driver = make_caching()
        served(driver, make_request("a", prompt=PROMPT))
        scored = make_request("b", prompt=PROMPT, sampling=SamplingParams(num_prompt_logprobs=0))

        assert served(driver, scored) == [0]
        assert not copies(driver)

    def test_a_block_that_makes_room_for_its_own_copy(self):
        driver = make_caching(num_device_blocks=1, growth_reserve_tokens=0)
        served(driver, make_request("a", prompt=[1, 2, 3], max_output_tokens=1))
        request = make_request("b", prompt=[1, 2, 3], max_output_tokens=1)

        assert served(driver, request) == [2]
        assert driver.plans[-1].block_copies == ((0, 0),)
        assert driver.output("b") == expected_output(request)

    def test_a_block_that_another_takes_in_the_same_step(self):
        driver = make_caching(num_device_blocks=3, growth_reserve_tokens=0, cache_min_share=0.0)
        served(driver, make_request("a", prompt=[1, 2, 3], max_output_tokens=1))
        requests = [
            make_request("b", prompt=[1, 2, 9], max_output_tokens=1),
            make_request("c", prompt=[*range(50, 57)]),
        ]
        driver.add(*requests)
        driver.step()
        ((source, target),) = driver.plans[-1].block_copies

        assert source != target
        assert source in seq_of(driver, "c").block_table.device
        driver.run()
        assert [driver.output(each.generation_id) for each in requests] == list(map(expected_output, requests))


class TestWhoFindsWhat:
    def test_nobody_what_came_under_another_salt(self):
        for salts, found in (((b"one", b"one"), 10), ((b"one", b"two"), 0), ((b"", b"two"), 0)):
            driver = make_caching()
            first, second = [make_request(prompt=PROMPT, cache_salt=salt, max_output_tokens=2) for salt in salts]
            driver.add(first)
            driver.step()

            assert served(driver, second) == [found]
            assert bool(copies(driver)) == bool(found)

    def test_nobody_what_another_tenant_sent(self):
        driver = make_caching()
        driver.add(make_request("a", tenant="a", prompt=PROMPT))
        driver.step()

        assert served(driver, make_request("b", tenant="b", prompt=PROMPT)) == [0]
        assert served(driver, make_request("c", tenant="a", prompt=PROMPT)) == [10]

    def test_one_salt_finds_the_same_whatever_another_one_sends(self):
        """Paired: with and without the other salt's requests, which are copies of these, there is room for all."""
        told = []
        for has_others in (False, True):
            driver, source = (
                make_caching(num_device_blocks=400, max_num_seqs=16, max_num_batched_tokens=400),
                random.Random(3),
            )
            for number in range(40):
                prompt = [
                    *COMMON[: source.randrange(1, 20)],
                    *[source.randrange(3) for _ in range(source.randrange(1, 4))],
                ]
                driver.add(make_request(f"one{number}", prompt=prompt, cache_salt=b"one", max_output_tokens=3))
                if has_others:
                    driver.add(make_request(f"two{number}", prompt=prompt, cache_salt=b"two", max_output_tokens=3))
                driver.step()
            driver.run()
            told.append([driver.finished(f"one{n}").usage.num_cached_prompt_tokens for n in range(40)])

        assert told[0] == told[1]
        assert sum(told[0]) > 100

    def test_no_block_is_copied_from_one_salt_to_another(self):
        driver, source = make_caching(max_num_seqs=6, num_device_blocks=30), random.Random(5)
        owners: dict[int, bytes] = {}
        num_copied = 0
        for _ in range(80):
            salt = source.choice([b"one", b"two", b"three"])
            prompt = [*COMMON[: source.randrange(1, 30)], *[source.randrange(2)] * source.randrange(1, 3)]
            driver.add(make_request(prompt=prompt, cache_salt=salt, max_output_tokens=source.randrange(1, 4)))
            plan = driver.plan()
            for copied, target in plan.block_copies:
                salt_of = {
                    block: seq.request.cache_salt
                    for seq in driver.scheduler.open_sequences
                    for block in seq.block_table.device
                }
                assert owners[copied] == salt_of[target]
                num_copied += 1
            for seq in driver.scheduler.lifecycle.by_generation.values():
                owners |= dict.fromkeys(seq.block_table.device, seq.request.cache_salt)
            driver.commit(plan)

        assert num_copied > 20


class TestWhatItCosts:
    def test_nothing_is_charged_for_what_is_copied(self):
        charged: list[Service] = []
        policy = load_scheduling_policy("fair", {})
        charge = policy.charge
        policy.charge = lambda service: (charged.append(service), charge(service))
        driver = Driver(make_scheduler(policy, enable_prefix_caching=True))
        served(driver, make_request(prompt=PROMPT, max_output_tokens=1))
        charged.clear()

        served(driver, make_request("b", prompt=PROMPT, max_output_tokens=1))

        assert [(each.num_prefill_tokens, each.num_output_tokens) for each in charged] == [(1, 1)]
        assert driver.finished("b").usage.num_cached_prompt_tokens == 10

    @pytest.mark.parametrize("policy", ["vtc", "drr"])
    def test_policies_that_charge_when_a_prompt_comes_in_leave_it_out_even_if_it_makes_room_for_its_copy(
        self, policy: str
    ):
        leads = []
        for num_device_blocks in (1, 64):
            driver = make_caching(policy, num_device_blocks=num_device_blocks, growth_reserve_tokens=0)
            for _ in range(2):
                served(driver, make_request(prompt=[1, 2, 3], max_output_tokens=1))
            (flow,) = driver.scheduler.lifecycle.flows.all()
            leads.append(driver.scheduler.lifecycle.policy.standing(flow))

        assert leads[0] == leads[1]

    def test_a_copied_block_is_one_block_more(self):
        driver = make_caching(num_device_blocks=4, growth_reserve_tokens=0, max_num_seqs=8, max_num_batched_tokens=64)
        driver.add(*samples(4, PROMPT[:10], max_output_tokens=3))
        driver.step()
        driver.step()

        assert len(driver.scheduler.lifecycle.running) == 2  # two blocks are shared, and there are two more
        driver.run()

    def test_blocks_of_a_changed_class_count_there(self):
        driver = make_caching(max_num_seqs=8)
        driver.add(*samples(2, PROMPT))
        driver.step()
        driver.step()
        driver.scheduler.set_class("s1", PriorityClass("batch", 5), driver.now)

        counts = {flow.priority_class.name: flow.num_device_blocks for flow in driver.scheduler.lifecycle.flows.all()}
        assert counts == {"default": 3, "batch": 3}
        driver.run()


class TestFaults:
    def test_what_failed_is_not_copied(self):
        driver = make_caching()
        driver.add(make_request("bad", prompt=PROMPT))
        driver.runner.errors["bad"] = "numbers went wrong"
        driver.run()

        assert driver.finished("bad").reason is FinishReason.ERROR
        assert served(driver, make_request("b", prompt=PROMPT)) == [0]

    def test_what_was_copied_before_its_source_failed_stays_right(self):
        driver = make_caching(max_num_seqs=8)
        requests = samples(2, PROMPT)
        driver.add(*requests)
        driver.step()
        driver.runner.errors["s0"] = "numbers went wrong"
        driver.run()

        assert driver.finished("s0").reason is FinishReason.ERROR
        assert driver.output("s1") == expected_output(requests[1])

    def test_nothing_is_copied_after_a_lost_step(self):
        driver = make_caching(max_num_seqs=8)
        driver.add(*samples(2, PROMPT))
        driver.step()
        lost = driver.plan()
        assert lost.block_copies
        driver.runner.execute(lost)
        driver.events += driver.scheduler.fail_all("lost", driver.now)
        driver.runner.cache.clear()

        assert served(driver, make_request("c", prompt=PROMPT)) == [0]

    def test_an_abort_of_the_source_in_the_step_that_copies_it(self):
        driver = make_caching(max_num_seqs=8)
        requests = samples(2, PROMPT)
        driver.add(*requests)
        driver.step()
        plan = driver.plan()
        assert plan.block_copies
        driver.abort("s0")
        driver.commit(plan)
        driver.run()

        assert driver.output("s1") == expected_output(requests[1])

    def test_nothing_is_found_in_a_block_while_it_is_swapped_out_but_afterwards(self):
        policy = Scripted(first="b", yielding="a", concedes={"a": Concession.ANYTHING})
        driver = make_driver(policy, is_late=True, enable_prefix_caching=True, partial_swap=False)
        driver.add(make_request("a", tenant="a", prompt=COMMON[:26], max_output_tokens=6))
        driver.step()
        driver.add(make_request("late", tenant="a", prompt=COMMON[:26], max_output_tokens=1, granted_output_tokens=0))
        assert seq_of(driver, "late").block_table.device == []
        driver.add(make_request("b", tenant="b", prompt=16, max_output_tokens=1))
        driver.step()

        assert status_of(driver, "a") is SequenceStatus.SWAPPING_OUT
        driver.scheduler.grant("late", 1, driver.now)
        assert seq_of(driver, "late").num_cached_prompt_tokens == 0

        end_copies(driver)
        driver.step()
        driver.wait()
        assert seq_of(driver, "late").num_cached_prompt_tokens == 25
