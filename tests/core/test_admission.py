"""Who comes in, and when: room for growth, the interval, and steps that hold prompts or decodes only."""

import pytest

from engine.core.config import AdmissionReserve
from engine.core.policy import PlanStart, Terms
from engine.core.types import PriorityClass
from policies.fcfs import Fcfs
from tests.builders import Driver, make_request, make_scheduler

HIGH, LOW = PriorityClass("high", 0), PriorityClass("low", 5)
PLEDGED = [AdmissionReserve.PEAK, AdmissionReserve.WHOLE]


class Yielding(Fcfs):
    """Order of arrival, and the flows of tenant b yield."""

    def begin(self, start: PlanStart) -> Terms:
        self.flows = {flow.tenant_id: flow for flow in start.changed} | getattr(self, "flows", {})
        return Terms(yielding=frozenset(flow for name, flow in self.flows.items() if name == "org-b/b"))


class TestReserve:
    """Eight blocks of four tokens. "a" comes to need all of them, "b" has room for its prompt beside it at first."""

    def driver(self, reserve: AdmissionReserve, tenant: str) -> Driver:
        driver = Driver(make_scheduler(num_device_blocks=8, growth_reserve_tokens=0, admission_reserve=reserve))
        driver.add(make_request("a", tenant="a", prompt=12, max_output_tokens=20))
        driver.add(make_request("b", tenant=tenant, prompt=4, max_output_tokens=16))
        driver.run()
        return driver

    def test_room_for_the_next_tokens_only_ends_in_preemption(self):
        assert self.driver(AdmissionReserve.GROWTH, "a").scheduler.stats().num_preemptions == 1

    @pytest.mark.parametrize("reserve", PLEDGED)
    def test_room_for_all_tokens_prevents_preemption(self, reserve: AdmissionReserve):
        assert self.driver(reserve, "a").scheduler.stats().num_preemptions == 0

    @pytest.mark.parametrize("reserve", PLEDGED)
    def test_room_for_all_tokens_prevents_preemption_by_other_tenants_too(self, reserve: AdmissionReserve):
        stats = self.driver(reserve, "b").scheduler.stats()

        assert (stats.num_preemptions, stats.num_pauses) == (0, 0)

    def test_the_peak_counts_on_what_ends_before(self):
        outputs = {"short": 4, "long": 20}
        admitted = {}
        for reserve in PLEDGED:
            driver = Driver(make_scheduler(num_device_blocks=8, admission_reserve=reserve))
            driver.add(*(make_request(name, prompt=8, max_output_tokens=number) for name, number in outputs.items()))
            admitted[reserve] = driver.chunks()

        # Whole, they need 3 + 7 blocks. When "short" ends, "long" has grown by as many tokens: 3 + 3.
        assert admitted[AdmissionReserve.PEAK] == [("short", 0, 8), ("long", 0, 8)]
        assert admitted[AdmissionReserve.WHOLE] == [("short", 0, 8)]


class TestInterval:
    def test_everyone_who_fits_comes_in_together(self):
        driver = Driver(make_scheduler(admission_interval=10))
        driver.add(*(make_request(f"g{i}", prompt=4, max_output_tokens=30) for i in range(3)))

        assert driver.chunks() == [("g0", 0, 4), ("g1", 0, 4), ("g2", 0, 4)]

    def test_later_ones_wait_for_the_next_turn(self):
        driver = Driver(make_scheduler(admission_interval=3))
        driver.add(make_request("first", prompt=4, max_output_tokens=30))
        driver.step()
        driver.add(make_request("second", prompt=4, max_output_tokens=30))

        assert driver.chunks() == [("first", 4, 1)]
        assert driver.chunks() == [("first", 5, 1)]
        assert driver.chunks() == [("first", 6, 1), ("second", 0, 4)]

    def test_whoever_ends_lets_others_in_at_once(self):
        driver = Driver(make_scheduler(admission_interval=100))
        driver.add(make_request("first", prompt=4, max_output_tokens=30))
        driver.step()
        driver.add(make_request("second", prompt=4, max_output_tokens=2), make_request("third", prompt=4))
        assert driver.chunks() == [("first", 4, 1)]
        driver.abort("first")

        assert driver.chunks()[0] == ("second", 0, 4)


