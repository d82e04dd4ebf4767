"""How many drafts a step carries, what they cost and whom, and what is left of those that were wrong."""

import pytest

from engine.core.errors import StaleOutputError
from engine.core.leap import Leap
from engine.core.plan import StepOutput
from engine.core.policy import Service
from engine.core.types import FinishReason, PauseReason
from policies.fair import Fair
from policies.fcfs import Fcfs
from tests.builders import make_config, make_request, make_scheduler
from tests.core.drafting import CHEAP_TOKENS, DEAR_TOKENS, drafting_driver, drafts_of, seq_of
from tests.core.scripted import Scripted, preemptions_of
from tests.fakes import expected_output


class Noting(Fcfs):
    """Keeps what it is charged with."""

    def __init__(self) -> None:
        super().__init__()
        self.charged: list[Service] = []

    def charge(self, service: Service) -> None:
        self.charged.append(service)


def test_right_drafts_and_the_token_behind_them_are_emitted_in_one_step():
    driver = drafting_driver(hits=1.0)
    request = make_request("r", prompt=8, max_output_tokens=10)
    driver.add(request)
    driver.run()
    assert driver.output("r") == expected_output(request)
    assert [plan.num_tokens for plan in driver.plans] == [(8,), (5,), (4,)]
    assert drafts_of(driver) == [(4,), (3,)]
    usage = driver.finished("r").usage
    assert (usage.num_output_tokens, usage.num_drafted_tokens, usage.num_accepted_tokens) == (10, 7, 7)


def test_wrong_drafts_are_charged_to_nobody_and_leave_no_block():
    policy = Noting()
    driver = drafting_driver(policy, hits=0.0, block_size=2)
    request = make_request("r", prompt=7, max_output_tokens=12)
    driver.add(request)
    driver.run()
    assert driver.output("r") == expected_output(request)
    usage = driver.finished("r").usage
    assert usage.num_drafted_tokens > 0
    assert usage.num_accepted_tokens == 0
    assert sum(service.num_output_tokens for service in policy.charged) == 12
    assert driver.scheduler.stats().num_free_blocks == driver.scheduler.config.num_device_blocks


