"""A scheduler whose copies, host blocks, flows or waiting lists were tampered with is found out."""

from collections import abc

import pytest

from engine.core import invariants
from engine.core.block_manager import CopyInFlight
from engine.core.errors import InvariantError
from engine.core.plan import BlockCopy, CopyDirection
from engine.core.policy import Concession
from engine.core.scheduler import Scheduler
from engine.core.types import CopyId, FinishReason, HostBlockId, Nanos, SequenceStatus
from tests.builders import make_request
from tests.core.scripted import Scripted, end_copies, make_driver, seq_of, status_of

NOW = Nanos(0)


def copying_scheduler() -> Scheduler:
    """ "a1" is swapped, "a2" on its way out, "b" runs, "d" waits for what "a2" gives up."""
    driver = make_driver(
        Scripted(concedes={"a": Concession.SWAP}), is_late=True, num_device_blocks=16, partial_swap=False
    )
    driver.add(*(make_request(name, tenant="a", prompt=14, max_output_tokens=8) for name in ("a2", "a1")))
    driver.step()
    driver.add(make_request("b", tenant="b", prompt=37, max_output_tokens=8))
    driver.step()
    end_copies(driver)
    driver.step()
    driver.step()
    driver.add(make_request("d", tenant="d", prompt=13, max_output_tokens=8))
    driver.step()
    assert status_of(driver, "a1") is SequenceStatus.SWAPPED
    assert status_of(driver, "a2") is SequenceStatus.SWAPPING_OUT
    assert seq_of(driver, "b").row is not None
    invariants.check(driver.scheduler)
    return driver.scheduler


def seq(scheduler: Scheduler, generation_id: str):
    return scheduler.lifecycle.by_generation[generation_id]


def the_copy(scheduler: Scheduler) -> CopyInFlight:
    (entry,) = scheduler.lifecycle.blocks.in_flight.values()
    return entry


def lose_a_host_block(scheduler: Scheduler) -> None:
    seq(scheduler, "a1").block_table.host.pop()


def free_a_host_block_that_is_used(scheduler: Scheduler) -> None:
    scheduler.lifecycle.blocks.host_pool.release(seq(scheduler, "a1").block_table.host[:1])


def use_a_host_block_twice(scheduler: Scheduler) -> None:
    block_id = seq(scheduler, "a2").block_table.host[0]
    scheduler.lifecycle.blocks.host_pool.share([block_id])
    seq(scheduler, "a1").block_table.host.append(block_id)


def free_a_fenced_block(scheduler: Scheduler) -> None:
    scheduler.lifecycle.blocks.pool.release(the_copy(scheduler).copy.device_block_ids[:1])


def use_a_fenced_block(scheduler: Scheduler) -> None:
    block_id = the_copy(scheduler).copy.device_block_ids[0]
    scheduler.lifecycle.blocks.pool.share([block_id])
    seq(scheduler, "b").block_table.device.append(block_id)


def miscount_fences(scheduler: Scheduler) -> None:
    scheduler.lifecycle.blocks.num_fenced += 1


def forget_a_copy(scheduler: Scheduler) -> None:
    entry = the_copy(scheduler)
    scheduler.lifecycle.blocks.in_flight.clear()
    scheduler.lifecycle.blocks.pool.release(entry.copy.device_block_ids)
    scheduler.lifecycle.blocks.num_fenced = 0


def end_a_copy_without_a_change(scheduler: Scheduler) -> None:
    entry = the_copy(scheduler)
    scheduler.lifecycle.set_status(entry.seq, SequenceStatus.SWAPPED)


def begin_a_second_copy(scheduler: Scheduler) -> None:
    blocks = scheduler.lifecycle.blocks
    blocks.grow(seq(scheduler, "a2"), 1)
    blocks.swap_out(seq(scheduler, "a2"), 1)


def begin_an_empty_copy(scheduler: Scheduler) -> None:
    entry = the_copy(scheduler)
    lopsided = BlockCopy(CopyId(0), CopyDirection.IN, entry.copy.device_block_ids, ())
    scheduler.lifecycle.blocks.in_flight[entry.copy.copy_id] = CopyInFlight(entry.seq, lopsided)
    scheduler.lifecycle.blocks.num_fenced = 0
    scheduler.lifecycle.blocks.pool.release(entry.copy.device_block_ids)


