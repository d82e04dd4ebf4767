"""What meters have measured, as samples."""

from gateway.meters import Meters


def samples(meters: Meters) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in meters.families()
        for sample in family.samples
    }


def value(meters: Meters, name: str, **labels: str) -> float:
    """The sum of the samples with these labels."""
    wanted = set(labels.items())
    return sum(number for (found, has), number in samples(meters).items() if found == name and wanted <= set(has))
