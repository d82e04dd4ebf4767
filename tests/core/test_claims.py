"""Blocks for a head that finds none: what it reserves, whom it takes them from, and whom it may not."""

import pytest

from engine.core.arrival_order import ArrivalOrder
from engine.core.policy import Concession
from engine.core.types import PauseReason, PreemptionMode, PriorityClass, SequenceStatus
from tests.builders import Driver, make_request, make_scheduler
from tests.core.scripted import Scripted, end_copies, make_driver, preemptions_of, seq_of, status_of

SWAPPED, RECOMPUTED, PAUSED = PreemptionMode.SWAP, PreemptionMode.RECOMPUTE, PreemptionMode.PAUSE


def start(driver: Driver, **prompts: int) -> None:
    """One request for each name, of the tenant that the name begins with, one after the other; each is computed."""
    for name, prompt in prompts.items():
        add(driver, name, prompt)
        while seq_of(driver, name).num_computed_tokens < prompt:
            driver.step()


def add(driver: Driver, name: str, prompt: int, max_output_tokens: int = 8) -> None:
    driver.add(make_request(name, tenant=name[0], prompt=prompt, max_output_tokens=max_output_tokens))


def policy_of(driver: Driver) -> Scripted:
    return driver.scheduler.lifecycle.policy.policy


class TestReservation:
    """Five of eight blocks are taken, and "b" needs four."""

    def driver(self) -> Driver:
        driver = make_driver(Scripted())
        start(driver, a=13, d=1)
        return driver

    def test_those_behind_a_head_without_room_do_not_take_what_it_needs(self):
        driver = self.driver()
        add(driver, "b", 13)
        add(driver, "a2", 2)

        assert [name for name, _, _ in driver.chunks()] == ["a", "d"]

    def test_whoever_stays_within_its_share_passes_it(self):
        driver = self.driver()
        add(driver, "b", 13)
        add(driver, "c", 2)

        assert ("c", 0, 2) in driver.chunks()

    def test_nobody_is_within_its_share_who_has_more_than_that_of_those_who_wait(self):
        driver = make_driver(Scripted())
        start(driver, a=17)
        add(driver, "b", 13)
        add(driver, "a2", 2)

        assert [name for name, _, _ in driver.chunks()] == ["a"]

    def test_it_ends_with_the_plan(self):
        driver = self.driver()
        add(driver, "b", 13)
        add(driver, "a2", 2)
        driver.step()
        driver.abort("b")

        assert ("a2", 0, 2) in driver.chunks()

    def test_one_that_would_not_fit_beside_its_own_flow_keeps_nothing(self):
        driver = self.driver()
        add(driver, "a2", 20)  # four and five are more than eight
        add(driver, "c", 2)

        assert ("c", 0, 2) in driver.chunks()


class TestSeizure:
    """ "a" concedes, "c" does not; each has three blocks with room for a few tokens, two are free."""

    def driver(self, concession: Concession = Concession.SWAP, **fields: object) -> Driver:
        driver = make_driver(Scripted(concedes={"a": concession}), **fields)
        start(driver, a=9, c=9)
        return driver

    def test_it_is_all_that_the_head_needs(self):
        driver = self.driver()
        add(driver, "b", 17)
        driver.step()

        assert preemptions_of(driver) == [("a", SWAPPED, PauseReason.KV_PRESSURE)]
        assert driver.plans[-1].num_tokens == (1,)  # "c" goes on beside the copy
        assert driver.chunks() == [("c", 10, 1), ("b", 0, 17)]

    def test_or_nothing(self):
        driver = self.driver()
        add(driver, "b", 21)
        driver.step()

        assert preemptions_of(driver) == []
        assert len(driver.plans[-1].rows) == 2

    def test_no_more_victims_than_needed_are_taken(self):
        driver = make_driver(Scripted(concedes={"a": Concession.ANYTHING}), num_host_blocks=0)
        start(driver, a1=9, a2=9)
        add(driver, "b", 17)
        driver.step()

        assert preemptions_of(driver) == [("a2", RECOMPUTED, PauseReason.KV_PRESSURE)]

    def test_after_a_preemption_only_the_head_it_was_made_for_comes_in(self):
        driver = self.driver(Concession.ANYTHING, num_host_blocks=0)
        add(driver, "b", 13)
        add(driver, "d", 2)

        assert driver.chunks() == [("c", 9, 1), ("b", 0, 13)]
        policy_of(driver).refuses = "a"
        assert ("d", 0, 2) in driver.chunks()

    def test_nothing_preempted_comes_back_in_the_same_plan(self):
        driver = self.driver(Concession.ANYTHING, num_host_blocks=0)
        add(driver, "b", 13)
        driver.step()

        assert status_of(driver, "a") is SequenceStatus.WAITING

    def test_the_next_head_may_try_where_the_first_one_cannot(self):
        driver = self.driver()
        add(driver, "b", 24)
        add(driver, "d", 13)
        driver.step()

        assert preemptions_of(driver) == [("a", SWAPPED, PauseReason.KV_PRESSURE)]

    @pytest.mark.parametrize(("concession", "is_taken"), [(Concession.SWAP, False), (Concession.ANYTHING, True)])
    def test_for_an_entrant_nothing_is_computed_again(self, concession: Concession, is_taken: bool):
        driver = self.driver(concession, num_host_blocks=0)
        add(driver, "b", 17)
        driver.step()

        assert [mode for _, mode, _ in preemptions_of(driver)] == [RECOMPUTED] * is_taken


