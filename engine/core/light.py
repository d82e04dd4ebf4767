"""Which flows have hardly anything: rule R5(d) of docs/fairness.md, for the core's growth reserve and for `fair`."""

SMALL_PART = 0.5
"""Of its share, up to which a flow that holds some blocks counts as light: near its share it would only take turns."""


def holds_little(num_held: int, num_needed: int, share: float) -> bool:
    """True if a flow stays within its share of the pool, in blocks, with `num_needed` more; within half of it if it
    holds some already."""
    return num_held + num_needed <= (SMALL_PART if num_held else 1.0) * share
