"""The reference runner notices what would corrupt a real one."""

import pytest

from engine.core.plan import RowStart, StepPlan
from engine.core.types import BlockId, SamplingParams, SequenceKey
from tests.builders import Driver, make_request, make_scheduler
from tests.fakes import ReferenceRunner, RunnerFaultError, expected_output

BLOCK_SIZE = 4


def start_row(row: int = 0, num_tokens: int = 6, block_ids: tuple[int, ...] = (0, 1), first_token: int = 0) -> RowStart:
    return RowStart(
        row=row,
        key=SequenceKey(f"g{row}", 0),
        token_ids=tuple(range(first_token, first_token + num_tokens)),
        num_prompt_tokens=num_tokens,
        block_ids=tuple(map(BlockId, block_ids)),
        sampling=SamplingParams(),
    )


def make_plan(*chunks: tuple[int, int, int, bool], step_id: int = 1, **fields: object) -> StepPlan:
    rows, starts, num_tokens, samples = zip(*chunks, strict=True) if chunks else ((), (), (), ())
    return StepPlan(step_id, rows=rows, starts=starts, num_tokens=num_tokens, samples=samples, **fields)


def test_a_prompt_computed_in_chunks_gives_the_undisturbed_output():
    request = make_request(prompt=10, max_output_tokens=6)
    driver = Driver(make_scheduler(max_num_batched_tokens=4))
    driver.add(request)

    driver.run()

    assert driver.output(request.generation_id) == expected_output(request)


@pytest.mark.parametrize(
    ("fault", "plan"),
    [
        ("is empty", make_plan(started=(start_row(),))),
        ("was never started", make_plan((0, 0, 6, True))),
        ("was never started", make_plan((0, 0, 6, True), started=(start_row(),), stopped=(3,))),
        ("still taken", make_plan((0, 0, 6, True), started=(start_row(), start_row()))),
        ("which another row reads", make_plan((0, 0, 6, True), started=(start_row(), start_row(1, block_ids=(1, 2))))),
        ("has no block", make_plan((0, 0, 6, True), started=(start_row(block_ids=(0,)),))),
        ("samples=False", make_plan((0, 0, 6, False), started=(start_row(),))),
        ("samples=True", make_plan((0, 0, 5, True), started=(start_row(),))),
        (r"computes \[0, 7\)", make_plan((0, 0, 7, True), started=(start_row(),))),
        ("reads b'poison'", make_plan((0, 2, 4, True), started=(start_row(),))),
        ("two chunks", make_plan((0, 0, 3, False), (0, 3, 3, True), started=(start_row(),))),
        (
            "decodes do not come first",
            make_plan((0, 0, 6, True), (1, 0, 1, True), started=(start_row(), start_row(1, 1, (2,)))),
        ),
    ],
)
def test_a_faulty_plan_is_noticed(fault: str, plan: StepPlan):
    with pytest.raises(RunnerFaultError, match=fault):
        ReferenceRunner(BLOCK_SIZE).execute(plan)


def test_a_freed_block_cannot_be_read():
    runner = ReferenceRunner(BLOCK_SIZE)
    runner.execute(make_plan((0, 0, 6, True), started=(start_row(),)))
    runner.poison([BlockId(0)])

    with pytest.raises(RunnerFaultError, match="reads b'poison' at 0"):
        runner.execute(make_plan((0, 6, 1, True), step_id=2))


def test_a_block_that_another_sequence_has_overwritten_cannot_be_read():
    runner = ReferenceRunner(BLOCK_SIZE)
    runner.execute(make_plan((0, 0, 6, True), started=(start_row(),)))
    runner.execute(make_plan((1, 0, 6, True), step_id=2, stopped=(0,), started=(start_row(1, first_token=50),)))
    resumed = start_row(0, num_tokens=7)

    with pytest.raises(RunnerFaultError, match="reads"):
        runner.execute(make_plan((0, 6, 1, True), step_id=3, stopped=(1,), started=(resumed,)))
