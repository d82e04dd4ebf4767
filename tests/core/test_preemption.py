"""Blocks run short: who gives way, who waits, and that nothing is lost or stops."""

from collections import abc

import pytest

from engine.core.events import Admitted, Preempted, Resumed
from engine.core.policy import SequenceView, Standing
from engine.core.types import Nanos, PauseReason, PreemptionMode, SequenceKey, SequenceStatus
from tests.builders import Driver, make_request, make_scheduler
from tests.fakes import expected_output


class Victims:
    """A preemption policy that orders the offered sequences by a function of them and the claimant."""

    def __init__(self, order: abc.Callable[[list[SequenceView], SequenceView], abc.Iterable[SequenceView]]) -> None:
        self._order = order

    def victims(
        self,
        resident: abc.Sequence[SequenceView],
        claimant: SequenceView,
        standing: Standing,
        now: Nanos,
    ) -> abc.Iterator[SequenceView]:
        return iter(self._order(list(resident), claimant))


NEVER = Victims(lambda resident, claimant: [])
FIRST_ARRIVAL = Victims(lambda resident, claimant: resident)
CLAIMANT = Victims(lambda resident, claimant: [claimant])


def tight(scheduling="fcfs", preemption="latest_arrival", **fields) -> Driver:
    """Two sequences that fit when they start and not when they end: 8 blocks of 4, no reserve."""
    limits = {"num_device_blocks": 8, "block_size": 4, "growth_reserve_tokens": 0, "max_num_batched_tokens": 32}
    driver = Driver(make_scheduler(scheduling, preemption, **(limits | fields)))
    driver.add(
        make_request("old", prompt=12, max_output_tokens=16), make_request("new", prompt=12, max_output_tokens=16)
    )
    return driver


def run_until_computed(driver: Driver, generation_id: str, num_tokens: int) -> None:
    seqs = driver.scheduler.lifecycle.by_generation
    while seqs[generation_id].num_computed_tokens < num_tokens:
        driver.step()


def assert_undisturbed(driver: Driver, *requests) -> None:
    for request in requests:
        assert driver.output(request.generation_id) == expected_output(request)


def test_the_latest_arrival_gives_way_and_is_computed_again():
    driver = tight()
    requests = [seq.request for seq in driver.scheduler.lifecycle.by_generation.values()]
    driver.run()

    preempted = [event for event in driver.events if isinstance(event, Preempted)]
    assert preempted == [Preempted(SequenceKey("new", 0), PreemptionMode.RECOMPUTE, PauseReason.KV_PRESSURE)]
    assert_undisturbed(driver, *requests)
    assert driver.finished("old").usage.num_recomputed_tokens == 0
    # 12 prompt and 4 output tokens were in its blocks when "old" needed the fifth block of its own.
    assert driver.finished("new").usage.num_recomputed_tokens == 16
    assert driver.finished("new").usage.num_preemptions == 1


def test_a_preempted_sequence_leaves_its_row_and_brings_all_its_tokens_to_the_next():
    driver = tight()
    driver.run()

    at_preemption = next(plan for plan in driver.plans if plan.stopped)
    assert at_preemption.stopped == (1,)
    restart = [start for plan in driver.plans[1:] for start in plan.started]
    assert [start.key.generation_id for start in restart] == ["new"]
    assert restart[0].token_ids[12:] == tuple(driver.output("new")[: len(restart[0].token_ids) - 12])
    assert (restart[0].num_prompt_tokens, len(restart[0].token_ids)) == (12, 17)


def test_events_of_a_preempted_request_come_in_order():
    driver = tight()
    driver.run()

    kinds = [
        type(e) for e in driver.events if e.key.generation_id == "new" and isinstance(e, Admitted | Preempted | Resumed)
    ]
    assert kinds == [Admitted, Preempted, Resumed]


def test_a_preempted_sequence_returns_ahead_of_those_that_never_ran():
    driver = tight(max_num_seqs=2)
    driver.add(make_request("never-ran", prompt=4, max_output_tokens=4))
    driver.run()

    starts = [start.key.generation_id for plan in driver.plans for start in plan.started]
    assert starts == ["old", "new", "new", "never-ran"]


def test_a_plan_that_preempted_admits_nobody():
    driver = tight(scheduling="vtc")
    for _ in range(4):
        driver.step()
    driver.add(make_request("light", tenant="b", prompt=1, max_output_tokens=1))
    driver.step()  # no block is free, but b is now behind a

    assert driver.chunks() == [("old", 16, 1)]  # its fifth block came from "new": three are left, one would do
    assert driver.chunks() == [("old", 17, 1), ("light", 0, 1)]


def test_taking_the_blocks_of_a_held_sequence_does_not_stop_admission():
    driver = Driver(make_scheduler(num_device_blocks=8, growth_reserve_tokens=0))
    driver.add(make_request("held", prompt=16, max_output_tokens=16, granted_output_tokens=1))
    driver.add(make_request("running", prompt=15, max_output_tokens=9))
    driver.step()
    driver.step()
    driver.add(make_request("next", prompt=4, max_output_tokens=4))

    assert driver.chunks() == [("running", 16, 1), ("next", 0, 4)]


