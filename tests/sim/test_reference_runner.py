"""Copies in the reference runner: what is fenced, what is poison, and when they end."""

import pytest

from engine.core.plan import BlockCopy, CopyDirection, RowStart, StepPlan
from engine.core.types import BlockId, CopyId, HostBlockId, SamplingParams, SequenceKey
from engine.sim.reference_runner import ReferenceRunner, RunnerFaultError, sample, slot_after

BLOCK_SIZE = 4
PROMPT = (5, 6, 7, 8, 9, 10)


def copy(direction: CopyDirection, device: tuple[int, ...], host: tuple[int, ...], copy_id: int = 1) -> BlockCopy:
    return BlockCopy(CopyId(copy_id), direction, tuple(map(BlockId, device)), tuple(map(HostBlockId, host)))


def out(device: tuple[int, ...] = (0, 1), host: tuple[int, ...] = (7, 8), copy_id: int = 1) -> BlockCopy:
    return copy(CopyDirection.OUT, device, host, copy_id)


def back(device: tuple[int, ...] = (4, 5), host: tuple[int, ...] = (7, 8), copy_id: int = 2) -> BlockCopy:
    return copy(CopyDirection.IN, device, host, copy_id)


def row_start(block_ids: tuple[int, ...], token_ids: tuple[int, ...] = PROMPT) -> RowStart:
    ids = tuple(map(BlockId, block_ids))
    return RowStart(0, SequenceKey("g", 0), token_ids, len(PROMPT), ids, SamplingParams())


def computed(max_copy_delay: int = 0) -> ReferenceRunner:
    """A runner with the prompt in blocks 0 and 1, and its row stopped."""
    runner = ReferenceRunner(BLOCK_SIZE, max_copy_delay=max_copy_delay)
    runner.execute(StepPlan(1, started=(row_start((0, 1)),), rows=(0,), starts=(0,), num_tokens=(6,), samples=(True,)))
    return runner


def next_token() -> int:
    slot = b""
    for token_id in PROMPT:
        slot = slot_after(slot, token_id)
    return sample(slot, 0)


def test_a_sequence_goes_to_the_host_and_comes_back_into_other_blocks_unchanged():
    runner = computed()
    first = runner.execute(StepPlan(2, stopped=(0,), copies=(out(),)))
    runner.poison([BlockId(0), BlockId(1)])
    second = runner.execute(StepPlan(3, copies=(back(),)))
    runner.poison([], [HostBlockId(7), HostBlockId(8)])
    known = (*PROMPT, next_token())
    last = runner.execute(
        StepPlan(4, started=(row_start((4, 5), known),), rows=(0,), starts=(6,), num_tokens=(1,), samples=(True,))
    )

    assert first.completed_copies == (1,)
    assert second.completed_copies == (2,)
    assert last.accepted[0]


def test_copies_take_several_steps_and_each_is_told_once():
    runner = computed(max_copy_delay=20)
    told = list(runner.execute(StepPlan(2, stopped=(0,), copies=(out(),))).completed_copies)
    num_steps = 0
    while not told:
        told += runner.wait()
        num_steps += 1

    assert 1 <= num_steps <= 20
    assert told == [1]
    assert runner.wait() == ()


def test_the_same_seed_gives_the_same_delays():
    ends = []
    for _ in range(2):
        runner = ReferenceRunner(BLOCK_SIZE, max_copy_delay=9, seed=3)
        copies = tuple(out((index,), (index,), index) for index in range(8))
        told = [runner.execute(StepPlan(1, copies=copies)).completed_copies]
        told += [runner.wait() for _ in range(9)]
        ends.append(told)

    assert ends[0] == ends[1]
    assert len({len(copy_ids) for copy_ids in ends[0]}) > 1


class TestFence:
    """A copy out of blocks 0 and 1 is under way."""

    def started(self) -> ReferenceRunner:
        runner = computed(max_copy_delay=1_000)
        runner.execute(StepPlan(2, stopped=(0,), copies=(out(),)))
        assert runner.copies.under_way
        return runner

    def test_its_blocks_are_not_free(self):
        with pytest.raises(RunnerFaultError, match="block 1 belongs to copy 1"):
            self.started().poison([BlockId(1)])
        with pytest.raises(RunnerFaultError, match="host block 8 is free before copy 1"):
            self.started().poison([], [HostBlockId(8)])

    def test_its_blocks_are_neither_read_nor_written(self):
        runner = self.started()
        plan = StepPlan(3, started=(row_start((0, 1)),), rows=(0,), starts=(0,), num_tokens=(6,), samples=(True,))

        with pytest.raises(RunnerFaultError, match="block 0 belongs to copy 1"):
            runner.execute(plan)

    @pytest.mark.parametrize(
        ("fault", "other"),
        [
            ("copy 1 is under way twice", out((2,), (3,))),
            ("block 0 belongs to copy 1", out((0,), (3,), 2)),
            ("host block 7 belongs to copy 1", out((2,), (7,), 2)),
            ("host block 7 belongs to copy 1", back((4,), (7,))),
            ("pairs", out((2, 3), (3,), 2)),
            ("pairs", out((), (), 2)),
        ],
    )
    def test_another_copy_of_the_same_blocks_is_a_fault(self, fault: str, other: BlockCopy):
        with pytest.raises(RunnerFaultError, match=fault):
            self.started().execute(StepPlan(3, copies=(other,)))


def test_what_the_host_does_not_hold_cannot_come_back():
    with pytest.raises(RunnerFaultError, match="host block 7, which holds nothing"):
        computed().execute(StepPlan(2, copies=(back(),)))


def test_blocks_hold_poison_until_they_are_back():
    runner = ReferenceRunner(BLOCK_SIZE, max_copy_delay=0)
    runner.execute(StepPlan(1, started=(row_start((0, 1)),), rows=(0,), starts=(0,), num_tokens=(6,), samples=(True,)))
    runner.execute(StepPlan(2, stopped=(0,), copies=(out((1,), (8,)),)))
    runner.poison([BlockId(1)])
    known = (*PROMPT, next_token())
    plan = StepPlan(3, started=(row_start((0, 1), known),), rows=(0,), starts=(6,), num_tokens=(1,), samples=(True,))

    with pytest.raises(RunnerFaultError, match="reads b'poison' at 4"):
        runner.execute(plan)
