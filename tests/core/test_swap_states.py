"""A sequence whose blocks move to the host and back: what is copied, who may use what meanwhile, and where it ends."""

import pytest

from engine.core.errors import StaleOutputError
from engine.core.plan import BlockCopy, CopyDirection
from engine.core.policy import Concession
from engine.core.types import (
    BlockId,
    CopyId,
    FinishReason,
    HostBlockId,
    PauseReason,
    PreemptionMode,
    PriorityClass,
    SequenceStatus,
)
from tests.builders import Driver, make_request
from tests.core.scripted import Scripted, end_copies, make_driver, preemptions_of, seq_of, status_of
from tests.fakes import expected_output

OUT = BlockCopy(CopyId(0), CopyDirection.OUT, (BlockId(2), BlockId(3)), (HostBlockId(0), HostBlockId(1)))


def swapping_out(**fields: object) -> Driver:
    """ "a" holds four of eight blocks and is about to need a fifth; two of them are on their way out for "b", which
    needs five. The copy is late."""
    driver = make_driver(Scripted(concedes={"a": Concession.SWAP}), is_late=True, **fields)
    driver.add(make_request("a", tenant="a", prompt=16, max_output_tokens=8))
    driver.step()
    driver.add(make_request("b", tenant="b", prompt=17, max_output_tokens=2))
    driver.step()
    assert status_of(driver, "a") is SequenceStatus.SWAPPING_OUT
    return driver


def swapped(**fields: object) -> Driver:
    """The copy has ended, and "b" runs."""
    driver = swapping_out(**fields)
    end_copies(driver)
    driver.step()
    assert status_of(driver, "a") is SequenceStatus.SWAPPED
    driver.step()
    return driver


def swapping_in(**fields: object) -> Driver:
    """ "b" has ended, and the blocks of "a" are on their way back. That copy is late, too."""
    driver = swapped(**fields)
    while status_of(driver, "a") is not SequenceStatus.SWAPPING_IN:
        driver.step()
    return driver


def blocks_of(driver: Driver, generation_id: str) -> tuple[list[int], list[int]]:
    table = seq_of(driver, generation_id).block_table
    return table.device, table.host


class TestLifeCycle:
    def test_the_last_blocks_leave_and_the_head_stays(self):
        driver = swapping_out()

        assert driver.plans[-1].copies == (OUT,)
        assert driver.plans[-1].rows == ()
        assert blocks_of(driver, "a") == ([0, 1], [0, 1])
        assert seq_of(driver, "a").num_computed_tokens == 16

    def test_blocks_that_are_being_copied_are_nobodys(self):
        driver = swapping_out()

        stats = driver.scheduler.stats()
        assert (stats.num_free_blocks, stats.num_fenced_blocks, stats.num_swapping) == (4, 2, 1)
        assert driver.plan() is None
        assert driver.scheduler.num_copies_in_flight == 1

    def test_the_head_comes_in_when_the_copy_has_ended(self):
        driver = swapping_out()
        end_copies(driver)
        driver.step()

        assert driver.scheduler.stats().num_fenced_blocks == 0
        assert driver.chunks() == [("b", 0, 17)]
        assert driver.scheduler.stats().num_swapped == 1

    def test_what_left_comes_back_and_goes_on_where_it_was(self):
        driver = swapping_in()
        (copy,) = driver.plans[-1].copies
        assert (copy.direction, copy.host_block_ids) == (CopyDirection.IN, (0, 1))
        assert blocks_of(driver, "a") == ([0, 1, *copy.device_block_ids], [])
        assert driver.plan() is None  # nobody computes with what is not there yet
        end_copies(driver)
        driver.step()

        assert status_of(driver, "a") is SequenceStatus.PAUSED
        assert driver.chunks() == [("a", 16, 1)]
        assert driver.scheduler.stats().num_free_host_blocks == 16

    def test_no_token_is_lost_or_computed_again(self):
        driver = make_driver(Scripted(concedes={"a": Concession.SWAP}))
        request = make_request("a", tenant="a", prompt=16, max_output_tokens=8)
        driver.add(request)
        driver.step()
        driver.add(make_request("b", tenant="b", prompt=17, max_output_tokens=2))
        driver.run()

        assert driver.output("a") == expected_output(request)
        usage = driver.finished("a").usage
        assert (usage.num_preemptions, usage.num_recomputed_tokens) == (1, 0)

    def test_it_is_counted(self):
        driver = swapping_in()
        a = driver.scheduler.stats().tenants[0]

        assert (a.num_preemptions, a.num_swaps_out, a.num_swaps_in, a.num_copied_blocks) == (1, 1, 1, 4)
        assert driver.scheduler.stats().num_swaps == 1
        assert (driver.scheduler.stats().num_copied_out, driver.scheduler.stats().num_copied_in) == (2, 2)
        assert preemptions_of(driver) == [("a", PreemptionMode.SWAP, PauseReason.KV_PRESSURE)]

    def test_one_that_yields_is_moved_for_fairness(self):
        driver = make_driver(Scripted(concedes={"a": Concession.ANYTHING}))
        driver.add(make_request("a", tenant="a", prompt=16, max_output_tokens=8))
        driver.step()
        driver.scheduler.lifecycle.policy.policy.yielding = "a"
        driver.add(make_request("b", tenant="b", prompt=17, max_output_tokens=2))
        driver.step()
        driver.step()

        assert preemptions_of(driver)[0] == ("a", PreemptionMode.SWAP, PauseReason.FAIRNESS)

    def test_all_blocks_leave_where_parts_are_not_allowed(self):
        driver = swapping_out(partial_swap=False)

        assert blocks_of(driver, "a") == ([], [0, 1, 2, 3])

    def test_a_copy_is_told_once(self):
        driver = swapping_out()
        driver.scheduler.complete_copies([CopyId(0)], driver.now)
        for copy_ids in ([CopyId(0)], [CopyId(7)]):
            with pytest.raises(StaleOutputError):
                driver.scheduler.complete_copies(copy_ids, driver.now)

        assert status_of(driver, "a") is SequenceStatus.SWAPPED

    def test_copies_told_twice_at_once_change_nothing(self):
        driver = swapping_out()
        with pytest.raises(StaleOutputError):
            driver.scheduler.complete_copies([CopyId(0), CopyId(0)], driver.now)

        assert status_of(driver, "a") is SequenceStatus.SWAPPING_OUT


