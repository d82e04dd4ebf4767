"""Numbers as a person reads them."""


def seconds(value: float | None) -> str:
    """Three digits and a unit: 950 µs, 12.3 ms, 4.56 s, 1,234 s."""
    if value is None:
        return "–"
    if value == 0:
        return "0 s"
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if value * factor < 999.5:
            return f"{three_digits(value * factor)} {unit}"
    return f"{three_digits(value)} s"


def three_digits(value: float) -> str:
    """1.23, 12.3, 123, 12,345."""
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def count(value: float | None) -> str:
    """1,234."""
    return "–" if value is None else f"{value:,.0f}"


def percent(value: float | None) -> str:
    """12.3 %."""
    return "–" if value is None else f"{100 * value:.1f} %"


def plain(value: float | None) -> str:
    """Three digits."""
    return "–" if value is None else three_digits(value)


def size(value: float | None) -> str:
    """Bytes in powers of 1,024."""
    if value is None:
        return "–"
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if value >= 1024**power:
            return f"{three_digits(value / 1024**power)} {unit}"
    return f"{value:,.0f} B"
