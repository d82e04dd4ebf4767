"""Prompts that begin alike: what is computed, who finds what, and what it costs."""

import random

import pytest

from engine.core.costs import Prices, StepCosts
from engine.core.events import Admitted
from engine.core.policy import Service
from engine.core.types import FinishReason, Nanos, PathNode, SamplingParams
from engine.plugins import SCHEDULING_GROUP, installed, load_scheduling_policy
from tests.builders import Driver, make_request, make_scheduler
from tests.core.prefixes import COMMON, make_caching, num_computed, served
from tests.core.scripted import Scripted, make_driver
from tests.fakes import expected_output


class TestWhatIsComputed:
    def test_only_what_no_earlier_prompt_began_with(self):
        driver = make_caching()
        served(driver, make_request("a", prompt=[*COMMON, 50, 51], max_output_tokens=1))
        request = make_request("b", prompt=[*COMMON, 60, 61, 62])
        driver.add(request)

        assert driver.chunks() == [("b", 32, 3)]
        driver.run()
        assert driver.output("b") == expected_output(request)

    def test_the_last_token_again_where_a_whole_prompt_is_found(self):
        driver = make_caching()
        served(driver, make_request("a", prompt=COMMON, max_output_tokens=1))
        driver.add(make_request("b", prompt=COMMON, max_output_tokens=1))

        assert driver.chunks() == [("b", 31, 1)]

    def test_of_a_block_that_is_found_in_part_the_rest(self):
        driver = make_caching()
        served(driver, make_request("a", prompt=COMMON, max_output_tokens=1))
        driver.add(make_request("b", prompt=[*COMMON[:30], 90, 91, 92], max_output_tokens=1))

        assert driver.chunks() == [("b", 30, 3)]

    def test_everything_without_the_cache(self):
        driver = Driver(make_scheduler())

        assert served(driver, *[make_request(name, prompt=COMMON) for name in "ab"]) == [0, 0]

    def test_not_what_was_answered_before_in_the_next_turn(self):
        driver = make_caching()
        first = make_request("a", prompt=COMMON[:10], max_output_tokens=7)
        served(driver, first)
        answered = [*COMMON[:10], *driver.output("a")]
        driver.add(make_request("b", prompt=[*answered, 80], max_output_tokens=1))

        assert driver.chunks() == [("b", 16, 2)]

    @pytest.mark.parametrize("policy", installed(SCHEDULING_GROUP))
    @pytest.mark.parametrize("chunked", [True, False])
    def test_once_for_prompts_that_come_at_the_same_time(self, policy: str, chunked: bool):
        limits = {"max_num_seqs": 8, "enable_chunked_prefill": chunked, "max_model_len": 64, "num_device_blocks": 200}
        driver = make_caching(policy, max_num_batched_tokens=16 if chunked else 64, **limits)
        requests = [make_request(str(n), prompt=[*COMMON, 50 + n, 1], max_output_tokens=3) for n in range(8)]

        found = served(driver, *requests)

        assert sum(found) == 7 * 32
        assert num_computed(driver) == 32 + 8 * (2 + 2)
        assert [driver.output(request.generation_id) for request in requests] == list(map(expected_output, requests))

    @pytest.mark.parametrize("policy", ["fcfs", "fair"])
    def test_once_but_for_the_last_token_for_several_samples_of_one_prompt(self, policy: str):
        driver = make_caching(policy, max_num_seqs=8, max_num_batched_tokens=64)
        samples = [
            make_request(str(n), prompt=[*COMMON, 50, 51], max_output_tokens=5, sampling=SamplingParams(seed=n))
            for n in range(4)
        ]
        driver.add(*samples)
        driver.step()
        driver.step()

        assert num_computed(driver) == 34 + 1 + 3 * 1
        assert driver.scheduler.stats().num_free_blocks == 64 - 8 - 4
        driver.run()
        assert [driver.output(request.generation_id) for request in samples] == list(map(expected_output, samples))

    def test_for_parts_of_a_prompt_as_they_become_ready(self):
        driver = make_caching(max_num_batched_tokens=8, max_num_seqs=3)
        served(
            driver, make_request("long", prompt=COMMON, max_output_tokens=1), make_request("short", prompt=COMMON[:12])
        )

        assert driver.finished("short").usage.num_cached_prompt_tokens == 11

    def test_at_once_where_the_one_ahead_is_gone(self):
        driver = make_caching(max_num_batched_tokens=8)
        driver.add(make_request("ahead", prompt=COMMON), make_request("behind", prompt=[*COMMON, 9]))
        assert driver.chunks() == [("ahead", 0, 8)]
        driver.abort("ahead")

        assert driver.chunks() == [("behind", 8, 8)]

    def test_also_for_a_prompt_whose_like_ahead_is_held(self):
        driver = make_caching(max_num_batched_tokens=8)
        driver.add(make_request("ahead", prompt=COMMON), make_request("behind", prompt=[*COMMON, 9]))
        driver.step()
        driver.scheduler.set_reader_blocked("ahead", blocked=True, now=driver.now)

        assert driver.chunks() == [("behind", 8, 8)]

    def test_of_another_prompt_meanwhile(self):
        limits = {"num_device_blocks": 64, "max_num_batched_tokens": 16, "max_prefill_share": 0.5}
        driver = make_driver(Scripted(), enable_prefix_caching=True, **limits)
        driver.add(
            *[make_request(name, prompt=prompt) for name, prompt in (("a", COMMON), ("b", COMMON), ("c", [9] * 8))]
        )

        assert driver.chunks() == [("a", 0, 8), ("c", 0, 8)]


