"""The order of service, told before it happens: what every policy does next, and that asking changes nothing."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core import queue_position
from engine.core.events import Admitted
from engine.core.queue_position import MAX_EXACT, RequestInfo
from engine.core.ranking import Ranking
from engine.core.scheduler import Scheduler
from engine.core.types import Nanos, PriorityClass, SequenceStatus
from engine.plugins import load_scheduling_policy
from tests.builders import Driver, make_request, make_scheduler

POLICIES = {
    "fair": {},
    "fair strict": {"mode": "strict"},
    "fcfs": {},
    "priority": {},
    "vtc": {},
    "drr": {"quantum": "20"},
    "mlfq": {},
    "srpt": {},
    "edf": {},
}
CLASSES = (PriorityClass("gold", 0), PriorityClass("silver", 5), PriorityClass("lead", 9))


class ShortestPrompt:
    """A stranger's: a plain index. `remembers` is what keeps it from being copied."""

    def __init__(self, remembers=None) -> None:
        self.remembers = remembers
        self.waiting = Ranking()

    def on_arrive(self, seq, now):
        self.waiting.put(seq, (*self.key(seq), seq.arrival_index))

    def on_leave(self, seq, reason, now):
        self.waiting.discard(seq)

    def begin(self, start):
        return load_scheduling_policy("fcfs", {}).begin(start)

    def select(self, passed):
        return None if passed else self.waiting.first()

    def key(self, seq):
        return (seq.num_prompt_tokens,)

    def concede(self, victim, claimant):
        return load_scheduling_policy("fcfs", {}).concede(victim, claimant)

    def charge(self, service):
        pass

    def standing(self, flow):
        return ()

    def snapshot(self):
        return b"shortest"

    def restore(self, snapshot):
        raise ValueError


class Telling(ShortestPrompt):
    """Offers its order itself."""

    def queue_order(self, limit):
        ranked = sorted((self.waiting.rank_of(seq), seq) for seq in list(self.waiting._entry_by_item))
        return [seq for _, seq in ranked[:limit]]


class Lying(ShortestPrompt):
    """Names whom it was not told of."""

    def queue_order(self, limit):
        yield from (self.waiting.first() for _ in range(3))


def make(name: str) -> Scheduler:
    options = POLICIES[name]
    return make_scheduler(
        load_scheduling_policy(name.split()[0], options),
        "over_served",
        max_num_seqs=1,
        max_num_batched_tokens=64,
        num_device_blocks=64,
    )


def some_request(rng: random.Random, **fields):
    tenant, weight = rng.choice((("a", 1.0), ("b", 3.0), ("c", 0.5)))
    fields = {"prompt": rng.randint(4, 40), "priority_class": rng.choice(CLASSES)} | fields
    return make_request(tenant=tenant, weight=weight, max_output_tokens=1, **fields)


def run(driver: Driver) -> list[str]:
    """Serve everything; returns who was admitted, in order."""
    num_before = len(driver.events)
    while driver.scheduler.has_unfinished:
        driver.step()
    driver.plan()  # comes to nothing: what the last one gave counts provisionally no more
    return [event.key.generation_id for event in driver.events[num_before:] if isinstance(event, Admitted)]


@pytest.mark.parametrize("name", POLICIES)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_the_order_that_is_told_is_the_order_of_service(name: str, seed: int) -> None:
    rng = random.Random(seed)
    driver = Driver(make(name))
    driver.add(*(some_request(rng) for _ in range(rng.randint(0, 8))))
    run(driver)
    driver.add(*(some_request(rng) for _ in range(rng.randint(1, 12))))
    for _ in range(rng.randint(0, 4)):
        driver.step()

    told = driver.scheduler.queue_order(driver.now)

    assert list(told.generation_ids) == run(driver)


@pytest.mark.parametrize("name", POLICIES)
def test_asking_changes_nothing(name: str) -> None:
    served = []
    for asks in (False, True):
        rng, driver = random.Random(7), Driver(make(name))
        driver.add(*(some_request(rng, generation_id=f"r{number}") for number in range(30)))
        while driver.scheduler.has_unfinished:
            if asks:
                driver.scheduler.queue_order(driver.now)
            driver.step()
        served.append([event.key.generation_id for event in driver.events if isinstance(event, Admitted)])

    assert served[0] == served[1]


@pytest.mark.parametrize("policy", [ShortestPrompt(), ShortestPrompt(lambda: None), Telling(), Lying()])
def test_any_plug_in_is_told_of(policy) -> None:
    driver = Driver(make_scheduler(policy, max_num_seqs=1, max_num_batched_tokens=64))
    rng = random.Random(3)
    driver.add(*(some_request(rng) for _ in range(20)))

    told = driver.scheduler.queue_order(driver.now)

    assert list(told.generation_ids) == run(driver)
    assert driver.scheduler.policy_fault is None