def forget_one_that_is_swapped(scheduler: Scheduler) -> None:
    scheduler.lifecycle.swapped.clear()


def swap_without_host_blocks(scheduler: Scheduler) -> None:
    table = seq(scheduler, "a1").block_table
    scheduler.lifecycle.blocks.host_pool.release(table.host)
    table.host.clear()


def forget_to_tell_the_policy_of_one_that_is_swapped(scheduler: Scheduler) -> None:
    del scheduler.lifecycle.policy.waiting[seq(scheduler, "a1").arrival_index]


def tell_the_policy_of_one_that_is_being_copied(scheduler: Scheduler) -> None:
    scheduler.lifecycle.policy.waiting[seq(scheduler, "a2").arrival_index] = seq(scheduler, "a2")


def give_a_row_to_one_that_is_swapped(scheduler: Scheduler) -> None:
    seq(scheduler, "a1").row = scheduler.lifecycle.rows.take()


def compute_on_the_host(scheduler: Scheduler) -> None:
    seq(scheduler, "a1").num_computed_tokens -= 1
    seq(scheduler, "a1").num_scheduled_tokens = 1


def miscount_the_blocks_of_a_flow(scheduler: Scheduler) -> None:
    seq(scheduler, "b").flow.num_device_blocks += 1


def miscount_the_rows_of_a_flow(scheduler: Scheduler) -> None:
    seq(scheduler, "b").flow.num_rows -= 1


def miscount_who_wants_something(scheduler: Scheduler) -> None:
    seq(scheduler, "d").flow.num_wanting += 1


def list_a_free_host_block_twice(scheduler: Scheduler) -> None:
    scheduler.lifecycle.blocks.host_pool._free.append(HostBlockId(15))


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (lose_a_host_block, "host block 3: 0 uses, 1 references"),
        (free_a_host_block_that_is_used, "host block 0: 1 uses, 0 references"),
        (use_a_host_block_twice, "host block .* is in 2 tables"),
        (list_a_free_host_block_twice, "host block 15: 0 uses, 2 times free"),
        (free_a_fenced_block, "device block .*: 1 uses, 0 references"),
        (use_a_fenced_block, "is in 2 tables|on its way out is in a table"),
        (miscount_fences, "blocks fenced, of"),
        (forget_a_copy, "swapping are .*, copies are under way for set"),
        (end_a_copy_without_a_change, "swapping are set"),
        (begin_a_second_copy, "several copies of one sequence"),
        (begin_an_empty_copy, "lopsided|device block"),
        (forget_one_that_is_swapped, "swapped lists arrivals"),
        (swap_without_host_blocks, "is swapped with 0 host blocks"),
        (forget_to_tell_the_policy_of_one_that_is_swapped, "the policy knows otherwise"),
        (tell_the_policy_of_one_that_is_being_copied, "the policy knows otherwise"),
        (give_a_row_to_one_that_is_swapped, "is swapped, seq.row=0"),
        (compute_on_the_host, "is computed while it is on the host"),
        (miscount_the_blocks_of_a_flow, "blocks counted"),
        (miscount_the_rows_of_a_flow, "rows counted"),
        (miscount_who_wants_something, "1 want, counted 2"),
    ],
)
def test_a_contradiction_is_noticed(tamper: abc.Callable[[Scheduler], None], message: str):
    scheduler = copying_scheduler()
    tamper(scheduler)

    with pytest.raises(InvariantError, match=message):
        invariants.check(scheduler)


def test_an_ended_sequence_may_still_be_copied():
    scheduler = copying_scheduler()
    entry = the_copy(scheduler)
    scheduler.abort("a2", FinishReason.CANCELLED, NOW)
    invariants.check(scheduler)
    scheduler.complete_copies([entry.copy.copy_id], NOW)
    invariants.check(scheduler)

    assert entry.copy.device_block_ids[0] in scheduler.lifecycle.blocks.pool.free_ids
