"""What came of steps, in a decision log: some that were lost, and drafts that were certain."""

import io
import re
from dataclasses import replace

import pytest

from engine.core.types import Nanos
from engine.sim.errors import ReplayError
from engine.sim.replay import replay
from tests.builders import make_request
from tests.fakes import ReferenceRunner
from tests.sim.simulations import LINE
from tests.sim.test_decision_log import calls, recorded


def test_a_step_that_was_lost_is_lost_again():
    file = io.StringIO()
    scheduler, _ = recorded(file, num_device_blocks=30)
    runner = ReferenceRunner(scheduler.config.block_size)
    for index, tenant in enumerate("abcab"):
        scheduler.add(make_request(f"g{index}", tenant=tenant, prompt=9, max_output_tokens=6), Nanos(index))
    for step in range(200):
        plan = scheduler.plan(Nanos(10 + 10 * step))
        if plan is None:
            break
        output = runner.execute(plan)
        if step in (0, 3, 7):
            scheduler.requeue(Nanos(10 + 10 * step))
        else:
            scheduler.commit(output, Nanos(15 + 10 * step))
    lines = file.getvalue().splitlines()
    assert not scheduler.has_unfinished
    assert len(calls(file, "requeue")) == 3

    assert replay(lines).is_identical
    lost = next(index for index, line in enumerate(lines) if '"requeue"' in line)
    with pytest.raises(ReplayError, match="no plan is open"):
        replay([*lines[: lost + 1], lines[lost]])


def test_certain_drafts_are_replayed_as_such():
    file = io.StringIO()
    scheduler, _ = recorded(file, num_device_blocks=400, num_draft_tokens=4, max_num_seqs=16)
    scheduler.calibrate(LINE.scheduler_prices(), Nanos(0))
    for index in range(16):
        scheduler.add(make_request(f"g{index}", tenant="ab"[index % 2], prompt=9, max_output_tokens=30), Nanos(index))
    runner = ReferenceRunner(scheduler.config.block_size)
    for step in range(200):
        plan = scheduler.plan(Nanos(20 + 10 * step))
        if plan is None:
            break
        output = runner.execute(plan)
        scheduler.commit(replace(output, certain=output.proposed), Nanos(25 + 10 * step))
    lines = file.getvalue().splitlines()
    assert scheduler.stats().totals.num_drafted_tokens > 0

    assert replay(lines).is_identical
    forgotten = [re.sub(r',"certain":{[^}]*}', "", line) for line in lines]
    assert forgotten != lines
    assert not replay(forgotten).is_identical
