"""All rows are taken: who gets one all the same, from whom, and what the one that lost it keeps."""

from engine.core.policy import Concession
from engine.core.types import PauseReason, PreemptionMode, SequenceStatus
from engine.plugins import load_scheduling_policy
from tests.builders import Driver, make_request, make_scheduler
from tests.core.scripted import Scripted, make_driver, preemptions_of, seq_of, status_of
from tests.fakes import expected_output

PAUSED_FOR_FAIRNESS = (PreemptionMode.PAUSE, PauseReason.FAIRNESS)


def driver_of(policy: Scripted, *names: str, max_num_seqs: int = 1, **fields: object) -> Driver:
    """One request for each name, of the tenant that the name begins with, runs."""
    driver = make_driver(policy, max_num_seqs=max_num_seqs, num_device_blocks=256, **fields)
    add(driver, *names)
    driver.step()
    return driver


def add(driver: Driver, *names: str, max_output_tokens: int = 8) -> None:
    driver.add(*(make_request(name, tenant=name[0], prompt=4, max_output_tokens=max_output_tokens) for name in names))


def policy_of(driver: Driver) -> Scripted:
    return driver.scheduler.lifecycle.policy.policy


class TestPaused:
    def driver(self) -> Driver:
        """ "a" yields to "b", which waits for no more than its turn."""
        driver = driver_of(Scripted(lends=False), "a", "b", max_num_seqs=2)
        policy_of(driver).yielding = "a"
        assert driver.chunks() == [("b", 4, 1)]
        assert status_of(driver, "a") is SequenceStatus.PAUSED
        return driver

    def test_it_keeps_its_row_while_nobody_needs_it(self):
        driver = self.driver()
        assert driver.plans[-1].stopped == ()
        policy_of(driver).yielding = ""
        driver.step()

        assert (driver.plans[-1].stopped, driver.plans[-1].started) == ((), ())
        assert sorted(driver.plans[-1].starts) == [4, 5]

    def test_it_loses_its_row_to_one_that_needs_it(self):
        driver = self.driver()
        add(driver, "c")

        assert driver.chunks() == [("b", 5, 1), ("c", 0, 4)]
        assert driver.plans[-1].stopped == (0,)
        assert seq_of(driver, "a").row is None
        assert len(seq_of(driver, "a").block_table.device) == 1

    def test_it_brings_tokens_and_blocks_when_it_gets_another(self):
        driver = self.driver()
        add(driver, "c")
        driver.step()
        policy_of(driver).yielding = ""
        driver.abort("c")
        driver.step()

        (start,) = driver.plans[-1].started
        assert (start.key.generation_id, start.token_ids[4:]) == ("a", tuple(driver.output("a")[:1]))
        assert start.block_ids[0] == seq_of(driver, "a").block_table.device[0]

    def test_which_is_told_in_words(self):
        assert [(name, *why) for name, *why in preemptions_of(self.driver())] == [("a", *PAUSED_FOR_FAIRNESS)]


def test_those_that_yield_lose_their_rows_to_a_head_that_does_not():
    driver = driver_of(Scripted(), "a")
    policy_of(driver).yielding = "a"
    add(driver, "b")

    assert driver.chunks() == [("b", 0, 4)]
    assert driver.plans[-1].stopped == (0,)
    assert status_of(driver, "a") is SequenceStatus.PAUSED


def test_a_row_is_taken_from_one_that_was_granted_a_token_and_concedes_it():
    driver = driver_of(Scripted(concedes={"a": Concession.SWAP}), "a")
    add(driver, "b")

    assert driver.chunks() == [("b", 0, 4)]
    assert preemptions_of(driver) == [("a", *PAUSED_FOR_FAIRNESS)]
    assert seq_of(driver, "a").num_device_blocks == 2  # with the one that it grew into
    assert driver.scheduler.stats().num_preemptions == 0  # it lost no block


def test_who_concedes_nothing_keeps_its_row():
    driver = driver_of(Scripted(), "a")
    add(driver, "b")

    assert driver.chunks() == [("a", 4, 1)]


def test_one_grant_is_taken_back_per_plan():
    driver = driver_of(Scripted(concedes={"a": Concession.SWAP}), "a1", "a2", max_num_seqs=2)
    add(driver, "b", "c")

    assert [name for name, _, _ in driver.chunks()] == ["a2", "b"]


