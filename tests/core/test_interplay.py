"""Policies, preemption and cancellation together, in pools that hold one and a half of the largest request.

The runner notices every wrong block and token, and the driver checks every invariant after each call. Copies end late,
in a seeded order.
"""

import random
from collections import abc
from dataclasses import replace

import pytest

from engine.core.config import AdmissionReserve, PreemptionChoice
from engine.core.events import Finished, TokensEmitted
from engine.core.policy import Concession, SchedulingPolicy, Service
from engine.core.scheduler import Scheduler
from engine.core.types import FinishReason, Request, SamplingParams, SequenceStatus
from engine.plugins import PREEMPTION_GROUP, SCHEDULING_GROUP, installed, load_preemption_policy, load_scheduling_policy
from tests.builders import Driver, make_config, make_request
from tests.fakes import expected_output

BLOCK_SIZE = 4
LARGEST = 80
NUM_BLOCKS = LARGEST * 3 // 2 // BLOCK_SIZE
MAX_STEPS = 5_000
MAX_TURNS = 250

MODES: dict[str, dict[str, object]] = {
    "off": {"admission_reserve": AdmissionReserve.WHOLE},
    "recompute": {"preemption_mode": PreemptionChoice.RECOMPUTE, "num_host_blocks": 0},
    "swap": {"preemption_mode": PreemptionChoice.SWAP, "num_host_blocks": 200, "partial_swap": False},
    "partial": {"preemption_mode": PreemptionChoice.SWAP, "num_host_blocks": 200, "partial_swap": True},
    "full_host": {"preemption_mode": PreemptionChoice.AUTO, "num_host_blocks": 7, "partial_swap": True},
}
SCHEDULING = installed(SCHEDULING_GROUP)


