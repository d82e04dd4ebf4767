"""What every installed policy must do, a stranger's included: the core relies on it."""

import itertools
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from engine.core.events import Finished
from engine.core.policy import LeaveReason, SchedulingPolicy, SequenceView
from engine.core.types import FinishReason, Nanos, Request, SamplingParams
from engine.plugins import (
    PREEMPTION_GROUP,
    SCHEDULING_GROUP,
    installed,
    load_preemption_policy,
    load_scheduling_policy,
)
from tests.builders import Driver, make_request, make_scheduler, make_sequence
from tests.fakes import expected_output

pytestmark = pytest.mark.usefixtures("stranger")

SCHEDULING = (*installed(SCHEDULING_GROUP), "newest_first")
PREEMPTION = (*installed(PREEMPTION_GROUP), "most_computed")
TENANTS = "abcde"
NOW = Nanos(0)


def random_requests(number: int, seed: int) -> list[Request]:
    rng = random.Random(seed)
    return [
        make_request(
            f"g{index}",
            tenant=rng.choice(TENANTS),
            weight=rng.choice([0.5, 1.0, 2.0]),
            prompt=[rng.randrange(97) for _ in range(rng.randint(1, 24))],
            max_output_tokens=rng.randint(1, 24),
            sampling=SamplingParams(seed=index),
        )
        for index in range(number)
    ]


def run_traffic(scheduling: str, preemption: str) -> Driver:
    """Requests that arrive while others run, in a pool that is too small, some of them cancelled."""
    limits = {
        "num_device_blocks": 24,
        "growth_reserve_tokens": 0,
        "max_num_batched_tokens": 12,
        "max_prefill_share": 0.5,
    }
    driver = Driver(make_scheduler(scheduling, preemption, **limits))
    rng = random.Random(7)
    for index, request in enumerate(random_requests(40, seed=3)):
        driver.add(request)
        for _ in range(rng.randint(0, 3)):
            driver.step()
        if index % 9 == 8:
            driver.abort(f"g{index - rng.randint(0, 4)}")
    driver.run()
    return driver


@pytest.mark.parametrize("preemption", PREEMPTION)
@pytest.mark.parametrize("scheduling", SCHEDULING)
def test_everything_is_served_exactly_once_and_undisturbed(scheduling: str, preemption: str):
    driver = run_traffic(scheduling, preemption)

    assert driver.scheduler.lifecycle.num_preemptions > 0
    for request in random_requests(40, seed=3):
        end = driver.finished(request.generation_id)
        output = driver.output(request.generation_id)
        if end.reason is FinishReason.LENGTH:
            assert output == expected_output(request)
        else:
            assert end.reason is FinishReason.CANCELLED
            assert output == expected_output(request)[: len(output)]
    assert driver.scheduler.stats().num_free_blocks == 24


@pytest.mark.parametrize("preemption", PREEMPTION)
@pytest.mark.parametrize("scheduling", SCHEDULING)
def test_the_same_calls_give_the_same_plans_and_events(scheduling: str, preemption: str):
    first, second = (run_traffic(scheduling, preemption) for _ in range(2))

    assert first.plans == second.plans
    assert first.events == second.events


@pytest.mark.parametrize("scheduling", installed(SCHEDULING_GROUP))
def test_the_order_of_hashes_decides_nothing(scheduling: str):
    script = (
        "import hashlib; from tests.policies.test_conformance import run_traffic;"
        f"driver = run_traffic({scheduling!r}, 'latest_arrival');"
        "print(hashlib.sha256(repr((driver.plans, driver.events)).encode()).hexdigest())"
    )
    root = Path(__file__).parents[2]
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert len(digests) == 1


