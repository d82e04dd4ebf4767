"""A scheduler whose state was tampered with is found out."""

import subprocess
import sys
from collections import abc

import pytest

from engine.core import invariants
from engine.core.errors import InvariantError
from engine.core.scheduler import Scheduler
from engine.core.types import BlockId, SequenceStatus
from tests.builders import Driver, make_request, make_scheduler


def busy_scheduler() -> Scheduler:
    """One sequence runs, one is held with blocks, one is paused, one waits."""
    driver = Driver(make_scheduler(max_num_seqs=1, max_num_batched_tokens=8))
    driver.add(make_request("held", prompt=4, granted_output_tokens=1))
    driver.step()
    driver.add(make_request("paused", prompt=4, granted_output_tokens=1))
    driver.step()
    driver.add(make_request("running", prompt=12), make_request("waiting", tenant="b", deadline=10**12))
    driver.step()
    driver.scheduler.grant("paused", 4, driver.now)
    invariants.check(driver.scheduler)
    return driver.scheduler


def seq(scheduler: Scheduler, generation_id: str):
    return scheduler.lifecycle.by_generation[generation_id]


def leak_a_block(scheduler: Scheduler) -> None:
    scheduler.lifecycle.blocks.pool.allocate(1)


def share_a_written_block(scheduler: Scheduler) -> None:
    block_ids = seq(scheduler, "running").block_table.device[:1]
    scheduler.lifecycle.blocks.pool.share(block_ids)
    seq(scheduler, "held").block_table.device += block_ids


def free_a_used_block(scheduler: Scheduler) -> None:
    scheduler.lifecycle.blocks.pool.release(seq(scheduler, "running").block_table.device[:1])


def list_a_free_block_twice(scheduler: Scheduler) -> None:
    scheduler.lifecycle.blocks.pool._free.append(BlockId(20))


def lose_a_row(scheduler: Scheduler) -> None:
    scheduler.lifecycle.rows.num_rows += 1


def share_a_row(scheduler: Scheduler) -> None:
    seq(scheduler, "held").row = seq(scheduler, "running").row


def forget_a_running_sequence(scheduler: Scheduler) -> None:
    scheduler.lifecycle.running.clear()


def forget_that_one_is_held(scheduler: Scheduler) -> None:
    seq(scheduler, "held").granted_output_tokens = 3


def leave_a_waiting_sequence_its_blocks(scheduler: Scheduler) -> None:
    seq(scheduler, "waiting").block_table.device = seq(scheduler, "paused").block_table.device
    seq(scheduler, "paused").block_table.device = []


def change_a_status(scheduler: Scheduler) -> None:
    seq(scheduler, "waiting").status = SequenceStatus.PAUSED


def compute_unknown_tokens(scheduler: Scheduler) -> None:
    seq(scheduler, "running").num_computed_tokens += 10


def compute_without_blocks(scheduler: Scheduler) -> None:
    seq(scheduler, "waiting").num_computed_tokens += 1


def emit_a_token_too_many(scheduler: Scheduler) -> None:
    seq(scheduler, "held").output_token_ids.append(1)


def schedule_outside_a_plan(scheduler: Scheduler) -> None:
    seq(scheduler, "running").num_computed_tokens -= 1
    seq(scheduler, "running").num_scheduled_tokens = 1


def ignore_a_deadline(scheduler: Scheduler) -> None:
    scheduler.lifecycle.expiring.discard(seq(scheduler, "waiting"))


def miscount_a_tenant(scheduler: Scheduler) -> None:
    seq(scheduler, "waiting").flow.account.num_sequences[SequenceStatus.WAITING] += 1


def miscount_a_shared_block(scheduler: Scheduler) -> None:
    running = seq(scheduler, "running")
    running.flow.block_refs[running.block_table.device[0]] = 2


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (leak_a_block, "0 uses, 1 references"),
        (share_a_written_block, "is in 2 tables, and"),
        (free_a_used_block, "1 uses, 0 references"),
        (list_a_free_block_twice, "device block 20: 0 uses, 2 times free"),
        (lose_a_row, "of 2"),
        (share_a_row, "two sequences share a row"),
        (forget_a_running_sequence, "running lists arrivals"),
        (forget_that_one_is_held, "held lists arrivals"),
        (leave_a_waiting_sequence_its_blocks, "paused lists arrivals|waits with blocks"),
        (change_a_status, "neither held nor waiting"),
        (compute_unknown_tokens, "known tokens"),
        (compute_without_blocks, "1 tokens in 0 blocks"),
        (emit_a_token_too_many, "tokens are known"),
        (schedule_outside_a_plan, "the open plan has"),
        (ignore_a_deadline, "expiry is not watched"),
        (miscount_a_shared_block, "blocks counted as being in"),
        (miscount_a_tenant, "org-b/b in default: 1 waiting, counted 2"),
    ],
)
def test_a_contradiction_is_noticed(tamper: abc.Callable[[Scheduler], None], message: str):
    scheduler = busy_scheduler()
    tamper(scheduler)

    with pytest.raises(InvariantError, match=message):
        invariants.check(scheduler)


UNDER_OPTIMIZATION = """
from engine.core import invariants
from tests.builders import Driver, make_request, make_scheduler

driver = Driver(make_scheduler())
driver.add(make_request("a", prompt=4, max_output_tokens=4))
driver.step()
invariants.check(driver.scheduler)
driver.scheduler.lifecycle.blocks.pool.allocate(1)
invariants.check(driver.scheduler)
"""


def test_a_contradiction_is_noticed_where_python_leaves_assertions_out():
    command = [sys.executable, "-O", "-c", UNDER_OPTIMIZATION]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "InvariantError: device block" in ended.stderr.splitlines()[-1]


def test_what_other_code_asserts_stays_its_own(monkeypatch: pytest.MonkeyPatch):
    scheduler = busy_scheduler()

    def fail() -> None:
        raise AssertionError("a policy's own")

    monkeypatch.setattr(scheduler.lifecycle.flows, "all", fail)
    with pytest.raises(AssertionError, match="a policy's own"):
        invariants.check(scheduler)