class TestWhoFindsWhat:
    def test_nobody_what_another_tenant_computed(self):
        driver = make_caching()
        prompt = [*COMMON, 1]

        assert served(driver, make_request("a1", tenant="a", prompt=prompt)) == [0]
        assert served(driver, make_request("b1", tenant="b", prompt=prompt)) == [0]
        assert served(driver, make_request("a2", tenant="a", prompt=prompt)) == [32]

    def test_nobody_what_was_computed_under_another_salt(self):
        driver = make_caching()
        salts = [b"one", b"two", b"", b"one"]

        found = [served(driver, make_request(prompt=COMMON, cache_salt=salt)) for salt in salts]

        assert found == [[0], [0], [0], [31]]

    def test_tenants_of_one_salt_what_each_other_computed(self):
        driver = make_caching()

        found = [served(driver, make_request(tenant=tenant, prompt=COMMON, cache_salt=b"public")) for tenant in "ab"]

        assert found == [[0], [31]]

    def test_nobody_waits_for_a_prompt_of_another_salt(self):
        driver = make_caching(max_num_batched_tokens=16, max_prefill_share=0.5)
        driver.add(*[make_request(t, tenant=t, prompt=COMMON) for t in "ab"])

        assert driver.chunks() == [("a", 0, 8), ("b", 0, 8)]

    def test_salts_that_share_a_pool_never_share_a_block(self):
        source = random.Random(5)
        driver = make_caching(max_num_seqs=6, num_device_blocks=40)
        for number in range(60):
            salt = source.choice([b"one", b"two", b"three"])
            prompt = [*COMMON[: source.randrange(4, 30)], number]
            driver.add(make_request(tenant=source.choice("ab"), prompt=prompt, cache_salt=salt, max_output_tokens=3))
            driver.step()
            holders: dict[int, set[bytes]] = {}
            for seq in driver.scheduler.lifecycle.by_generation.values():
                for block_id in seq.block_table.device:
                    holders.setdefault(block_id, set()).add(seq.request.cache_salt)
            assert all(len(salts) == 1 for salts in holders.values())

    def test_a_flow_whose_head_finds_most_comes_first_within_the_slack(self):
        fair = load_scheduling_policy("fair", {"slack": "200"})
        driver = Driver(make_scheduler(fair, max_num_seqs=1, enable_prefix_caching=True))
        a, b, c = [(PathNode("org", 1.0), PathNode(name, 1.0)) for name in "abc"]
        served(driver, make_request("warm", path=b, prompt=COMMON, max_output_tokens=1))
        driver.add(make_request("busy", path=c, prompt=4, max_output_tokens=2))
        driver.step()
        driver.add(make_request("cold", path=a, prompt=33), make_request("hit", path=b, prompt=[*COMMON, 1]))
        driver.run()

        admitted = [event.key.generation_id for event in driver.events if isinstance(event, Admitted)]
        assert admitted == ["warm", "busy", "hit", "cold"]


class TestWhatItCosts:
    def test_nothing_is_charged_for_what_is_found(self):
        charged: list[Service] = []
        policy = load_scheduling_policy("fair", {})
        charge = policy.charge
        policy.charge = lambda service: (charged.append(service), charge(service))
        driver = Driver(make_scheduler(policy, enable_prefix_caching=True))
        served(driver, make_request(prompt=COMMON, max_output_tokens=1))
        charged.clear()

        served(driver, make_request(prompt=[*COMMON, 1], max_output_tokens=1))

        assert [(each.num_prefill_tokens, each.num_output_tokens) for each in charged] == [(1, 1)]
        (tenant,) = driver.scheduler.stats().tenants
        assert (tenant.num_prefill_tokens, tenant.num_found_tokens) == (33, 32)
        assert driver.scheduler.stats().totals.num_found_tokens == 32

    @pytest.mark.parametrize("policy", ["vtc", "drr"])
    def test_policies_that_charge_a_prompt_when_it_comes_in_leave_out_what_is_found(self, policy: str):
        leads = []
        for enable_prefix_caching in (True, False):
            driver = Driver(make_scheduler(policy, enable_prefix_caching=enable_prefix_caching))
            standing = driver.scheduler.lifecycle.policy.standing
            for _ in range(2):
                served(driver, make_request(prompt=[*COMMON, 1], max_output_tokens=1))
                (flow,) = driver.scheduler.lifecycle.flows.all()
                leads.append(standing(flow))
        with_cache, without = leads[1:4:2]

        assert leads[0] == leads[2]
        assert policy == "drr" or without[0] - with_cache[0] == 32

    def test_a_deadline_is_judged_by_what_is_left_to_compute(self):
        driver = make_caching()
        served(driver, make_request("w", tenant="a", prompt=COMMON))
        driver.scheduler.calibrate(Prices(StepCosts(prefill_token_ns=1_000_000.0), are_measured=True), driver.now)
        deadline = Nanos(driver.now + 6_000_000)
        driver.add(*[make_request(t, tenant=t, prompt=COMMON, max_output_tokens=1, deadline=deadline) for t in "ab"])

        driver.run()
        assert driver.finished("a").reason is FinishReason.LENGTH
        assert driver.finished("b").reason is FinishReason.DEADLINE
