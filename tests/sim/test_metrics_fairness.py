"""Who was backlogged, who had less than their share, and by how much: what a recorder says of fairness."""

import pytest

from engine.core.types import PauseReason, PreemptionMode
from engine.sim.metrics import Recorder, RecorderOptions
from tests.sim.sim_stories import MS, SECOND, arrival, serve


def test_gap_of_two_backlogged_tenants_is_that_of_their_service():
    recorder = Recorder(RecorderOptions(gap_window_ns=10 * SECOND))
    for tenant in ("org/a", "org/b"):
        recorder.on_arrival(arrival(tenant), tenant, 0)
    for second in range(60):
        recorder.on_tokens("org/a", 30, 0, 0, second * SECOND + 1)
        recorder.on_tokens("org/b", 20, 0, 0, second * SECOND + 2)

    fairness = recorder.result(60 * SECOND).fairness

    assert fairness.max_gap == 100
    assert fairness.mean_gap == 100
    assert fairness.max_gap_over_share == pytest.approx(0.4)
    assert fairness.num_gap_windows == 51


def test_gap_needs_backlog_throughout_the_window():
    recorder = Recorder(RecorderOptions(gap_window_ns=10 * SECOND))
    for tenant in ("org/a", "org/b"):
        recorder.on_arrival(arrival(tenant), tenant, 0)
    for second in range(60):
        recorder.on_tokens("org/a", 30, 0, 0, second * SECOND + 1)
        if second % 8 == 7:
            recorder.on_admitted(f"org/b{second - 8}" if second > 8 else "org/b", second * SECOND)
            recorder.on_arrival(arrival("org/b"), f"org/b{second}", second * SECOND + 500 * MS)

    assert recorder.result(60 * SECOND).fairness.max_gap is None


def test_request_that_follows_at_once_keeps_its_tenant_backlogged():
    recorder = Recorder(RecorderOptions(gap_window_ns=10 * SECOND))
    recorder.on_arrival(arrival("org/a"), "org/a", 0)
    recorder.on_arrival(arrival("org/b"), "b0", 0)
    for second in range(1, 30):
        recorder.on_admitted(f"b{second - 1}", second * SECOND)
        recorder.on_arrival(arrival("org/b"), f"b{second}", second * SECOND)
        recorder.on_tokens("org/b", 10, 0, 0, second * SECOND)

    assert recorder.result(30 * SECOND).fairness.max_gap == 100


def test_request_paused_by_its_reader_makes_nobody_backlogged():
    recorder = Recorder()
    recorder.on_arrival(arrival(), "r", 0)
    recorder.on_admitted("r", 0)
    recorder.on_preempted("r", PreemptionMode.PAUSE, PauseReason.READER, SECOND)

    assert recorder.result(90 * SECOND).fairness.starvation_age_s == 0


def test_share_is_judged_while_requests_still_arrive():
    recorder = Recorder()
    for second in range(100):
        for tenant, tokens in (("org/greedy", 18), ("org/small", 2)):
            recorder.on_arrival(
                arrival(tenant, second * SECOND, prompt=20, output=1), f"{tenant}{second}", second * SECOND
            )
            recorder.on_tokens(tenant, tokens, 0, 0, second * SECOND)

    outcome = recorder.result(100 * SECOND)

    assert outcome.tenant("org/small").share_ratio == pytest.approx(0.2)
    assert outcome.fairness.min_share_ratio == pytest.approx(0.2)


def test_weights_shift_the_share():
    recorder = Recorder(RecorderOptions(weights={"org/heavy": 3.0}))
    for second in range(100):
        for tenant, tokens in (("org/heavy", 15), ("org/light", 5)):
            recorder.on_arrival(
                arrival(tenant, second * SECOND, prompt=40, output=1), f"{tenant}{second}", second * SECOND
            )
            recorder.on_tokens(tenant, tokens, 0, 0, second * SECOND)

    fairness = recorder.result(100 * SECOND).fairness

    assert fairness.min_share_ratio == pytest.approx(1)
    assert fairness.jain == pytest.approx(1)
    assert fairness.max_weight_error == pytest.approx(0)


def test_light_and_heavy_tenants_are_told_apart_by_their_work():
    recorder = Recorder()
    for number, (tenant, prompt) in enumerate(
        [("org/x", 500), ("org/y", 400), ("org/z", 90), ("org/w", 80), ("org/v", 5)]
    ):
        serve(recorder, str(number), arrival(tenant, prompt=prompt, output=1), SECOND, 2 * SECOND)

    outcome = recorder.result(3 * SECOND)

    assert {group.name: group.num_tenants for group in outcome.groups} == {
        "all": 5,
        "light": 1,
        "heavy": 3,
        "middle": 1,
    }
