"""S0, the calibration that loads are told in: C, the work per second of 16 identical requests that are always there."""

from dataclasses import replace
from math import ceil

from engine.core.types import Nanos
from engine.decision_log import PolicyChoice
from engine.sim.run import Setup, simulate
from engine.sim.samples import Samples
from engine.sim.traffic.row import NANOS_PER_S, Arrival
from engine.sim.work import work_of

CONCURRENCY = 16
NUM_ROUNDS = 8  # requests that each of the 16 places serves; the first and the last round are not measured


def capacity(setup: Setup, num_prompt_tokens: int, num_output_tokens: int) -> float:
    """C of one engine in cost units per second, with requests of these lengths.

    As many as the pool holds at once, if that is fewer than 16.
    """
    config = setup.config
    num_blocks = ceil((num_prompt_tokens + num_output_tokens) / config.block_size)
    places = max(1, min(CONCURRENCY, config.max_num_seqs, config.num_device_blocks // num_blocks))
    alone = replace(
        setup,
        config=replace(config, max_num_seqs=places),
        scheduling=PolicyChoice("fcfs", {}),
        preemption=PolicyChoice("never", {}),
        num_engines=1,
    )
    arrivals = [Arrival(0, "calibration/all", num_prompt_tokens, num_output_tokens)] * (places * NUM_ROUNDS)
    samples = Samples()
    simulate(alone, arrivals, samples)
    ends = sorted(sample.ended_at or 0 for sample in samples.by_id.values())
    since, until = ends[places - 1], ends[-places - 1]
    served = samples.served["calibration/all"]
    work = served.until(Nanos(until)) - served.until(Nanos(since))
    if until <= since:  # the whole run is one round
        return work_of(num_prompt_tokens, num_output_tokens) * len(arrivals) * NANOS_PER_S / ends[-1]
    return work * NANOS_PER_S / (until - since)
