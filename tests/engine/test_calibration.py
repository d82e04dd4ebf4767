"""Prices follow what is measured, keep what is not seen, and are told only when they matter."""

import random

import numpy as np
import pytest

from engine.calibration import (
    INTERVAL_NS,
    MAX_DRIFT,
    Calibrator,
    CopyTiming,
    Start,
    fit,
    step_counts,
)
from engine.core.plan import BlockCopy, CopyDirection, StepPlan

BASE, PREFILL, PREFILL_KEY, DECODE, DECODE_KEY, COPIED = TRUE = np.array((2e7, 1e6, 1e3, 2e6, 1e4, 5e4))
SECOND = INTERVAL_NS


def chunks(*pairs, copied=0):
    """A plan of (start, num_tokens); decodes come first."""
    copies = (BlockCopy(0, CopyDirection.OUT, tuple(range(copied)), tuple(range(copied))),) if copied else ()
    starts, lengths = zip(*pairs, strict=True)
    return StepPlan(1, rows=tuple(range(len(pairs))), starts=starts, num_tokens=lengths, copies=copies)


SHAPES = [
    chunks((15, 1)),
    chunks((0, 64)),
    chunks(*[(15, 1)] * 16),
    chunks((1023, 1)),
    chunks((1024, 64)),
    chunks((0, 256)),
    chunks((15, 1), copied=64),
]


def nanoseconds(plan, true=TRUE):
    return float(step_counts(plan) @ true)


def started(true=TRUE, out_ns=30_000.0, in_ns=20_000.0):
    counts = np.array([step_counts(plan) for plan in SHAPES])
    return Calibrator(Start(counts, counts @ true, out_ns, in_ns, 100_000.0))


def as_vector(prices):
    step = prices.step
    return np.array(
        (
            step.base_ns,
            step.prefill_token_ns,
            step.prefill_key_ns,
            step.decode_ns,
            step.decode_key_ns,
            step.copied_block_ns,
        )
    )


def test_counts_are_those_that_the_prices_are_for():
    plan = chunks((9, 1), (4, 1), (10, 3), (0, 2), copied=5)
    assert step_counts(plan).tolist() == [1, 5, (11 + 12 + 13) + (1 + 2), 2, 10 + 5, 5]
    costs = started().prices.step
    exact = costs.chunk_ns(10, 3) + costs.chunk_ns(0, 2) + costs.decodes_ns(2, 15) + costs.base_ns + 5 * COPIED
    assert nanoseconds(plan) == pytest.approx(exact)


def test_start_finds_the_coefficients_of_a_machine():
    prices = started().prices
    assert as_vector(prices) == pytest.approx(TRUE, rel=1e-6)
    assert (prices.copy_out_block_ns, prices.copy_in_block_ns, prices.copy_launch_ns) == (30_000, 20_000, 100_000)


def test_no_coefficient_is_below_zero_whatever_the_noise():
    rng = random.Random(0)
    for _ in range(50):
        counts = np.array([step_counts(plan) for plan in SHAPES])
        step_ns = counts @ TRUE * np.array([rng.uniform(0.5, 2) for _ in SHAPES])
        vector = as_vector(Calibrator(Start(counts, step_ns, 1.0, 1.0, 1.0)).prices)
        assert (vector >= 0).all()
        assert np.isfinite(vector).all()


def test_fit_leaves_out_what_would_be_negative():
    assert fit(np.diag((1.0, 4.0)), np.array((3.0, -2.0))).tolist() == [3.0, 0.0]


def test_machine_that_slows_down_is_noticed_within_a_half_life():
    calibrator = started()
    for _ in range(256):
        for plan in (SHAPES[2], SHAPES[5]):
            calibrator.observe_step(plan, int(2 * nanoseconds(plan)))
    prices = calibrator.due(0)
    for plan in (SHAPES[2], SHAPES[5]):
        assert nanoseconds(plan, as_vector(prices)) == pytest.approx(2 * nanoseconds(plan), rel=0.1)
    assert calibrator.prices is prices


def test_what_live_traffic_does_not_show_keeps_its_price():
    """Live steps only decode, and slower than at the start: what a prompt costs is not forgotten."""
    calibrator = started()
    for _ in range(1000):
        calibrator.observe_step(SHAPES[2], int(1.5 * nanoseconds(SHAPES[2])))
    calibrator.due(0)
    prompt = SHAPES[5]
    assert nanoseconds(prompt, as_vector(calibrator.prices)) == pytest.approx(nanoseconds(prompt), rel=0.2)


def test_steady_machine_tells_nothing():
    calibrator = started()
    rng = random.Random(1)
    for step in range(600):
        plan = rng.choice(SHAPES)
        calibrator.observe_step(plan, int(nanoseconds(plan) * rng.uniform(0.95, 1.05)))
        assert calibrator.due(step * SECOND) is None


def test_prices_are_told_at_most_once_a_second():
    calibrator = started()
    calibrator.due(0)
    for _ in range(100):
        calibrator.observe_copies([CopyTiming(CopyDirection.IN, 10, 10 * 60_000)])
    assert calibrator.due(SECOND - 1) is None
    prices = calibrator.due(SECOND)
    assert prices.copy_in_block_ns == pytest.approx(60_000, rel=0.02)
    assert prices.copy_out_block_ns == 30_000
    assert calibrator.due(2 * SECOND) is None


def test_one_disturbed_step_changes_nothing():
    calibrator = started()
    for _ in range(50):
        calibrator.observe_step(SHAPES[0], int(nanoseconds(SHAPES[0])))
    calibrator.observe_step(SHAPES[0], 60_000_000_000)
    assert calibrator.due(0) is None


def test_prices_stay_within_bounds_of_the_start():
    calibrator = started()
    for second in range(20):
        for _ in range(300):
            calibrator.observe_step(SHAPES[2], 10**15)
            calibrator.observe_copies([CopyTiming(CopyDirection.OUT, 1, 10**15)])
        calibrator.due(second * SECOND)
    assert (as_vector(calibrator.prices) <= TRUE * MAX_DRIFT * 1.000001).all()
    assert calibrator.prices.copy_out_block_ns == 30_000 * MAX_DRIFT


def test_draft_counts_as_a_decode_of_its_own():
    drafted = StepPlan(
        1, rows=(0, 1, 2), starts=(9, 20, 0), num_tokens=(1, 3, 64), samples=(True,) * 3, num_drafts=(0, 2, 0)
    )
    assert step_counts(drafted).tolist() == step_counts(chunks((9, 1), (20, 1), (21, 1), (22, 1), (0, 64))).tolist()
