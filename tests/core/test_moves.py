"""What is remembered of a sequence for its trace: why it came in, for whom it gave way, what became of its blocks."""

from engine.core.events import Admitted, DispatchReason, Move, MoveKind, Preempted, Resumed
from engine.core.policy import Concession
from engine.core.timeline import MAX_MOVES, Timeline
from engine.core.types import Nanos, PauseReason
from tests.builders import Driver, make_request
from tests.core.scripted import Scripted, end_copies, make_driver
from tests.core.test_preemption import CLAIMANT, tight
from tests.core.test_swap_states import swapping_in, swapping_out


def of_kind(driver: Driver, kind: type) -> list:
    return [event for event in driver.events if isinstance(event, kind)]


def reasons(driver: Driver) -> dict[str, DispatchReason]:
    return {event.key.generation_id: event.reason for event in of_kind(driver, Admitted)}


def test_a_recomputation_lasts_from_the_first_step_to_the_one_that_has_regained_everything():
    driver = tight(max_num_batched_tokens=8)
    driver.run()

    (move,) = driver.finished("new").moves
    assert (move.kind, move.preemption, move.num_blocks) == (MoveKind.RECOMPUTE, 1, 4)
    assert move.num_tokens == driver.finished("new").usage.num_recomputed_tokens > 8
    (resumed,) = of_kind(driver, Resumed)
    assert move.started_at == resumed.at > of_kind(driver, Preempted)[0].at
    assert move.ended_at is not None
    assert move.ended_at > move.started_at  # a step has eight tokens
    assert driver.finished("old").moves == ()


def test_a_victim_knows_whom_its_blocks_were_taken_for():
    driver = tight()
    driver.run()

    assert [(event.key.generation_id, event.claimant) for event in of_kind(driver, Preempted)] == [("new", "old")]


def test_one_that_gives_way_for_its_own_next_token_is_nobodys_victim():
    driver = tight(preemption=CLAIMANT)
    driver.run()

    assert {event.claimant for event in of_kind(driver, Preempted)} == {""}


def test_copies_out_and_back_are_told_with_their_blocks_and_times():
    driver = swapping_in()
    end_copies(driver)
    driver.run()

    out, back = driver.finished("a").moves
    assert (out.kind, out.num_blocks, back.kind, back.num_blocks) == (MoveKind.SWAP_OUT, 2, MoveKind.SWAP_IN, 2)
    assert out.preemption == back.preemption == 1
    (preempted,) = of_kind(driver, Preempted)
    assert (preempted.at, preempted.claimant, preempted.reason) == (out.started_at, "b", PauseReason.KV_PRESSURE)
    assert out.started_at < out.ended_at <= back.started_at < back.ended_at


def test_a_copy_that_outlives_its_sequence_has_no_end():
    driver = swapping_out()
    driver.abort("a")

    (move,) = driver.finished("a").moves
    assert (move.kind, move.ended_at) == (MoveKind.SWAP_OUT, None)


def test_a_request_that_is_alone_is_told_from_one_that_the_policy_ranked_first():
    driver = make_driver(Scripted())
    driver.add(make_request("a", prompt=4, max_output_tokens=2))
    driver.step()
    driver.add(make_request("b", prompt=4, max_output_tokens=2), make_request("c", prompt=4, max_output_tokens=2))
    driver.run()

    assert reasons(driver) == {"a": DispatchReason.ALONE, "b": DispatchReason.ORDER, "c": DispatchReason.ALONE}


def test_a_request_that_blocks_were_taken_for_says_so():
    driver = make_driver(Scripted(concedes={"a": Concession.SWAP}))
    driver.add(make_request("a", tenant="a", prompt=16, max_output_tokens=8))
    driver.step()
    driver.add(make_request("b", tenant="b", prompt=17, max_output_tokens=2))
    driver.run()

    assert reasons(driver)["b"] is DispatchReason.CLAIM


def test_what_gives_way_for_ever_does_not_remember_each_time():
    timeline = Timeline(Nanos(0))
    for number in range(2 * MAX_MOVES):
        timeline.begin_move(Move(MoveKind.SWAP_OUT, number, 1, 0, Nanos(number)))
        timeline.end_move(Nanos(number + 1))

    assert len(timeline.moves) == MAX_MOVES
    assert timeline.moves[-1].ended_at == MAX_MOVES