class TestProtection:
    def steps_until_taken(self, policy: Scripted, **fields: object) -> int | None:
        driver = make_driver(policy, **fields)
        add(driver, "a", 13, max_output_tokens=16)
        driver.step()
        add(driver, "b", 17, max_output_tokens=1)
        for number in range(1, 14):
            driver.step()
            if [mode for _, mode, _ in preemptions_of(driver) if mode is not PAUSED]:
                return number
        return None

    @pytest.mark.parametrize(("min_resident_steps", "num_steps"), [(0, 1), (1, 1), (2, 2), (5, 5)])
    def test_residency_counts_steps(self, min_resident_steps: int, num_steps: int):
        policy = Scripted(concedes={"a": Concession.SWAP})

        assert self.steps_until_taken(policy, min_resident_steps=min_resident_steps) == num_steps

    @pytest.mark.parametrize(("protects_yielding", "num_steps"), [(True, 3), (False, 1)])
    def test_those_that_yield_have_residency_only_if_the_policy_says_so(self, protects_yielding: bool, num_steps: int):
        policy = Scripted(concedes={"a": Concession.ANYTHING}, yielding="a", protects_yielding=protects_yielding)

        assert self.steps_until_taken(policy, min_resident_steps=3) == num_steps

    def test_who_was_moved_as_often_as_allowed_is_left_alone(self):
        assert self.steps_until_taken(Scripted(concedes={"a": Concession.SWAP}), max_preemptions=0) is None
        assert self.steps_until_taken(Scripted(concedes={"a": Concession.SWAP}), max_preemptions=1) == 1

    def test_the_cap_is_not_for_those_that_concede_anything(self):
        assert self.steps_until_taken(Scripted(concedes={"a": Concession.ANYTHING}), max_preemptions=0) == 1

    @pytest.mark.parametrize(("yielding", "is_taken"), [("", False), ("a", True)])
    def test_who_computes_lost_work_again_is_left_alone_unless_it_yields(self, yielding: str, is_taken: bool):
        driver = make_driver(
            Scripted(concedes={"a": Concession.ANYTHING}), num_host_blocks=0, max_num_batched_tokens=8, max_num_seqs=2
        )
        start(driver, a=16)
        add(driver, "b", 17, max_output_tokens=1)
        while "b" in driver.scheduler.lifecycle.by_generation:
            driver.step()
        while not seq_of(driver, "a").num_computed_tokens:
            driver.step()
        policy_of(driver).yielding = yielding
        add(driver, "d", 25, max_output_tokens=1)
        driver.step()

        assert seq_of(driver, "a").num_preemptions == 1 + is_taken


class TestClaim:
    """ "b" waits for a late copy out of "a"; "c" has no block for its next token."""

    def driver(self) -> Driver:
        driver = make_driver(Scripted(concedes={"a": Concession.SWAP}), is_late=True)
        start(driver, a=10, c=11)
        add(driver, "b", 17)
        driver.step()
        assert status_of(driver, "a") is SequenceStatus.SWAPPING_OUT
        assert driver.scheduler.stats().num_free_blocks == 2
        return driver

    def test_running_work_takes_nothing_from_it(self):
        driver = self.driver()

        assert driver.chunks() == []
        assert status_of(driver, "c") is SequenceStatus.PAUSED

    def test_nobody_else_comes_in(self):
        driver = self.driver()
        add(driver, "d", 2)

        assert driver.chunks() == []

    def test_its_owner_comes_in_when_the_blocks_are_free(self):
        driver = self.driver()
        end_copies(driver)
        driver.step()

        assert ("b", 0, 17) in driver.chunks()

    @pytest.mark.parametrize("end", ["abort", "hold", "yield"])
    def test_it_ends_with_its_owners_wish(self, end: str):
        driver = self.driver()
        if end == "abort":
            driver.abort("b")
        elif end == "hold":
            driver.scheduler.set_reader_blocked("b", blocked=True, now=driver.now)
        else:
            policy_of(driver).yielding = "b"

        assert driver.chunks() == [("c", 12, 1)]

    def test_it_ends_after_a_plan_that_could_have_used_it_and_did_not(self):
        driver = self.driver()
        policy_of(driver).refuses = "ab"
        end_copies(driver)
        driver.step()

        assert driver.chunks() == [("c", 12, 1)]

    def test_there_is_one_at_a_time(self):
        driver = make_driver(Scripted(concedes={"a": Concession.SWAP}), is_late=True, num_device_blocks=12)
        start(driver, a1=14, a2=14)
        add(driver, "b", 21)
        add(driver, "d", 25)
        driver.step()
        driver.step()

        assert [name for name, mode, _ in preemptions_of(driver) if mode is not PAUSED] == ["a2"]