def test_a_half_computed_prompt_may_preempt_while_others_run():
    # What a held prompt still needs is not kept for it, so that the two prompts come to fill the pool together.
    limits = {"num_device_blocks": 15, "max_num_batched_tokens": 3, "max_num_seqs": 3}
    driver = Driver(make_scheduler(growth_reserve_tokens=0, **limits))
    decoding = make_request("decoding", prompt=3, max_output_tokens=30)
    first, second = (make_request(name, prompt=28, max_output_tokens=2) for name in ("first", "second"))
    driver.add(decoding, first)
    run_until_computed(driver, "first", 12)
    driver.scheduler.set_reader_blocked("first", blocked=True, now=driver.now)
    driver.add(second)
    run_until_computed(driver, "second", 12)
    driver.scheduler.set_reader_blocked("first", blocked=False, now=driver.now)
    chunks = []
    while not any(event.mode is PreemptionMode.RECOMPUTE for event in driver.events if isinstance(event, Preempted)):
        chunks = driver.chunks()

    assert chunks == [("decoding", 21, 1), ("first", 24, 2)]  # 21 is inside a block, 24 begins one
    driver.run()
    assert_undisturbed(driver, decoding, first, second)
    assert driver.finished("second").usage.num_preemptions == 1


def test_a_victim_is_taken_from_prompts_that_wait_for_blocks_too():
    driver = Driver(make_scheduler(num_device_blocks=10, max_num_batched_tokens=8, growth_reserve_tokens=0))
    old = make_request("old", prompt=8, max_output_tokens=30)
    new = make_request("new", prompt=24, max_output_tokens=2)
    driver.add(old, new)
    driver.run()

    assert_undisturbed(driver, old, new)
    assert driver.finished("old").usage.num_preemptions == 0


@pytest.mark.parametrize("preemption", [NEVER, FIRST_ARRIVAL, CLAIMANT], ids=["never", "first_arrival", "claimant"])
@pytest.mark.parametrize("scheduling", ["fcfs", "vtc"])
def test_no_preemption_policy_can_stop_the_engine(scheduling: str, preemption: Victims):
    driver = Driver(
        make_scheduler(scheduling, preemption, num_device_blocks=8, growth_reserve_tokens=0, max_num_batched_tokens=6)
    )
    requests = [make_request(tenant="ab"[i % 2], prompt=5 + i, max_output_tokens=20) for i in range(5)]
    driver.add(*requests)
    driver.run()

    assert_undisturbed(driver, *requests)


def test_a_vetoed_claimant_waits_while_others_run():
    driver = Driver(make_scheduler(preemption=NEVER, num_device_blocks=8, growth_reserve_tokens=0))
    driver.add(
        make_request("old", prompt=12, max_output_tokens=16), make_request("new", prompt=14, max_output_tokens=16)
    )
    for _ in range(3):
        driver.step()

    assert driver.chunks() == [("old", 14, 1)]
    assert driver.chunks() == [("old", 15, 1)]
    preempted = [event for event in driver.events if isinstance(event, Preempted)]
    assert preempted == [Preempted(SequenceKey("new", 0), PreemptionMode.PAUSE, PauseReason.KV_PRESSURE)]


def test_when_every_claimant_is_vetoed_the_latest_arrivals_give_way_to_the_first():
    limits = {"num_device_blocks": 12, "max_num_batched_tokens": 64, "growth_reserve_tokens": 0}
    driver = Driver(make_scheduler(preemption=NEVER, **limits))
    driver.add(*(make_request(name, prompt=12, max_output_tokens=16) for name in ("first", "second", "third")))
    for _ in range(5):
        driver.step()

    assert driver.chunks() == [("first", 16, 1)]
    assert driver.scheduler.lifecycle.by_generation["third"].status is SequenceStatus.WAITING
    assert driver.chunks() == [("first", 17, 1), ("second", 16, 1)]


def test_whoever_has_room_gets_the_row_of_one_that_has_none():
    """A decode does not lend its row where prompts and decodes take turns, and without victims it cannot grow."""
    limits = {"mix_prefill": False, "max_num_seqs": 1, "num_device_blocks": 3, "growth_reserve_tokens": 0}
    driver = Driver(make_scheduler(preemption=NEVER, **limits))
    first, second = (make_request(name, prompt=4, max_output_tokens=8) for name in ("first", "second"))
    driver.add(first)
    driver.step()
    driver.step()
    driver.scheduler.set_reader_blocked("first", blocked=True, now=driver.now)
    driver.add(second)
    driver.step()
    driver.scheduler.set_reader_blocked("first", blocked=False, now=driver.now)
    driver.run()

    assert_undisturbed(driver, first, second)


def test_recomputed_tokens_are_counted_apart_and_charged_to_nobody():
    driver = tight()
    driver.run()

    (tenant,) = driver.scheduler.stats().tenants
    assert tenant.num_prefill_tokens == 24
    assert tenant.num_output_tokens == 32
    assert tenant.num_recomputed_tokens == 16
    assert driver.scheduler.stats().num_preemptions == 1


@pytest.mark.parametrize("reserve", [8, 32])
def test_what_resumes_runs_for_as_many_steps_as_the_reserve_has_tokens(reserve: int):
    driver = Driver(
        make_scheduler(num_device_blocks=40, max_num_seqs=8, max_num_batched_tokens=64, growth_reserve_tokens=reserve)
    )
    driver.add(*(make_request(prompt=10 + i % 7, max_output_tokens=60) for i in range(40)))
    resumed_at: dict[SequenceKey, int] = {}
    spells = []
    while (plan := driver.plan()) is not None:
        for event in driver.commit(plan):
            if isinstance(event, Resumed):
                resumed_at[event.key] = plan.step_id
            elif isinstance(event, Preempted) and event.key in resumed_at:
                spells.append(plan.step_id - resumed_at[event.key])

    assert resumed_at
    assert all(spell >= reserve for spell in spells)
