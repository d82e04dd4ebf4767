"""What service counts: the one place where the simulator turns tokens into cost units."""

from engine.core.costs import OUTPUT_COST, PREFILL_COST


def work_of(num_prompt_tokens: float, num_output_tokens: float) -> float:
    """Cost units of so many tokens; numbers of them, or rates."""
    return PREFILL_COST * num_prompt_tokens + OUTPUT_COST * num_output_tokens
