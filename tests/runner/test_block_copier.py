"""Copies between the pools: which blocks, in how few pieces, and what is told of them when."""

import threading

import pytest
import torch

from engine.core.config import SchedulerConfig
from engine.core.plan import BlockCopy, CopyDirection, StepOutput, StepPlan
from engine.model.loader import load_model
from engine.runner.block_copier import CopyFailedError, pieces, runs
from engine.runner.model_runner import ModelRunner
from tests.model import tiny_llama

CONFIG = SchedulerConfig(4, 64, 4, num_device_blocks=12, max_model_len=64, num_host_blocks=10)
OUT = BlockCopy(7, CopyDirection.OUT, (3, 4, 9, 0), (5, 6, 2, 1))
IN = BlockCopy(8, CopyDirection.IN, (11, 3, 4, 6), (5, 6, 2, 1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_llama.write_folder(tmp_path_factory.mktemp("tiny") / "m", tiny_llama.make_model())


@pytest.fixture(params=["float32", "bfloat16"])
def runner(request, folder):
    runner = ModelRunner(load_model(folder, dtype=request.param, device="cpu"), CONFIG)
    runner.kv_cache.blocks.normal_()
    runner.kv_cache.host_blocks.normal_()
    return runner


class Gate:
    """Holds copies up until it is opened, or makes them fail; `arrived` is set when one is held."""

    def __init__(self, runner) -> None:
        self.arrived, self.opened = threading.Event(), threading.Event()
        self.error = None
        self._mover = runner._copier._mover
        runner._copier._mover = self

    def prepare(self):
        move = self._mover.prepare()

        def held(copy):
            self.arrived.set()
            assert self.opened.wait(30)
            if self.error is not None:
                raise self.error
            return move(copy)

        return held


def copy_blocks(runner, *copies):
    """Run a plan of them to their end; the ids in the order in which they were told."""
    wake = threading.Semaphore(0)
    runner.wake_on_completion(wake.release)
    ended = [*runner.execute(StepPlan(1, copies=copies)).completed_copies]
    return wait_for(runner, len(copies), ended, wake)


def wait_for(runner, num_copies, ended, wake):
    while len(ended := [*ended, *runner.take_completed()]) < num_copies:
        assert wake.acquire(timeout=30)
    return ended


@pytest.mark.parametrize(
    ("device", "host", "expected"),
    [
        ((), (), []),
        ((5,), (2,), [(5, 2, 1)]),
        ((5, 6, 7), (2, 3, 4), [(5, 2, 3)]),
        ((7, 5, 6), (4, 2, 3), [(5, 2, 3)]),
        ((5, 6, 7), (4, 3, 2), [(5, 4, 1), (6, 3, 1), (7, 2, 1)]),
        ((1, 2, 8, 9), (1, 2, 3, 4), [(1, 1, 2), (8, 3, 2)]),
        ((1, 2, 3, 4), (1, 2, 8, 9), [(1, 1, 2), (3, 8, 2)]),
    ],
)
def test_blocks_that_are_adjacent_in_both_pools_are_one_run(device, host, expected):
    assert runs(BlockCopy(0, CopyDirection.OUT, device, host)) == expected


def test_pieces_hold_the_same_blocks_and_no_more_than_they_may():
    cut = list(pieces([(0, 5, 3), (9, 1, 1), (20, 30, 5)], 4))
    assert cut == [[(0, 5, 3), (9, 1, 1)], [(20, 30, 4)], [(24, 34, 1)]]


def test_pools_are_block_major_and_a_layer_is_a_view_of_them(runner):
    cache = runner.kv_cache
    assert cache.blocks.is_contiguous()
    assert cache.blocks[0].shape == cache.host_blocks[0].shape == (cache.layers.shape[0], *cache.layers.shape[2:])
    cache.layers[1][3] = 5.0
    assert torch.equal(cache.blocks[3, 1], torch.full_like(cache.blocks[3, 1], 5.0))


def test_blocks_change_pools_whole_and_no_other_block_is_touched(runner):
    cache = runner.kv_cache
    device, host = cache.blocks.clone(), cache.host_blocks.clone()
    copy_blocks(runner, OUT)
    host[[5, 6, 2, 1]] = device[[3, 4, 9, 0]]
    assert torch.equal(cache.host_blocks, host)
    assert torch.equal(cache.blocks, device)
    copy_blocks(runner, IN)
    device[[11, 3, 4, 6]] = host[[5, 6, 2, 1]]
    assert torch.equal(cache.blocks, device)
    assert torch.equal(cache.host_blocks, host)


def test_step_does_not_wait_for_its_copies_and_each_is_told_once(runner):
    gate, wake = Gate(runner), threading.Semaphore(0)
    runner.wake_on_completion(wake.release)
    assert runner.execute(StepPlan(1, copies=(OUT, IN))) == StepOutput(1)
    assert gate.arrived.wait(30)
    assert runner.take_completed() == ()
    gate.opened.set()
    assert wait_for(runner, 2, [], wake) == [7, 8]
    assert runner.execute(StepPlan(2)) == StepOutput(2)


def test_copy_that_ended_beside_a_step_is_in_its_output(runner):
    ended = threading.Event()
    runner.wake_on_completion(ended.set)
    runner.execute(StepPlan(1))
    runner._copier.start((OUT,))
    assert ended.wait(30)
    assert runner.execute(StepPlan(2)) == StepOutput(2, completed_copies=(7,))


def test_failed_copy_is_raised_once_and_then_told_as_completed(runner):
    gate = Gate(runner)
    gate.error = RuntimeError("the link is down")
    ended = threading.Event()
    runner.wake_on_completion(ended.set)
    runner.execute(StepPlan(1, copies=(OUT,)))
    gate.opened.set()
    assert ended.wait(30)
    with pytest.raises(CopyFailedError) as caught:
        runner.execute(StepPlan(2))
    assert caught.value.copy_id == 7
    assert caught.value.__cause__ is gate.error
    assert runner.take_completed() == (7,)
    assert runner.take_copy_timings() == ()


def test_timings_tell_direction_and_size(runner):
    assert copy_blocks(runner, OUT, IN) == [7, 8]
    timings = runner.take_copy_timings()
    assert [(timing.direction, timing.num_blocks) for timing in timings] == [
        (CopyDirection.OUT, 4),
        (CopyDirection.IN, 4),
    ]
    assert all(timing.elapsed_ns > 0 for timing in timings)
    assert runner.take_copy_timings() == ()
