"""Every option of our policies is checked, and its name said."""

import pytest

from engine.plugins import InvalidOptionError, load_scheduling_policy

OUT_OF_RANGE = [
    ("vtc", "prefill_cost", "-1"),
    ("vtc", "output_cost", "nan"),
    ("priority", "ageing_ms", "-1"),
    ("priority", "ageing_ms", "inf"),
    ("drr", "quantum", "0.5"),
    ("drr", "quantum", "nan"),
    ("drr", "prefill_cost", "-1"),
    ("drr", "output_cost", "inf"),
    ("mlfq", "quantum", "0"),
    ("mlfq", "levels", "0"),
    ("mlfq", "starvation_ms", "-1"),
    ("srpt", "output_cost", "-1"),
    ("srpt", "default_output", "0"),
    ("srpt", "preempt_ratio", "0.5"),
    ("srpt", "starvation_ms", "nan"),
    ("edf", "slo_ms", "0"),
    ("edf", "urgent_ms", "-1"),
    ("edf", "best_effort_every", "1"),
]


@pytest.mark.parametrize(("name", "option", "text"), OUT_OF_RANGE)
def test_a_value_that_makes_no_sense_is_refused_by_name(name: str, option: str, text: str):
    with pytest.raises(InvalidOptionError, match=f"policy {name}: {option} must be at least"):
        load_scheduling_policy(name, {option: text})
