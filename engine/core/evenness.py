"""How alike what several got is, as one number.

Source: Jain, Chiu and Hawe 1984, "A Quantitative Measure of Fairness".
"""

from collections import abc


def jain_index(ratios: abc.Sequence[float]) -> float | None:
    """(sum x)^2 / (n sum x^2) of what each got over its share: 1 where all are alike, 1/n where one has all.

    None where nobody got anything.
    """
    squares = sum(ratio * ratio for ratio in ratios)
    return sum(ratios) ** 2 / (len(ratios) * squares) if squares > 0 else None
