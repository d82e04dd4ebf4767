"""What a run was like: a recorder that the simulator feeds, and the frozen outcome that it gives."""

from engine.sim.metrics.options import RecorderOptions
from engine.sim.metrics.outcome import (
    Fairness,
    Goodput,
    GroupOutcome,
    Latencies,
    Outcome,
    Percentiles,
    Series,
    Timeline,
    Totals,
)
from engine.sim.metrics.recorder import Recorder

__all__ = [
    "Fairness",
    "Goodput",
    "GroupOutcome",
    "Latencies",
    "Outcome",
    "Percentiles",
    "Recorder",
    "RecorderOptions",
    "Series",
    "Timeline",
    "Totals",
]