class TestUnmixed:
    """`mix_prefill` off: a step computes prompts or decodes."""

    def test_prompts_come_first_and_decodes_wait_for_them(self):
        driver = Driver(make_scheduler(mix_prefill=False, max_num_batched_tokens=8))
        driver.add(make_request("decoding", prompt=4, max_output_tokens=30))
        driver.step()
        driver.add(make_request("prompt", prompt=12))

        assert driver.chunks() == [("prompt", 0, 8)]
        assert driver.chunks() == [("prompt", 8, 4)]
        assert sorted(driver.chunks()) == [("decoding", 4, 1), ("prompt", 12, 1)]

    @pytest.mark.parametrize("scheduling", ["fair", Yielding()])
    def test_classes_and_yielding_flows_are_not_mixed_either(self, scheduling):
        driver = Driver(make_scheduler(scheduling, mix_prefill=False))
        driver.add(make_request("decoding", prompt=4, max_output_tokens=30, priority_class=HIGH))
        driver.step()
        driver.add(make_request("prompt", tenant="b", prompt=8, priority_class=LOW))
        steps = [driver.chunks() for _ in range(4)]

        assert all(len({num_tokens > 1 for _, _, num_tokens in chunks}) == 1 for chunks in steps)

    def test_a_prompt_does_not_take_the_row_of_a_decode_that_ranks_before_it(self):
        driver = Driver(make_scheduler(mix_prefill=False, max_num_seqs=1))
        driver.add(make_request("first", tenant="a", prompt=4, max_output_tokens=3))
        driver.step()
        driver.add(make_request("second", tenant="b", prompt=4, max_output_tokens=3))

        assert driver.chunks() == [("first", 4, 1)]


@pytest.mark.parametrize("scheduling", ["fair", Yielding()])
def test_no_step_holds_more_tokens_than_it_may(scheduling):
    driver = Driver(make_scheduler(scheduling, max_num_batched_tokens=8))
    driver.add(
        *(make_request(f"low{i}", tenant="b", prompt=1, max_output_tokens=30, priority_class=LOW) for i in range(3))
    )
    driver.step()
    driver.add(make_request("high", tenant="a", prompt=40, priority_class=HIGH))
    driver.step()
    driver.step()

    assert [sum(plan.num_tokens) for plan in driver.plans[1:]] == [8, 8]


def test_a_prompt_makes_no_step_longer_than_the_target():
    driver = Driver(make_scheduler(max_num_batched_tokens=128, num_device_blocks=200, target_step_ms=20.0))
    driver.add(make_request("g", prompt=100))

    assert driver.chunks() == [("g", 0, 20)]  # a millisecond per token, until it is measured
    assert driver.chunks() == [("g", 20, 20)]


def test_the_last_token_of_a_step_goes_to_a_prompt():
    driver = Driver(make_scheduler(max_num_seqs=2, max_num_batched_tokens=2))
    driver.add(make_request("decoding", prompt=2, max_output_tokens=30))
    driver.step()
    driver.add(make_request("prompt", prompt=3))

    assert sorted(driver.chunks()) == [("decoding", 2, 1), ("prompt", 0, 1)]


def test_what_a_yielding_flow_gets_counts_as_borrowed_prompt_and_output_alike():
    driver = Driver(make_scheduler(Yielding()))
    driver.add(make_request(tenant="b", prompt=4, max_output_tokens=3))
    driver.run()

    (tenant,) = driver.scheduler.stats().tenants
    assert tenant.num_borrowed_tokens == 4 + 3


@pytest.mark.parametrize(("num_blocks", "comes_in"), [(8, False), (9, True)])
def test_a_light_flow_comes_in_beside_a_prompt_that_keeps_its_own_room(num_blocks: int, comes_in: bool):
    """Six blocks are the prompt's, three the head's; what is reserved for growth would be more than is left."""
    limits = {"num_device_blocks": num_blocks, "max_num_batched_tokens": 8, "growth_reserve_tokens": 8}
    driver = Driver(make_scheduler("fair", "over_served", **limits))
    driver.add(make_request("prompt", tenant="a", prompt=24, max_output_tokens=8))
    driver.step()
    driver.add(make_request("head", tenant="b", prompt=12, max_output_tokens=4))

    assert ("head" in {name for name, _, _ in driver.chunks()}) is comes_in
