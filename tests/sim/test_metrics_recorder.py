"""What a recorder makes of a run that it is told: latencies, counts, work, and who is listed."""

import json

import pytest

from engine.core.plan import CopyDirection
from engine.core.types import FinishReason, PauseReason, PreemptionMode
from engine.sim.metrics import Recorder, RecorderOptions
from tests.sim.sim_stories import MS, SECOND, arrival, busy_outcome, serve, usage


def started(tenant="org/a", at_ns=0, output=4):
    """A recorder with one request that has its first token 100 ms after it arrived, and runs on."""
    recorder = Recorder()
    recorder.on_arrival(arrival(tenant, at_ns, output=output), "r", at_ns)
    recorder.on_admitted("r", at_ns + 60 * MS)
    recorder.on_first_token("r", at_ns + 100 * MS)
    return recorder


def test_latencies_are_measured_from_the_arrival():
    recorder = started(at_ns=SECOND)
    recorder.on_finish("r", FinishReason.LENGTH, usage(output=4), SECOND + 400 * MS)

    latencies = recorder.result(2 * SECOND).groups[0].latencies

    assert latencies.ttft.p50_s == 0.1
    assert latencies.tpot.p50_s == 0.1
    assert latencies.completion.p50_s == 0.4


def test_ttft_counts_from_the_intended_time_of_a_late_arrival():
    recorder = Recorder()
    recorder.on_arrival(arrival(at_ns=0), "r", 500 * MS)
    recorder.on_first_token("r", 700 * MS)

    assert recorder.result(SECOND).groups[0].latencies.ttft.max_s == 0.7


def test_largest_token_gap_is_the_longest_step_or_pause():
    recorder = started()
    recorder.on_step(90 * MS, 100 * MS)
    for number in range(3):
        recorder.on_step((20 + number) * MS, (130 + 30 * number) * MS)
    recorder.on_finish("r", FinishReason.LENGTH, usage(output=4), 200 * MS)
    assert recorder.result(SECOND).groups[0].latencies.max_itl.max_s == 0.022

    recorder = started()
    recorder.on_preempted("r", PreemptionMode.SWAP, PauseReason.FAIRNESS, 150 * MS)
    recorder.on_resumed("r", 500 * MS)
    recorder.on_token("r", 650 * MS)
    recorder.on_finish("r", FinishReason.LENGTH, usage(output=4), 700 * MS)
    assert recorder.result(SECOND).groups[0].latencies.max_itl.max_s == 0.5


def test_steps_of_another_engine_are_not_gaps_of_this_one():
    recorder = Recorder()
    recorder.on_arrival(arrival(), "r", 0)
    recorder.on_admitted("r", 0, engine=1)
    recorder.on_first_token("r", 10 * MS)
    recorder.on_step(500 * MS, 20 * MS, engine=0)
    recorder.on_step(10 * MS, 20 * MS, engine=1)
    recorder.on_finish("r", FinishReason.LENGTH, usage(output=4), 20 * MS)

    assert recorder.result(SECOND).groups[0].latencies.max_itl.max_s == 0.01


def test_unfinished_request_counts_with_its_age():
    recorder = Recorder()
    recorder.on_arrival(arrival(), "r", 0)

    outcome = recorder.result(30 * SECOND)

    assert outcome.totals.num_unfinished == 1
    assert outcome.groups[0].latencies.ttft.max_s == 30
    assert outcome.fairness.starvation_age_s == 30
    assert outcome.groups[0].goodput[0].share == 0


def test_result_of_an_unfinished_request_that_streams_has_its_true_ttft():
    assert started().result(30 * SECOND).groups[0].latencies.ttft.max_s == 0.1


def test_cancelled_request_is_neither_finished_nor_timed():
    recorder = started()
    recorder.on_finish("r", FinishReason.CANCELLED, usage(output=2), 200 * MS)

    outcome = recorder.result(SECOND)

    assert outcome.totals.num_finished_by_reason == {"cancelled": 1}
    assert outcome.groups[0].num_finished == 0
    assert outcome.groups[0].latencies.completion.num_samples == 0


def test_refusals_are_counted_by_reason():
    recorder = Recorder()
    recorder.on_arrival(arrival(), "r", 0)
    recorder.on_refused("r", "too large", 0)

    outcome = recorder.result(SECOND)

    assert outcome.totals.num_refused_by_reason == {"too large": 1}
    assert outcome.totals.num_unfinished == 0
    assert outcome.groups[0].requested_work == 18