class Ledger:
    """The policy it is given, with a record of what it was charged."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy
        self.charged: list[Service] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._policy, name)

    def charge(self, service: Service) -> None:
        self.charged.append(service)
        self._policy.charge(service)


class Thrashing:
    """Arrival order, but in each plan all tenants but one yield, in turn, and give everything up to that one.

    After `MAX_TURNS` it lets go: who must compute everything again at every turn would never come to an end.
    """

    def __init__(self, period: int) -> None:
        self._policy = load_scheduling_policy("fcfs", {})
        self._period = period
        self._flows: dict[object, None] = {}
        self._waiting: dict[int, object] = {}
        self._num_plans = 0
        self._turn: object = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._policy, name)

    def on_arrive(self, seq, now):
        self._flows[seq.flow] = None
        self._waiting[seq.arrival_index] = seq
        self._policy.on_arrive(seq, now)

    def on_leave(self, seq, reason, now):
        self._waiting.pop(seq.arrival_index, None)
        self._policy.on_leave(seq, reason, now)

    def begin(self, start):
        self._num_plans += 1
        flows = list(self._flows)
        if flows:
            self._turn = flows[self._num_plans // self._period % len(flows)]
        if self._num_plans > MAX_TURNS:
            return self._policy.begin(start)
        yielding = frozenset(flow for flow in flows if flow is not self._turn)
        return replace(self._policy.begin(start), yielding=yielding, protects_yielding=False)

    def select(self, passed):
        heads = [self._waiting[index] for index in sorted(self._waiting) if self._waiting[index] not in passed]
        heads.sort(key=lambda seq: seq.flow is not self._turn)
        return heads[0] if heads else None

    def concede(self, victim, claimant):
        if self._num_plans > MAX_TURNS:
            return self._policy.concede(victim, claimant)
        return Concession.NOTHING if victim.flow is claimant.flow else Concession.ANYTHING


def requests(seed: int, count: int = 10) -> list[Request]:
    """Of three tenants, up to the largest size, with seeds of their own."""
    rng = random.Random(seed)
    result = []
    for number in range(count):
        prompt = rng.choice([1, 5, 17, 40, 60])
        output = rng.randint(1, min(30, LARGEST - prompt))
        result.append(
            make_request(
                f"g{number}",
                tenant=rng.choice("abc"),
                prompt=[(number * 31 + position) % 97 for position in range(prompt)],
                max_output_tokens=output,
                sampling=SamplingParams(seed=number),
            )
        )
    return result


def make_driver(policy: str | SchedulingPolicy, mode: str, victims: str = "over_served", **fields: object) -> Driver:
    scheduling = load_scheduling_policy(policy, {}) if isinstance(policy, str) else policy
    limits: dict[str, object] = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 12,
        "block_size": BLOCK_SIZE,
        "num_device_blocks": NUM_BLOCKS,
        "growth_reserve_tokens": 0,
        "min_resident_steps": 2,
    }
    config = make_config(**(limits | MODES[mode] | fields))
    scheduler = Scheduler(config, Ledger(scheduling), load_preemption_policy(victims, {}))  # type: ignore[arg-type] # a wrapper
    return Driver(scheduler, max_copy_delay=3, seed=1)


def play(driver: Driver, arrivals: abc.Iterable[Request], seed: int = 0) -> None:
    """The requests arrive some steps apart; everything drains."""
    rng = random.Random(seed)
    for request in arrivals:
        driver.add(replace(request, arrived_at=driver.now))
        for _ in range(rng.randrange(4)):
            driver.step()
    driver.run(MAX_STEPS)


def check_outcome(driver: Driver, arrivals: abc.Iterable[Request]) -> None:
    """Each request has ended once, whole and unchanged; nothing is left; charged is computed for the first time."""
    arrivals = list(arrivals)
    for request in arrivals:
        assert driver.finished(request.generation_id).reason is FinishReason.LENGTH
        assert driver.output(request.generation_id) == expected_output(request)
    check_nothing_is_left(driver)
    charged: list[Service] = driver.scheduler.lifecycle.policy.policy.charged
    assert sum(s.num_prefill_tokens for s in charged) == sum(len(r.prompt_token_ids) for r in arrivals)
    assert sum(s.num_output_tokens for s in charged) == sum(r.max_output_tokens for r in arrivals)
    ends = [event for event in driver.events if isinstance(event, Finished)]
    assert sum(s.num_recomputed_tokens for s in charged) == sum(end.usage.num_recomputed_tokens for end in ends)


def check_nothing_is_left(driver: Driver) -> None:
    scheduler = driver.scheduler
    stats = scheduler.stats()
    assert not scheduler.has_unfinished
    assert scheduler.num_copies_in_flight == 0
    assert stats.num_free_blocks == NUM_BLOCKS
    assert stats.num_free_host_blocks == scheduler.config.num_host_blocks
    assert scheduler.lifecycle.rows.num_free == scheduler.config.max_num_seqs
    assert scheduler.policy_fault is None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", SCHEDULING)
def test_any_finite_arrivals_drain_with_their_text_unchanged(policy: str, mode: str):
    driver = make_driver(policy, mode)
    arrivals = requests(seed=3)
    play(driver, arrivals)
    check_outcome(driver, arrivals)


@pytest.mark.parametrize("victims", installed(PREEMPTION_GROUP))
@pytest.mark.parametrize("mode", ["recompute", "partial"])
def test_any_choice_of_victims_drains(victims: str, mode: str):
    driver = make_driver("fair", mode, victims)
    arrivals = requests(seed=4)
    play(driver, arrivals)
    check_outcome(driver, arrivals)


@pytest.mark.parametrize(("period", "chunk"), [(1, 5), (1, 12), (1, 64), (2, 12), (7, 12)])
@pytest.mark.parametrize("mode", ["recompute", "swap", "partial", "full_host"])
def test_the_text_is_the_same_with_preemption_forced_at_every_turn(mode: str, chunk: int, period: int):
    """All tenants but one give everything up to that one, and the next plan, or soon after it, it is another's turn."""
    driver = make_driver(Thrashing(period), mode, max_num_batched_tokens=chunk, max_num_seqs=4, min_resident_steps=0)
    arrivals = requests(seed=5, count=9)
    play(driver, arrivals)
    check_outcome(driver, arrivals)
    assert driver.scheduler.stats().num_preemptions > len(arrivals) / 2


@pytest.mark.parametrize("mode", ["recompute", "partial"])
@pytest.mark.parametrize("policy", SCHEDULING)
def test_two_runs_of_one_seed_make_the_same_plans(policy: str, mode: str):
    first, second = make_driver(policy, mode), make_driver(policy, mode)
    for driver in (first, second):
        play(driver, requests(seed=6))
    assert first.plans == second.plans
    assert first.events == second.events


