"""`evenflow sim validate`: the verdict in words."""

from engine.commands.simulation.validation import Comparison, Figure, verdict_lines


def compared(policy: str, live: float, simulated: float) -> Comparison:
    return Comparison("made", policy, (Figure("TTFT p50", (live,), simulated, 0.05),), 1.0, 1.0, 1.0)


def test_the_same_order_within_the_allowed_error_is_said():
    assert verdict_lines([compared("fair", 1.0, 1.01), compared("fcfs", 2.0, 1.99)]) == [
        "error: 2 of 2 figures are within what is allowed",
        "order of policies by TTFT p50: live fair < fcfs, simulated the same",
    ]


def test_another_order_and_a_larger_error_are_said():
    assert verdict_lines([compared("fair", 1.0, 3.0), compared("fcfs", 2.0, 2.0)]) == [
        "error: 1 of 2 figures are within what is allowed; outside: fair TTFT p50 by +200.0%",
        "order of policies by TTFT p50: live fair < fcfs, simulated another, fcfs < fair",
    ]


def test_one_policy_has_no_order():
    assert len(verdict_lines([compared("fair", 1.0, 1.0)])) == 1