def test_preemptions_are_counted_by_mode_and_reason_and_losses_by_request():
    recorder = started()
    for mode, reason in (
        (PreemptionMode.PAUSE, PauseReason.FAIRNESS),
        (PreemptionMode.SWAP, PauseReason.KV_PRESSURE),
        (PreemptionMode.RECOMPUTE, PauseReason.KV_PRESSURE),
    ):
        recorder.on_preempted("r", mode, reason, 200 * MS)
        recorder.on_resumed("r", 210 * MS)
        recorder.on_token("r", 220 * MS)

    totals = recorder.result(SECOND).totals

    assert totals.num_preemptions_by_mode == {"pause": 1, "recompute": 1, "swap": 1}
    assert totals.num_preemptions_by_reason == {"fairness": 1, "kv_pressure": 2}
    assert (totals.num_preempted_requests, totals.max_preemptions) == (1, 2)


def test_copies_are_counted_in_blocks_and_bytes():
    recorder = Recorder(RecorderOptions(block_bytes=100))
    recorder.on_copy(3, CopyDirection.OUT, 0)
    recorder.on_copy(2, CopyDirection.IN, SECOND)

    totals = recorder.result(SECOND).totals

    assert (totals.num_copies, totals.num_blocks_out, totals.num_blocks_in) == (2, 3, 2)
    assert (totals.bytes_out, totals.bytes_in) == (300, 200)


def test_work_is_conserved_over_tenants_windows_and_leaps():
    recorder = Recorder()
    for step in range(200):
        recorder.on_tokens("org/a", 7, 3, 0, step * 130 * MS)
        recorder.on_tokens("org/b", 0, 5, 2.5, step * 130 * MS + 125 * MS, step * 130 * MS)

    outcome = recorder.result(30 * SECOND)

    assert outcome.tenant("org/a").served_work == 200 * (7 + 2 * 3)
    assert outcome.tenant("org/b").borrowed_work == 500
    timeline = outcome.timeline
    drawn = sum(sum(series.values) * timeline.window_s for series in timeline.service)
    assert drawn == pytest.approx(200 * (13 + 10))


def test_warm_up_is_left_out_of_the_percentiles():
    recorder = Recorder(RecorderOptions(warm_up_ns=10 * SECOND))
    serve(recorder, "cold", arrival(at_ns=0), 5 * SECOND, 6 * SECOND)
    serve(recorder, "warm", arrival(at_ns=20 * SECOND), 21 * SECOND, 22 * SECOND)

    latencies = recorder.result(30 * SECOND).groups[0].latencies

    assert latencies.ttft.num_samples == 1
    assert latencies.ttft.max_s == 1


def test_goodput_needs_both_limits_and_counts_refusals_as_misses():
    recorder = Recorder(RecorderOptions(goodput_limits_ms=((500, 30),)))
    serve(recorder, "good", arrival(output=11), 400 * MS, 700 * MS)
    serve(recorder, "slow start", arrival(output=11), 600 * MS, 700 * MS)
    serve(recorder, "slow tokens", arrival(output=11), 400 * MS, 1_000 * MS)
    recorder.on_arrival(arrival(), "refused", 0)
    recorder.on_refused("refused", "full", 0)

    assert recorder.result(SECOND).groups[0].goodput[0].share == 0.25


def test_recomputed_tokens_are_a_share_of_all_that_were_computed():
    recorder = Recorder()
    recorder.on_arrival(arrival(), "r", 0)
    recorder.on_tokens("org/a", 60, 20, 0, SECOND)
    recorder.on_finish("r", FinishReason.LENGTH, usage(60, 20, recomputed=20), SECOND)

    assert recorder.result(SECOND).totals.recomputed_share == 0.2


def test_nothing_at_all_has_an_outcome():
    outcome = Recorder().result(0)

    assert outcome.totals.num_requests == 0
    assert outcome.fairness.jain is None


def test_long_lists_of_tenants_are_cut_and_the_rest_is_drawn_together():
    recorder = Recorder(RecorderOptions(max_listed_tenants=5))
    for number in range(40):
        serve(recorder, str(number), arrival(f"org/t{number}", prompt=10 + number), SECOND, 2 * SECOND)

    outcome = recorder.result(3 * SECOND)

    assert [tenant.name for tenant in outcome.tenants] == ["org/t39", "org/t38", "org/t37", "org/t36", "org/t35"]
    assert [series.name for series in outcome.timeline.service][-1] == "others"
    assert outcome.tenant("org/t1") is None


def test_outcome_is_plain_json_and_the_same_for_the_same_run():
    first, second = (json.dumps(busy_outcome().to_json(), sort_keys=True, allow_nan=False) for _ in range(2))

    assert first == second