def test_the_next_head_has_its_row_in_the_next_plan():
    driver = driver_of(Scripted(concedes={"a": Concession.SWAP}), "a1", "a2", max_num_seqs=2)
    add(driver, "b", "c")
    driver.step()

    assert sorted(name for name, _, _ in driver.chunks()) == ["b", "c"]


def test_under_fair_tenants_that_come_together_take_their_rows_plan_by_plan():
    fair = load_scheduling_policy("fair", {"theta": "10000"})
    driver = Driver(
        make_scheduler(fair, "over_served", max_num_seqs=4, num_device_blocks=64, max_num_batched_tokens=256)
    )
    driver.add(*(make_request(tenant="a", prompt=25, max_output_tokens=60) for _ in range(4)))
    driver.step()
    add(driver, "b", "c")
    driver.step()
    driver.step()

    assert [status_of(driver, name) for name in "bc"] == [SequenceStatus.RUNNING] * 2


def test_whoever_loses_a_grant_loses_no_block_that_it_grew_into():
    driver = driver_of(Scripted(), "a")
    request = seq_of(driver, "a").request
    policy_of(driver).concedes = {"a": Concession.SWAP}
    add(driver, "b")
    driver.step()
    assert driver.plans[-1].new_blocks == ()
    driver.run()

    assert driver.output("a") == expected_output(request)


def test_a_grant_that_was_taken_back_is_not_charged_and_counts_as_denied():
    driver = driver_of(Scripted(concedes={"a": Concession.SWAP}), "a")
    flow = seq_of(driver, "a").flow
    add(driver, "b")
    plan = driver.plan()

    assert flow.nodes[-1].num_planned_output_tokens == 0
    assert flow.is_flagged
    driver.commit(plan)
    assert flow.account.num_output_tokens == 1


def test_a_few_are_asked_in_a_plan_and_the_next_ones_in_the_next():
    asked: list[str] = []

    class Counting(Scripted):
        def concede(self, victim, claimant):
            asked.append(victim.key.generation_id)
            return super().concede(victim, claimant)

    names = [f"a{number}" for number in range(40)]
    driver = driver_of(Counting(), *names, max_num_seqs=40, max_num_batched_tokens=256)
    add(driver, "b")
    per_plan = []
    for _ in range(3):
        asked.clear()
        driver.step()
        per_plan.append(list(asked))

    assert [len(names) for names in per_plan] == [16, 16, 16]
    assert {name for names in per_plan for name in names} == set(names)


class TestPrefetch:
    """Two sequences are swapped; two others, which come first, take both rows."""

    def driver(self) -> Driver:
        driver = make_driver(Scripted(concedes={"a": Concession.ANYTHING}), max_num_seqs=2, num_device_blocks=10)
        driver.add(*(make_request(name, tenant="a", prompt=12, max_output_tokens=8) for name in ("a1", "a2")))
        driver.step()
        driver.add(make_request("b", tenant="b", prompt=33, max_output_tokens=2))
        while "b" in driver.scheduler.lifecycle.by_generation:
            driver.step()
        assert [status_of(driver, name) for name in ("a1", "a2")] == [SequenceStatus.SWAPPED] * 2
        policy_of(driver).first, policy_of(driver).concedes = "d", {}
        driver.add(*(make_request(name, tenant="d", prompt=1, max_output_tokens=9) for name in ("d1", "d2")))
        return driver

    def test_one_comes_back_before_a_row_is_free(self):
        driver = self.driver()
        driver.add(make_request("d3", tenant="d", prompt=1, max_output_tokens=9))  # finds no row
        driver.step()
        assert [name for name, _, _ in driver.chunks()] == ["d1", "d2"]

        assert [status_of(driver, name) for name in ("a1", "a2")] == [SequenceStatus.PAUSED, SequenceStatus.SWAPPED]
        assert seq_of(driver, "a1").row is None

    def test_one_only_even_if_nobody_else_waits_for_a_row(self):
        driver = self.driver()
        driver.step()

        assert [status_of(driver, name) for name in ("a1", "a2")] == [SequenceStatus.PAUSED, SequenceStatus.SWAPPED]