class TestEnds:
    @pytest.mark.parametrize("make", [swapping_out, swapping_in])
    def test_what_ends_during_a_copy_keeps_its_blocks_until_that_has_ended(self, make):
        driver = make()
        num_free, num_host_free = (
            driver.scheduler.stats().num_free_blocks,
            driver.scheduler.stats().num_free_host_blocks,
        )
        driver.abort("b") if make is swapping_out else None
        events = driver.abort("a")
        assert [event.reason for event in events] == [FinishReason.CANCELLED]

        stats = driver.scheduler.stats()
        assert (stats.num_free_blocks, stats.num_free_host_blocks) == (num_free, num_host_free)
        end_copies(driver)
        driver.run()

        stats = driver.scheduler.stats()
        assert (stats.num_free_blocks, stats.num_free_host_blocks) == (8, 16)

    def test_what_ends_while_it_is_swapped_is_gone_at_once(self):
        driver = swapped()
        driver.abort("b")
        driver.abort("a")

        stats = driver.scheduler.stats()
        assert (stats.num_free_blocks, stats.num_free_host_blocks) == (8, 16)

    @pytest.mark.parametrize("make", [swapping_out, swapping_in])
    def test_when_all_fail_the_blocks_of_copies_are_kept_until_those_have_ended(self, make):
        driver = make()
        driver.scheduler.fail_all("the step failed", driver.now)
        assert driver.scheduler.num_copies_in_flight == 1
        assert driver.scheduler.stats().num_free_blocks < 8
        end_copies(driver)
        driver.run()

        stats = driver.scheduler.stats()
        assert (stats.num_free_blocks, stats.num_fenced_blocks, stats.num_free_host_blocks) == (8, 0, 16)


class TestHolds:
    def hold(self, driver: Driver, *, blocked: bool) -> None:
        driver.scheduler.set_reader_blocked("a", blocked, driver.now)

    def test_what_is_held_on_its_way_out_does_not_come_back(self):
        driver = swapping_out()
        self.hold(driver, blocked=True)
        end_copies(driver)
        driver.run()

        assert status_of(driver, "a") is SequenceStatus.SWAPPED
        assert driver.finished("b").reason is FinishReason.LENGTH

    def test_what_is_let_go_comes_back(self):
        driver = swapped()
        self.hold(driver, blocked=True)
        driver.run()
        self.hold(driver, blocked=False)
        driver.step()

        assert status_of(driver, "a") is SequenceStatus.SWAPPING_IN

    def test_what_is_held_on_its_way_back_keeps_its_blocks_and_is_not_computed(self):
        driver = swapping_in()
        self.hold(driver, blocked=True)
        end_copies(driver)
        driver.run()
        assert status_of(driver, "a") is SequenceStatus.PAUSED
        assert driver.scheduler.lifecycle.held == [seq_of(driver, "a")]
        self.hold(driver, blocked=False)

        assert driver.chunks() == [("a", 16, 1)]

    @pytest.mark.parametrize("make", [swapping_out, swapping_in])
    def test_a_hold_that_is_over_before_the_copy_changes_nothing(self, make):
        driver = make()
        for blocked in (True, False):
            self.hold(driver, blocked=blocked)
        while driver.scheduler.has_unfinished:
            end_copies(driver)
            driver.step()

        assert driver.finished("a").usage.num_recomputed_tokens == 0

    @pytest.mark.parametrize("make", [swapping_out, swapped, swapping_in])
    def test_another_class_takes_the_blocks_along(self, make):
        driver = make()
        driver.scheduler.set_class("a", PriorityClass("other", 3), driver.now)
        while driver.scheduler.has_unfinished:
            end_copies(driver)
            driver.step()

        assert all(flow.num_device_blocks == 0 for flow in driver.scheduler.lifecycle.flows.all())
        assert driver.finished("a").reason is FinishReason.LENGTH
