"""The live side of `fairness`: two backlogged tenants on the default model, policy `fair`."""

import random

from engine.commands.simulation.live import LiveEngine, LiveSize
from engine.core.types import Nanos
from engine.decision_log import PolicyChoice
from engine.sim.cost_lines import CPU, CostLine
from engine.sim.run import Setup
from engine.sim.samples import Samples, windowed_gap
from engine.sim.traffic.row import NANOS_PER_S, Arrival

PROMPT, OUTPUT = 128, 128
WINDOW_S = 30.0
END_S = 150.0
NUM_REQUESTS = 400  # of each tenant; two cores serve half of them in this time at best


def live_gap() -> float:
    """The largest windowed gap over the fair share, after one window that is not counted."""
    live = LiveEngine(LiveSize(None, 16, 256, 512, 512).load())
    calibrator = live.backend.calibrator
    line = CPU if calibrator is None else CostLine("measured", calibrator.prices)
    setup = Setup(live.config, line, PolicyChoice("fair", {}), PolicyChoice("over_served", {}))
    weights = {"o/a": 1.0, "o/b": 1.0}
    tenants = [tenant for tenant in weights for _ in range(NUM_REQUESTS)]
    random.Random(0).shuffle(tenants)
    samples = Samples()
    arrivals = [Arrival(0, tenant, PROMPT, OUTPUT) for tenant in tenants]
    live.run(setup, arrivals, samples, until=Nanos(round(END_S * NANOS_PER_S)))
    return windowed_gap(samples, weights, WINDOW_S, (WINDOW_S, END_S))
