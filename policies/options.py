"""Checks of the numbers that policies take as options. Each message begins with the option's name."""

import math


def at_least(minimum: float, **options: float) -> None:
    """Raises ValueError, naming the option, unless each is finite and at least `minimum`."""
    for name, value in options.items():
        if not minimum <= value < math.inf:
            raise ValueError(f"{name} must be finite and at least {minimum}, not {value}")
