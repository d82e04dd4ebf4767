"""Moved to the host or computed again: by what is allowed, what there is room for, and what costs less."""

import pytest

from engine.core.config import PreemptionChoice
from engine.core.costs import Prices, StepCosts
from engine.core.plan import CopyDirection
from engine.core.policy import Concession
from engine.core.preemption import Preemptions
from engine.core.types import BlockId, FinishReason, Nanos, PreemptionMode, SequenceStatus
from tests.builders import Driver, make_request
from tests.core.scripted import Scripted, make_driver, preemptions_of, seq_of, status_of
from tests.fakes import ConstantRunner

MS = 1_000_000


def holding(concession: Concession = Concession.ANYTHING, output: int = 8, **fields: object) -> Driver:
    """ "a" holds four of eight blocks and gives up what `concession` says; "b", which needs five, has just come."""
    driver = make_driver(Scripted(concedes={"a": concession}), **fields)
    driver.add(make_request("a", tenant="a", prompt=16, max_output_tokens=output))
    driver.step()
    driver.add(make_request("b", tenant="b", prompt=17, max_output_tokens=2))
    return driver


def mode_of(driver: Driver) -> PreemptionMode | None:
    """What happened to the blocks of "a" in the next two plans; None if nothing did."""
    driver.step()
    driver.step()
    return next((mode for _, mode, _ in preemptions_of(driver) if mode is not PreemptionMode.PAUSE), None)


AUTO, SWAP, RECOMPUTE = PreemptionChoice


class TestAllowed:
    @pytest.mark.parametrize(("choice", "mode"), [(SWAP, PreemptionMode.SWAP), (RECOMPUTE, PreemptionMode.RECOMPUTE)])
    @pytest.mark.parametrize("block_ns", [0.0, 1e12])
    def test_a_forced_way_is_taken_whatever_it_costs(self, choice, mode, block_ns: float):
        driver = holding(preemption_mode=choice)
        driver.scheduler.calibrate(Prices(copy_out_block_ns=block_ns, copy_in_block_ns=block_ns), driver.now)

        assert mode_of(driver) is mode

    @pytest.mark.parametrize("choice", [AUTO, SWAP])
    def test_what_the_host_has_no_room_for_is_computed_again(self, choice):
        driver = holding(preemption_mode=choice, num_host_blocks=1)

        assert mode_of(driver) is PreemptionMode.RECOMPUTE
        assert not [plan for plan in driver.plans if plan.copies]

    def test_nothing_is_computed_again_where_only_a_swap_was_conceded(self):
        driver = holding(Concession.SWAP, num_host_blocks=1)

        assert mode_of(driver) is None
        driver.run()
        assert driver.finished("a").usage.num_preemptions == 0

    def test_a_swap_that_was_conceded_is_made_even_if_it_costs_more(self):
        driver = holding(Concession.SWAP, preemption_mode=AUTO)
        driver.scheduler.calibrate(Prices(copy_out_block_ns=1e12, copy_in_block_ns=1e12), driver.now)

        assert mode_of(driver) is PreemptionMode.SWAP


class TestShared:
    """A second reference to a block: nobody else may find it gone."""

    def driver(self, *shared: int) -> Driver:
        driver = holding()
        driver.runner = ConstantRunner()  # which does not check that every reference is a table's
        driver.scheduler.lifecycle.blocks.pool.share(map(BlockId, shared))
        return driver

    def test_shared_blocks_stay_and_those_behind_them_leave(self):
        driver = self.driver(1)
        plan = driver.plan()

        assert [copy.device_block_ids for copy in plan.copies] == [(2, 3)]

    def test_too_few_movable_blocks_are_left_alone(self):
        driver = self.driver(2)
        plan = driver.plan()

        assert plan.copies == ()
        assert plan.rows
        assert status_of(driver, "a") is SequenceStatus.RUNNING

    @pytest.mark.parametrize(
        ("shared", "status"), [((3,), "waiting"), ((1, 2, 3), "running"), ((0, 1, 2, 3), "running")]
    )
    def test_what_cannot_be_moved_is_dropped_if_enough_of_it_is_nobody_elses(
        self, shared: tuple[int, ...], status: str
    ):
        driver = self.driver(*shared)
        plan = driver.plan()

        assert plan.copies == ()
        assert status_of(driver, "a") is SequenceStatus(status)