def test_a_tenant_that_is_behind_passes_a_long_queue() -> None:
    driver = Driver(make("fair"))
    driver.add(*(make_request(f"heavy{n}", tenant="a", prompt=20, max_output_tokens=1) for n in range(20)))
    for _ in range(5):
        driver.step()
    driver.add(make_request("light", tenant="b", prompt=20, max_output_tokens=1))

    assert driver.scheduler.queue_order(driver.now).position_of("light") == 0


def test_no_more_are_named_than_are_asked_for() -> None:
    driver = Driver(make("fair"))
    driver.add(*(make_request(f"r{n}", tenant="abc"[n % 3], max_output_tokens=1) for n in range(300)))

    told = driver.scheduler.queue_order(driver.now)

    assert (len(told.generation_ids), told.num_waiting) == (MAX_EXACT + 1, 300)
    assert told.position_of("r299") is None


def test_who_has_come_since_the_order_was_made_stands_at_its_end() -> None:
    driver = Driver(make_scheduler("fcfs", max_num_seqs=1))
    driver.add(*(make_request(f"r{n}", max_output_tokens=8) for n in range(3)))
    driver.step()
    order = driver.scheduler.queue_order(driver.now)
    driver.add(make_request("late", max_output_tokens=8))
    late = driver.scheduler.lifecycle.by_generation["late"]

    told = driver.scheduler.explain(late, order, driver.now)

    assert (told.position, len(told.ahead), told.blocked_by) == (2, 2, "order")


def test_why_a_request_stands_where_it_stands() -> None:
    driver = Driver(make_scheduler("fcfs", max_num_seqs=1, num_device_blocks=8))
    driver.add(
        make_request("running", prompt=8, max_output_tokens=8),
        make_request("next", prompt=8, max_output_tokens=8),
        make_request("later", prompt=8, max_output_tokens=8),
        make_request("held", prompt=8, max_output_tokens=8, granted_output_tokens=0),
    )
    driver.step()
    scheduler, now = driver.scheduler, driver.now
    order = scheduler.queue_order(now)

    def explain(generation_id: str):
        return scheduler.explain(scheduler.lifecycle.by_generation[generation_id], order, now)

    assert explain("running").blocked_by == ""
    assert (explain("next").blocked_by, explain("next").position) == ("rows", 0)
    later = explain("later")
    assert (later.blocked_by, later.position, [info.generation_id for info in later.ahead]) == ("order", 1, ["next"])
    assert (explain("held").blocked_by, explain("held").is_queued) == ("quota", False)
    assert later.request == RequestInfo(
        generation_id="later",
        arrival_index=2,
        path=later.request.path,
        class_name="default",
        status=SequenceStatus.WAITING,
        num_prompt_tokens=8,
        num_output_tokens=0,
        max_output_tokens=8,
        num_computed_tokens=0,
        num_device_blocks=0,
        num_preemptions=0,
        waited_ns=now,
        age_ns=now,
    )


def test_a_head_without_blocks_says_so() -> None:
    driver = Driver(make_scheduler("fcfs", "never", max_num_seqs=4, num_device_blocks=6, max_num_batched_tokens=64))
    driver.add(make_request("first", prompt=16, max_output_tokens=4), make_request("second", prompt=16))
    driver.step()
    scheduler = driver.scheduler
    order = scheduler.queue_order(driver.now)
    seq = scheduler.lifecycle.by_generation["second"]

    assert scheduler.explain(seq, order, driver.now).blocked_by == "blocks"


def test_the_copy_shares_its_sequences_with_the_policy() -> None:
    scheduler = make("fair")
    scheduler.add(make_request("r"), Nanos(0))
    policy = scheduler.lifecycle.policy.policy
    copy = queue_position._copy_of(policy)

    assert copy is not policy
    assert copy.select(()) is policy.select(()) is scheduler.lifecycle.by_generation["r"]


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_what_an_order_costs_with_ten_thousand_waiting(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    scheduler = make(name)
    for number in range(10_000):
        scheduler.add(make_request(tenant=f"t{number % 200}", max_output_tokens=1), Nanos(0))
    begun = time.perf_counter()
    told = scheduler.queue_order(Nanos(0))
    with capsys.disabled():
        print(f"{name}: {1e3 * (time.perf_counter() - begun):.1f} ms")

    assert len(told.generation_ids) == MAX_EXACT + 1