class Waiting:
    """A policy beside a plain list of who waits, which it is compared with after each call."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self.policy = policy
        self.waiting: list[SequenceView] = []
        self.running: list[SequenceView] = []
        self.arrivals = itertools.count()

    def arrive(self, **fields: object) -> None:
        seq = make_sequence(next(self.arrivals), **fields)
        self.waiting.append(seq)
        self.policy.on_arrive(seq, NOW)

    def leave(self, seq: SequenceView, reason: LeaveReason) -> None:
        self.waiting.remove(seq)
        self.policy.on_leave(seq, reason, NOW)

    def admit(self) -> SequenceView:
        seq = self.policy.select(NOW)
        self.leave(seq, LeaveReason.ADMITTED)
        self.running.append(seq)
        return seq

    def check(self) -> None:
        chosen = self.policy.select(NOW)
        assert chosen is self.policy.select(NOW), "select changes what it selects"
        first = min(self.waiting, key=lambda seq: (self.policy.key(seq), seq.arrival_index), default=None)
        assert chosen is first


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scheduling", SCHEDULING)
def test_select_is_the_waiting_sequence_of_lowest_rank(scheduling: str, seed: int):
    rng = random.Random(seed)
    book = Waiting(load_scheduling_policy(scheduling, {}))
    for _ in range(300):
        action = rng.random()
        if action < 0.45 or not book.waiting:
            book.arrive(tenant=rng.choice(TENANTS), prompt=rng.randint(1, 20))
        elif action < 0.7:
            book.admit()
        elif action < 0.85 and book.running:
            seq = book.running.pop(rng.randrange(len(book.running)))
            seq.num_preemptions += 1
            book.waiting.append(seq)
            book.policy.on_arrive(seq, NOW)
        else:
            reason = LeaveReason.HELD if action < 0.92 else LeaveReason.FINISHED
            book.leave(rng.choice(book.waiting), reason)
        book.check()


@pytest.mark.parametrize("scheduling", SCHEDULING)
def test_a_held_sequence_comes_back_and_an_ended_one_does_not(scheduling: str):
    policy = load_scheduling_policy(scheduling, {})
    seq = make_sequence()
    policy.on_arrive(seq, NOW)
    policy.on_leave(seq, LeaveReason.HELD, NOW)
    assert policy.select(NOW) is None
    policy.on_arrive(seq, NOW)
    assert policy.select(NOW) is seq
    policy.on_leave(seq, LeaveReason.FINISHED, NOW)
    assert policy.select(NOW) is None


@pytest.mark.parametrize("scheduling", SCHEDULING)
def test_a_running_sequence_that_ends_leaves_the_waiting_ones_alone(scheduling: str):
    book = Waiting(load_scheduling_policy(scheduling, {}))
    book.arrive()
    running = book.admit()
    book.arrive()
    book.policy.on_leave(running, LeaveReason.FINISHED, NOW)

    book.check()


@pytest.mark.parametrize("scheduling", SCHEDULING)
def test_a_snapshot_carries_the_order_over(scheduling: str):
    driver = run_traffic(scheduling, "latest_arrival")
    old = driver.scheduler.lifecycle.policy
    new = load_scheduling_policy(scheduling, {})
    new.restore(old.snapshot())

    orders = []
    for policy in (old, new):
        book = Waiting(policy)
        for index in range(30):
            book.arrive(tenant=TENANTS[index * 7 % 5], prompt=1 + index % 4)
        orders.append([book.admit().arrival_index for _ in range(30)])
    assert orders[0] == orders[1]


@pytest.mark.parametrize("scheduling", SCHEDULING)
def test_a_foreign_snapshot_is_refused(scheduling: str):
    with pytest.raises(ValueError, match=scheduling):
        load_scheduling_policy(scheduling, {}).restore(b"\x00 not a snapshot")


@pytest.mark.parametrize("scheduling", SCHEDULING)
def test_standing_names_tenants_and_does_not_grow_with_those_that_are_gone(scheduling: str):
    driver = Driver(make_scheduler(scheduling))
    for index in range(300):
        driver.add(make_request(tenant=f"t{index}", prompt=3, max_output_tokens=2))
        driver.step()
    driver.run()

    standing = driver.scheduler.lifecycle.policy.standing()
    assert sum(isinstance(event, Finished) for event in driver.events) == 300
    assert len(standing) <= 10
    assert all(tenant_id.startswith("org-t") and math.isfinite(counter) for tenant_id, counter in standing.items())


@pytest.mark.parametrize("preemption", PREEMPTION)
def test_victims_are_offered_sequences_each_at_most_once_and_always_the_same(preemption: str):
    policy = load_preemption_policy(preemption, {})
    resident = [make_sequence(index, tenant=TENANTS[index % 5]) for index in range(8)]
    for claimant in resident:
        victims = list(policy.victims(tuple(resident), claimant, {}, NOW))

        assert all(any(victim is seq for seq in resident) for victim in victims)
        assert len({victim.key for victim in victims}) == len(victims)
        assert victims == list(policy.victims(tuple(resident), claimant, {}, NOW))
