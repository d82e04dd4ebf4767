"""Checks of the numbers that policies take as options. Each message begins with the option's name."""

MAX_OPTION = 1e12  # whatever is added, multiplied with lengths or divided by weights stays finite


def at_least(minimum: float, **options: float) -> None:
    """Raises ValueError, naming the option, unless each is at least `minimum` and at most MAX_OPTION."""
    for name, value in options.items():
        if not minimum <= value <= MAX_OPTION:
            raise ValueError(f"{name} must be at least {minimum} and at most {MAX_OPTION:g}, not {value}")