class TestPrices:
    """Sixteen tokens at a millisecond each, in four blocks: a block that is dropped costs four milliseconds."""

    def preemptions(self, out_ms: float, in_ms: float, *, launch_ms: float = 0.0, base_ms: float = 0.0, **fields):
        driver = holding(preemption_mode=AUTO, **fields)
        step = StepCosts(base_ns=base_ms * MS, prefill_token_ns=MS, decode_ns=0.0)
        prices = Prices(step, out_ms * MS, in_ms * MS, launch_ms * MS, are_measured=True)
        driver.scheduler.calibrate(prices, driver.now)
        return driver, Preemptions(driver.scheduler.config, driver.scheduler.lifecycle)

    @pytest.mark.parametrize(("out_ms", "in_ms", "swaps"), [(2, 1.9, True), (2, 2.1, False), (0, 3.9, True)])
    def test_the_cheaper_way_per_block_is_taken(self, out_ms: float, in_ms: float, swaps: bool):
        driver, preemptions = self.preemptions(out_ms, in_ms)

        assert preemptions.prefers_swap(seq_of(driver, "a"), 2) is swaps
        assert mode_of(driver) is (PreemptionMode.SWAP if swaps else PreemptionMode.RECOMPUTE)

    @pytest.mark.parametrize(("num_blocks", "swaps"), [(2, False), (4, True)])
    def test_a_launch_is_paid_once_for_each_way(self, num_blocks: int, swaps: bool):
        driver, preemptions = self.preemptions(1, 1, launch_ms=3)  # (2 + 2 + 6) / 2 and (4 + 4 + 6) / 4

        assert preemptions.prefers_swap(seq_of(driver, "a"), num_blocks) is swaps

    def test_the_way_out_is_hidden_behind_the_steps_of_others(self):
        driver, preemptions = self.preemptions(4, 1, base_ms=6)
        assert not preemptions.prefers_swap(seq_of(driver, "a"), 2)  # (8 + 2) / 2
        driver.add(make_request("c", tenant="a", prompt=1, max_output_tokens=4))
        driver.scheduler.lifecycle.policy.policy.refuses = "b"
        driver.step()

        assert preemptions.prefers_swap(seq_of(driver, "a"), 2)  # (8 - 6 + 2) / 2

    def test_what_is_queued_on_the_link_has_to_be_waited_for(self):
        driver, preemptions = self.preemptions(1, 1)
        driver.runner = ConstantRunner()
        driver.add(make_request("c", tenant="a", prompt=8, max_output_tokens=4))
        driver.scheduler.lifecycle.policy.policy.refuses = "b"
        driver.step()
        assert preemptions.prefers_swap(seq_of(driver, "a"), 2)
        driver.scheduler.lifecycle.running.remove(other := seq_of(driver, "c"))
        for _ in range(2):
            driver.scheduler.lifecycle.blocks.swap_out(other, 1)

        assert preemptions.queued_out_ns() == 2 * MS
        assert preemptions.prefers_swap(seq_of(driver, "a"), 2)  # (2 + 2 + 2) / 2
        driver.scheduler.calibrate(Prices(StepCosts(0.0, MS, 0.0, 0.0), 1.4 * MS, 1.4 * MS), driver.now)
        assert not preemptions.prefers_swap(seq_of(driver, "a"), 2)  # 3 x 2.8 / 2

    def test_what_has_computed_less_than_two_blocks_is_not_worth_a_copy(self):
        driver = make_driver(
            Scripted(concedes={"a": Concession.ANYTHING}), preemption_mode=AUTO, max_num_batched_tokens=4
        )
        driver.add(make_request("a", tenant="a", prompt=16, max_output_tokens=8))
        driver.step()
        preemptions = Preemptions(driver.scheduler.config, driver.scheduler.lifecycle)
        driver.scheduler.calibrate(Prices(copy_out_block_ns=0.0, copy_in_block_ns=0.0), driver.now)
        assert not preemptions.prefers_swap(seq_of(driver, "a"), 1)
        driver.step()

        assert preemptions.prefers_swap(seq_of(driver, "a"), 2)


class TestLink:
    def preemptions(self, link_share: float) -> Preemptions:
        driver = holding(link_share=link_share)
        prices = Prices(copy_out_block_ns=1.0 * MS, copy_in_block_ns=2.0 * MS, copy_launch_ns=1.0 * MS)
        driver.scheduler.calibrate(prices, driver.now)
        return Preemptions(driver.scheduler.config, driver.scheduler.lifecycle)

    def test_copies_in_one_direction_take_no_more_than_their_share_of_the_time(self):
        preemptions = self.preemptions(0.25)
        preemptions.note_copy(CopyDirection.OUT, 2, Nanos(10 * MS))

        assert not preemptions.is_link_free(CopyDirection.OUT, Nanos(22 * MS - 1))
        assert preemptions.is_link_free(CopyDirection.OUT, Nanos(22 * MS))
        assert preemptions.is_link_free(CopyDirection.IN, Nanos(10 * MS))

    def test_copies_at_once_queue_up(self):
        preemptions = self.preemptions(0.5)
        for _ in range(2):
            preemptions.note_copy(CopyDirection.IN, 2, Nanos(0))

        assert not preemptions.is_link_free(CopyDirection.IN, Nanos(20 * MS - 1))
        assert preemptions.is_link_free(CopyDirection.IN, Nanos(20 * MS))

    def test_the_whole_link_is_always_free(self):
        preemptions = self.preemptions(1.0)
        preemptions.note_copy(CopyDirection.OUT, 1000, Nanos(0))

        assert preemptions.is_link_free(CopyDirection.OUT, Nanos(0))

    def test_a_head_that_needs_the_link_waits_for_it(self):
        driver = holding(output=16, link_share=0.25)
        driver.scheduler.calibrate(Prices(copy_out_block_ns=1.0 * MS), driver.now)
        driver.scheduler.planner._memory.preemptions.note_copy(CopyDirection.OUT, 2, driver.now)
        for _ in range(8):
            assert driver.chunks()[0][0] == "a"

        assert driver.plan().copies[0].direction is CopyDirection.OUT

    def test_what_is_to_come_back_does_not_wait_for_a_link_that_nobody_uses(self):
        driver = make_driver(Scripted(concedes={"a": Concession.ANYTHING}), link_share=0.01, partial_swap=False)
        driver.add(*(make_request(name, tenant="a", prompt=8, max_output_tokens=8) for name in ("first", "second")))
        driver.step()
        driver.add(make_request("b", tenant="b", prompt=24, max_output_tokens=1))
        while "b" in driver.scheduler.lifecycle.by_generation:
            driver.step()
        driver.step()  # "first" is back
        driver.abort("first")
        driver.run()

        assert driver.finished("second").reason is FinishReason.LENGTH
        assert driver.scheduler.policy_fault is None