def is_prefilling(driver, seq):
    return seq.status is SequenceStatus.RUNNING and 0 < seq.num_computed_tokens < seq.num_prompt_tokens


def is_decoding(driver, seq):
    return seq.status is SequenceStatus.RUNNING and seq.num_output_tokens > 0


def is_paused(driver, seq):
    return seq.status is SequenceStatus.PAUSED and seq.hold_reason is None and bool(seq.block_table.device)


def is_held(driver, seq):
    return seq.status is SequenceStatus.PAUSED and seq.hold_reason is not None


def is_held_swapped(driver, seq):
    return seq.status is SequenceStatus.SWAPPED and seq.hold_reason is not None


def is_recomputed(driver, seq):
    return seq.status is SequenceStatus.WAITING and seq.num_preemptions > 0


def is_in_open_plan(driver, seq):
    return seq.num_scheduled_tokens > 0


def _has_status(status: SequenceStatus) -> abc.Callable[[Driver, object], bool]:
    return lambda driver, seq: seq.status is status


STATES: dict[str, tuple[str, abc.Callable[..., bool]]] = {
    "waiting": ("partial", _has_status(SequenceStatus.WAITING)),
    "prefilling": ("partial", is_prefilling),
    "decoding": ("partial", is_decoding),
    "in the open plan": ("partial", is_in_open_plan),
    "paused": ("partial", is_paused),
    "held": ("partial", is_held),
    "held and swapped": ("swap", is_held_swapped),
    "swapping out": ("partial", _has_status(SequenceStatus.SWAPPING_OUT)),
    "swapped": ("partial", _has_status(SequenceStatus.SWAPPED)),
    "swapping in": ("partial", _has_status(SequenceStatus.SWAPPING_IN)),
    "waiting to be computed again": ("recompute", is_recomputed),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("policy", [*SCHEDULING, "thrashing"])
def test_a_cancelled_request_leaves_nothing_in_any_state(policy: str, state: str):
    """The first sequence seen in the state is cancelled, with the plan open; the others end as if nothing had been."""
    mode, is_meant = STATES[state]
    # Some policies take longer to bring a sequence into a state; whoever never does has nothing to show.
    driver = make_driver(Thrashing(2) if policy == "thrashing" else policy, mode, min_resident_steps=0)
    arrivals = requests(seed=7, count=13)
    cancelled = _play_until(driver, arrivals, is_meant, holds="held" in state)
    if cancelled is None:
        assert policy != "thrashing", "the policy that brings everything about did not"
        pytest.skip(f"{policy} never has a sequence that is {state}")
    for request in arrivals:
        driver.scheduler.set_reader_blocked(request.generation_id, blocked=False, now=driver.now)
    driver.run(MAX_STEPS)
    assert driver.finished(cancelled).reason is FinishReason.CANCELLED
    end = next(i for i, e in enumerate(driver.events) if isinstance(e, Finished) and e.key.generation_id == cancelled)
    late = [e for e in driver.events[end:] if isinstance(e, TokensEmitted) and e.key.generation_id == cancelled]
    assert late == []
    for request in arrivals:
        if request.generation_id != cancelled:
            assert driver.output(request.generation_id) == expected_output(request)
    check_nothing_is_left(driver)


def _play_until(
    driver: Driver, arrivals: list[Request], is_meant: abc.Callable[..., bool], *, holds: bool
) -> str | None:
    """The request that was cancelled in the state that is meant; None if there never was one."""
    driver.add(*arrivals)
    for step in range(2_000):
        if holds and step % 6 == 5:
            for request in arrivals[(step // 6) % 3 :: 3]:
                driver.scheduler.set_reader_blocked(request.generation_id, step % 12 == 5, driver.now)
        plan = driver.plan()
        for seq in list(driver.scheduler.lifecycle.by_generation.values()):
            if is_meant(driver, seq):
                driver.abort(seq.key.generation_id)
                if plan is not None:
                    driver.commit(plan)
                return seq.key.generation_id
        if plan is not None:
            driver.commit(plan)
        elif not driver.wait() and not driver.scheduler.has_unfinished:
            return None
    return None
