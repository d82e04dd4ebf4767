"""Drivers whose runner proposes as many drafts as it may, all of them right or all of them wrong."""

import random

from engine.core.config import SchedulerConfig
from engine.core.costs import Prices, StepCosts
from engine.core.sequence import Sequence
from tests.builders import Driver, make_scheduler
from tests.fakes import ReferenceRunner

# One token more in a step of one sequence adds a tenth, whatever the context.
CHEAP_TOKENS = Prices(StepCosts(base_ns=900_000.0, decode_ns=100_000.0), are_measured=True)
DEAR_TOKENS = Prices(StepCosts(base_ns=0.0, decode_ns=1_000_000.0), are_measured=True)


class Most(random.Random):
    """Proposes all that it may."""

    def randint(self, a: int, b: int) -> int:
        return b


def drafting_runner(config: SchedulerConfig, hits: float, **options: int) -> ReferenceRunner:
    runner = ReferenceRunner(config.block_size, draft_hits=hits, **options)
    runner._draft_random = Most(1)
    return runner


def drafting_driver(scheduling="fcfs", *, hits: float, **fields: object) -> Driver:
    """Up to four drafts for each sequence, unless `fields` say otherwise."""
    scheduler = make_scheduler(scheduling, **({"num_draft_tokens": 4} | fields))
    return Driver(scheduler, drafting_runner(scheduler.config, hits))


def drafts_of(driver: Driver) -> list[tuple[int, ...]]:
    """The drafts that each plan so far carried, plans without any left out."""
    return [tuple(filter(None, plan.num_drafts)) for plan in driver.plans if plan.num_drafts]


def seq_of(driver: Driver, generation_id: str) -> Sequence:
    return driver.scheduler.lifecycle.by_generation[generation_id]