def test_blocks_behind_the_last_accepted_token_are_free_after_the_step():
    driver = drafting_driver(hits=0.0, block_size=2)
    driver.add(make_request("r", prompt=7, max_output_tokens=12))
    driver.step()
    plan = driver.plan()
    assert plan.num_drafts[0] > 2
    assert seq_of(driver, "r").num_device_blocks == -(-(8 + plan.num_drafts[0]) // 2)
    driver.commit(plan)
    assert seq_of(driver, "r").num_device_blocks == 5  # nine tokens are known


def test_sequence_whose_drafts_are_wrong_gets_fewer_then_none_and_is_tried_again_later():
    driver = drafting_driver(hits=0.0, num_device_blocks=256)
    driver.scheduler.calibrate(CHEAP_TOKENS, driver.now)
    driver.add(make_request("r", prompt=4, max_output_tokens=400))
    driver.run()
    carried = [sum(plan.num_drafts) for plan in driver.plans]
    assert carried[1] > carried[2] > 0
    assert carried[4:30].count(0) > 20
    assert sum(carried[30:]) > 3, "it was never tried again"
    assert sum(carried[30:]) < 0.2 * len(carried)


def test_sequence_whose_drafts_are_right_gets_more_of_them():
    driver = drafting_driver(hits=1.0, num_draft_tokens=8)
    driver.scheduler.calibrate(CHEAP_TOKENS, driver.now)
    driver.add(make_request("r", prompt=4, max_output_tokens=100))
    driver.run()
    carried = [count for (count,) in drafts_of(driver)]
    assert carried[0] < 8
    assert carried[3] == 8


def test_no_draft_is_verified_where_it_costs_as_much_as_a_step():
    driver = drafting_driver(hits=1.0)
    driver.scheduler.calibrate(DEAR_TOKENS, driver.now)
    driver.add(make_request("r", prompt=4, max_output_tokens=20))
    driver.run()
    assert drafts_of(driver) == []


def test_more_sequences_in_a_step_must_be_surer_of_their_drafts():
    def carried(num_requests: int) -> int:
        driver = drafting_driver(hits=1.0, max_num_seqs=16, max_num_batched_tokens=128, num_device_blocks=512)
        driver.scheduler.calibrate(CHEAP_TOKENS, driver.now)
        driver.add(*[make_request(prompt=4, max_output_tokens=20) for _ in range(num_requests)])
        driver.step()
        return max(driver.plan().num_drafts, default=0)

    # A step of n takes 9 + n units and gives n tokens; the first draft is right with probability 0.6.
    assert [carried(n) for n in (1, 4, 12, 16)] == [4, 2, 1, 0]


def test_what_proposing_takes_counts_where_it_takes_something():
    def limit(draft_token_ns: float) -> int:
        driver = drafting_driver(hits=1.0, draft_token_ns=draft_token_ns)
        driver.scheduler.calibrate(CHEAP_TOKENS, driver.now)
        driver.add(make_request(prompt=4, max_output_tokens=20))
        driver.step()
        return sum(driver.plan().draft_limits)

    assert limit(100_000.0) == 3
    assert limit(1_000_000.0) == 0


def test_full_batch_carries_no_drafts():
    driver = drafting_driver(hits=1.0, max_drafting_seqs=2)
    for _ in range(3):
        driver.add(make_request(prompt=4, max_output_tokens=8))
    driver.step()
    assert not driver.plan().num_drafts
    assert not driver.plans[-1].draft_limits


def test_drafts_take_only_what_prompts_leave_of_the_step():
    driver = drafting_driver(hits=1.0, max_num_batched_tokens=16)
    driver.add(make_request("r", prompt=4, max_output_tokens=30))
    driver.step()
    driver.add(make_request("long", prompt=30, max_output_tokens=1))
    plan = driver.plan()
    assert (plan.num_tokens, plan.num_drafts) == ((1, 15), ())
    driver.commit(plan)
    plan = driver.plan()
    assert (plan.num_tokens, plan.num_drafts) == ((1, 15), ()), "the step is full"


def test_drafts_of_several_sequences_share_what_is_left_evenly():
    driver = drafting_driver(hits=1.0, max_num_batched_tokens=8)
    driver.add(*[make_request(prompt=2, max_output_tokens=30) for _ in range(2)])
    driver.step()
    assert driver.plan().num_drafts == (3, 3)


def test_nobody_loses_a_block_for_a_draft():
    driver = drafting_driver(hits=1.0, num_device_blocks=4, block_size=4, growth_reserve_tokens=0)
    driver.add(make_request("a", prompt=7, max_output_tokens=9), make_request("b", prompt=7, max_output_tokens=2))
    driver.step()
    plan = driver.plan()
    assert plan.num_drafts == (), "both blocks of each are full with the token that is known"
    assert preemptions_of(driver) == []
    driver.commit(plan)
    driver.run()
    assert len(driver.output("a")) == 9


def test_flow_that_yields_gets_no_drafts():
    policy = Scripted(yielding="a")
    driver = drafting_driver(policy, hits=1.0)
    driver.add(make_request("a", tenant="a", prompt=4, max_output_tokens=9))
    driver.add(make_request("b", tenant="b", prompt=4, max_output_tokens=9))
    driver.step()
    plan = driver.plan()
    drafts = dict(zip(plan.rows, plan.num_drafts, strict=True))
    assert drafts[seq_of(driver, "a").row] == 0
    assert drafts[seq_of(driver, "b").row] == 4


def test_drafts_of_one_flow_take_at_most_a_fifth_of_a_step_in_which_others_decode():
    driver = drafting_driver(hits=1.0, num_draft_tokens=8, max_num_seqs=8)
    driver.scheduler.calibrate(CHEAP_TOKENS, driver.now)
    driver.add(make_request("a", tenant="a", prompt=4, max_output_tokens=90))
    driver.add(make_request("b", tenant="b", prompt=4, max_output_tokens=90, speculates=False))
    for _ in range(6):
        driver.step()
    # Both decodes take 1.1 ms: a quarter more, by weight, is 0.1375 ms for each of the two flows.
    assert {sum(plan.num_drafts) for plan in driver.plans[1:]} == {1}


def test_drafts_keep_within_the_target_of_a_step():
    driver = drafting_driver(hits=1.0, num_draft_tokens=8, target_step_ms=1.25)
    driver.scheduler.calibrate(CHEAP_TOKENS, driver.now)
    driver.add(make_request(prompt=4, max_output_tokens=90))
    driver.run()
    assert max(count for (count,) in drafts_of(driver)) == 2


def test_request_that_does_not_speculate_is_computed_token_by_token():
    driver = drafting_driver(hits=1.0)
    driver.add(make_request("r", prompt=4, max_output_tokens=6, speculates=False))
    driver.run()
    assert drafts_of(driver) == []
    assert len(driver.plans) == 6
    assert driver.finished("r").usage.num_drafted_tokens == 0


def test_grant_ends_drafts_where_it_ends_the_output():
    driver = drafting_driver(hits=1.0)
    request = make_request("r", prompt=4, max_output_tokens=20, granted_output_tokens=4)
    driver.add(request)
    driver.run()
    assert driver.output("r") == expected_output(request)[:4]
    assert preemptions_of(driver)[-1][2] is PauseReason.QUOTA
    driver.scheduler.grant("r", 20, driver.now)
    driver.run()
    assert driver.output("r") == expected_output(request)


def test_grant_that_is_taken_back_during_the_step_holds_the_sequence_there():
    driver = drafting_driver(hits=1.0)
    request = make_request("r", prompt=4, max_output_tokens=20)
    driver.add(request)
    driver.step()
    plan = driver.plan()
    assert plan.num_drafts == (4,)
    driver.scheduler.grant("r", 3, driver.now)
    driver.commit(plan)
    assert driver.output("r") == expected_output(request)[:3]
    driver.scheduler.grant("r", 20, driver.now)
    driver.run()
    assert driver.output("r") == expected_output(request)


def test_output_ends_at_a_stop_token_among_accepted_drafts():
    plain = make_request("r", prompt=4, max_output_tokens=20)
    stop = expected_output(plain)[2]
    request = make_request(
        "r",
        prompt=plain.prompt_token_ids,
        max_output_tokens=20,
        stop_token_ids=frozenset({stop}),
        sampling=plain.sampling,
    )
    driver = drafting_driver(hits=1.0)
    driver.add(request)
    driver.run()
    end = driver.finished("r")
    assert driver.output("r") == expected_output(request)
    assert (end.reason, driver.output("r")[-1]) == (FinishReason.STOP, stop)
    assert end.usage.num_output_tokens == len(driver.output("r"))


def test_proposals_are_forgotten_with_the_row():
    driver = drafting_driver(hits=1.0)
    driver.add(make_request("r", prompt=4, max_output_tokens=20))
    driver.step()
    assert seq_of(driver, "r").drafting.num_proposed == 4
    driver.scheduler.set_reader_blocked("r", blocked=True, now=driver.now)
    assert seq_of(driver, "r").drafting.num_proposed == 0
    driver.scheduler.set_reader_blocked("r", blocked=False, now=driver.now)
    assert not driver.plan().num_drafts


def test_more_tokens_than_were_drafted_are_refused():
    scheduler = make_scheduler(num_draft_tokens=2)
    scheduler.add(make_request(prompt=3, max_output_tokens=9), 0)
    plan = scheduler.plan(0)
    scheduler.commit(StepOutput(plan.step_id, {0: (5,)}, proposed={0: 2}), 1)
    plan = scheduler.plan(1)
    assert plan.num_drafts == (2,)
    with pytest.raises(StaleOutputError):
        scheduler.commit(StepOutput(plan.step_id, {0: (5, 5, 5, 5)}), 2)
    scheduler.commit(StepOutput(plan.step_id, {0: (5, 5, 5)}), 2)


def test_step_that_may_propose_is_not_leapt_over():
    scheduler = make_scheduler(num_draft_tokens=2)
    leap = Leap(scheduler)
    request = make_request(prompt=3, max_output_tokens=90)
    leap.expect(request)
    scheduler.add(request, 0)
    for now in range(3):
        plan = scheduler.plan(now)
        assert plan.draft_limits
        assert leap.max_steps() == 0
        scheduler.commit(StepOutput(plan.step_id, {0: (5,)}), now)


def test_promised_gap_counts_the_drafts_that_a_step_can_emit():
    def bound(**fields: object) -> float:
        scheduler = make_scheduler(Fair(), "over_served", **fields)
        for tenant in "ab":
            scheduler.add(make_request(tenant=tenant, prompt=3), 0)
        scheduler.plan(0)
        return scheduler.stats().gap_bound

    assert bound() < bound(num_draft_tokens=2) < bound(num_draft_tokens=4)


@pytest.mark.parametrize("field", ["num_draft_tokens", "max_drafting_seqs", "min_draft_acceptance", "draft_token_ns"])
def test_negative_setting_is_refused_by_name(field: str):
    with pytest.raises(ValueError, match=field):
        make_config(**{field: -1})


def test_drafts_are_counted_for_the_tenant_that_had_them():
    driver = drafting_driver(hits=1.0)
    driver.add(make_request("a", tenant="a", prompt=8, max_output_tokens=10))
    driver.add(make_request("b", tenant="b", prompt=8, max_output_tokens=10, speculates=False))
    driver.run()

    stats = driver.scheduler.stats()
    usage = driver.finished("a").usage
    assert usage.num_drafted_tokens > 0
    counted = {each.tenant_id: (each.num_drafted_tokens, each.num_accepted_tokens) for each in stats.tenants}
    assert list(counted.values()) == [(usage.num_drafted_tokens, usage.num_accepted_tokens), (0, 0)]
    assert stats.totals.num_drafted_tokens == usage.num_drafted_tokens
