"""What is cached moves to the host before it is evicted, and comes back when it is found."""

import pytest

from engine.core.costs import Prices, StepCosts
from engine.core.policy import Concession
from tests.builders import Driver, make_request
from tests.core.prefixes import COMMON, make_caching, served
from tests.core.scripted import Scripted, make_driver
from tests.fakes import expected_output


def make_tiered(num_device_blocks: int = 24, num_host_blocks: int = 40, **fields: object) -> Driver:
    """A pool that is soon full, so that what is cached moves to the host."""
    limits: dict[str, object] = {"max_num_seqs": 2, "cache_min_share": 0.0, "growth_reserve_tokens": 0}
    return make_caching(num_device_blocks=num_device_blocks, num_host_blocks=num_host_blocks, **(limits | fields))


def flood(driver: Driver, num_requests: int = 3, tenant: str = "a") -> None:
    """Prompts that nobody has sent before, one after the other, each of a third of the pool."""
    for number in range(num_requests):
        served(driver, make_request(tenant=tenant, prompt=[number, *range(50, 78)], max_output_tokens=12))


class TestHost:
    def test_what_would_be_evicted_is_found_on_the_host_and_brought_back(self):
        driver = make_tiered()
        served(driver, make_request("first", tenant="b", prompt=COMMON, max_output_tokens=1))
        flood(driver)
        request = make_request("again", tenant="b", prompt=[*COMMON, 1])
        found = served(driver, request)

        assert found == [32]
        assert driver.output("again") == expected_output(request)
        stats = driver.scheduler.stats()
        assert stats.num_copied_out > 0
        assert stats.num_copied_in == 8
        assert stats.num_preemptions == 0

    def test_nobody_finds_what_another_salt_has_there(self):
        driver = make_tiered()
        served(driver, make_request("first", tenant="b", prompt=COMMON, max_output_tokens=1))
        flood(driver)

        assert served(driver, make_request("other", tenant="c", prompt=[*COMMON, 1])) == [0]

    def test_it_is_brought_once_for_all_that_wait_for_it(self):
        driver = make_tiered(max_num_seqs=4)
        served(driver, make_request("first", tenant="b", prompt=COMMON, max_output_tokens=1))
        flood(driver)
        requests = [make_request(str(n), tenant="b", prompt=[*COMMON, n], max_output_tokens=2) for n in range(4)]

        assert served(driver, *requests) == [32] * 4
        assert driver.scheduler.stats().num_copied_in == 8
        assert [driver.output(request.generation_id) for request in requests] == list(map(expected_output, requests))

    def test_it_is_computed_where_that_is_sooner_than_the_copy(self):
        driver = make_tiered()
        prices = Prices(StepCosts(prefill_token_ns=1_000.0), copy_in_block_ns=5_000.0)
        driver.scheduler.calibrate(prices, driver.now)
        served(driver, make_request("first", tenant="b", prompt=COMMON, max_output_tokens=1))
        flood(driver)

        assert served(driver, make_request("again", tenant="b", prompt=[*COMMON, 1])) == [0]

    def test_what_is_swapped_out_takes_the_room_of_what_is_cached(self):
        policy = Scripted(first="b", yielding="a", concedes={"a": Concession.ANYTHING})
        driver = make_driver(
            policy, num_device_blocks=24, num_host_blocks=8, enable_prefix_caching=True, partial_swap=False
        )
        flood(driver, tenant="c")
        assert driver.scheduler.stats().cache.num_kept_on_host > 0
        requests = [
            make_request("a", tenant="a", prompt=24, max_output_tokens=8),
            make_request("b", tenant="b", prompt=80, max_output_tokens=2),
        ]
        driver.add(requests[0])
        driver.step()
        driver.add(requests[1])
        driver.run()

        assert driver.finished("a").usage.num_preemptions == 1
        assert driver.finished("a").usage.num_recomputed_tokens == 0
        assert [driver.output(request.generation_id) for request in requests] == list(map(expected_output, requests))

    @pytest.mark.parametrize("num_steps", range(4))
    def test_an_abort_while_it_is_brought_back_leaves_it_to_be_found(self, num_steps: int):
        driver = make_tiered()
        served(driver, make_request("first", tenant="b", prompt=COMMON, max_output_tokens=1))
        flood(driver)
        driver.runner.copies.max_delay = 3
        driver.add(make_request("gone", tenant="b", prompt=[*COMMON, 1]))
        for _ in range(num_steps):
            driver.step()
        driver.abort("gone")
        while driver.wait():
            """Until the copy, if there is one, has ended."""

        assert served(driver, make_request("again", tenant="b", prompt=[*COMMON, 1])) == [32]

    def test_nothing_is_found_there_after_a_lost_step(self):
        driver = make_tiered()
        served(driver, make_request("first", tenant="b", prompt=COMMON, max_output_tokens=1))
        flood(driver)
        driver.add(make_request("g"))
        completed = driver.runner.execute(driver.plan()).completed_copies
        driver.events += driver.scheduler.fail_all("lost", driver.now)
        driver.scheduler.complete_copies(completed, driver.now)

        stats = driver.scheduler.stats()
        assert (stats.cache.num_kept, stats.cache.num_kept_on_host, stats.num_free_host_blocks) == (0, 0, 40)