class TestGrowth:
    """Running sequences that fill the pool, and need more."""

    def test_one_resident_gives_way_per_plan(self):
        driver = make_driver(Scripted(), num_host_blocks=0, max_num_seqs=8)
        start(driver, a=1, b=1, c=1, d=1)
        for name in "efgh":
            add(driver, name, 1, max_output_tokens=9)
        lost = []
        for _ in range(9):
            before = len(preemptions_of(driver))
            driver.step()
            lost.append([name for name, mode, _ in preemptions_of(driver)[before:] if mode is RECOMPUTED])

        assert max(map(len, lost)) == 1

    def test_whatever_its_residency(self):
        driver = make_driver(Scripted(), num_host_blocks=0, min_resident_steps=100)
        start(driver, a1=15, a2=16)
        for _ in range(3):
            driver.step()

        assert [(name, mode) for name, mode, _ in preemptions_of(driver)] == [("a2", RECOMPUTED)]

    def test_nobody_gives_way_while_blocks_are_on_their_way_out(self):
        driver = make_driver(Scripted(), is_late=True)
        start(driver, a1=15, a2=16)
        for _ in range(3):
            driver.step()
        assert status_of(driver, "a2") is SequenceStatus.SWAPPING_OUT
        assert driver.chunks() == []
        assert len([mode for _, mode, _ in preemptions_of(driver) if mode is not PAUSED]) == 1
        end_copies(driver)
        driver.step()

        assert driver.chunks()[0][0] == "a1"

    def test_a_flow_above_its_share_gives_way_before_one_within_it(self):
        driver = make_driver(Scripted(), num_host_blocks=0)
        start(driver, b=1, a=20)  # "a" has six blocks of eight, "c" and "b" the others
        add(driver, "c", 1)
        while not [name for name, mode, _ in preemptions_of(driver) if mode is RECOMPUTED]:
            driver.step()

        assert [name for name, mode, _ in preemptions_of(driver) if mode is RECOMPUTED] == ["a"]


class ConcedesAll(ArrivalOrder):
    """Anybody gives way to anybody, and nobody stops behind a head without room."""

    def select(self, passed):
        waiting = [seq for seq in self.queue if seq not in passed]
        return min(waiting, key=lambda seq: seq.arrival_index, default=None)

    def __init__(self):
        super().__init__()
        self.queue = []

    def on_arrive(self, seq, now):
        self.queue.append(seq)

    def on_leave(self, seq, reason, now):
        if seq in self.queue:
            self.queue.remove(seq)

    def concede(self, victim, claimant):
        return Concession.ANYTHING


def test_what_is_computed_again_emits_a_new_token_before_it_may_be_seized_again():
    settings = {"num_device_blocks": 10, "growth_reserve_tokens": 0, "min_resident_steps": 0}
    driver = Driver(make_scheduler(ConcedesAll(), "over_served", max_num_batched_tokens=4, **settings))
    for tenant, prompt in (("a", 25), ("b", 22), ("c", 28)):
        driver.add(make_request(tenant, tenant=tenant, prompt=prompt, max_output_tokens=8))

    driver.run(1_500)

    assert [len(driver.output(tenant)) for tenant in "abc"] == [8, 8, 8]


def test_what_a_swapped_sequence_of_a_better_class_has_kept_does_not_stop_those_before_it():
    driver = Driver(make_scheduler("fcfs", num_device_blocks=16, growth_reserve_tokens=0, num_host_blocks=8))
    preemptions = driver.scheduler.planner._memory.preemptions
    driver.add(make_request("first", tenant="a", prompt=44, max_output_tokens=8))
    driver.step()
    driver.step()
    preemptions.recompute(seq_of(driver, "first"), PauseReason.KV_PRESSURE, driver.now)
    driver.scheduler.set_reader_blocked("first", blocked=True, now=driver.now)
    better = PriorityClass("better", -1)
    driver.add(make_request("second", tenant="b", prompt=28, max_output_tokens=20, priority_class=better))
    driver.step()
    driver.step()
    preemptions.swap_out(seq_of(driver, "second"), 2, PauseReason.KV_PRESSURE, driver.now)
    driver.scheduler.set_reader_blocked("first", blocked=False, now=driver.now)

    driver.run()

    assert driver.scheduler.policy_fault is None
    assert (len(driver.output("first")), len(driver.output("second"))) == (8, 20)
