"""Samples of one prompt, whatever else happens to them: each says what it says alone, and nobody computes too much."""

import itertools
import random
from collections import abc
from dataclasses import dataclass

import pytest

from engine.core.config import PreemptionChoice
from engine.core.costs import Prices, StepCosts
from engine.core.policy import Service
from engine.core.types import FinishReason, PriorityClass, Request, SamplingParams
from tests.builders import Driver, make_request, make_scheduler
from tests.core.stories import check_accounts, check_nothing_is_left, check_story
from tests.core.traffic import make_policy, make_victims

PREEMPTIONS = {
    "recompute": {"preemption_mode": PreemptionChoice.RECOMPUTE, "num_host_blocks": 0},
    "swap": {"preemption_mode": PreemptionChoice.SWAP, "num_host_blocks": 40, "partial_swap": False},
    "part": {"preemption_mode": PreemptionChoice.SWAP, "num_host_blocks": 9, "partial_swap": True},
    "auto": {"preemption_mode": PreemptionChoice.AUTO, "num_host_blocks": 20},
}


@dataclass(frozen=True)
class Setting:
    """One combination of what an engine can do."""

    caches: bool
    num_drafts: int
    chunk: int
    preemption: str
    num_samples: int
    block_size: int
    policy: str

    def __str__(self) -> str:
        cache = "cache" if self.caches else "plain"
        sizes = f"drafts{self.num_drafts}-chunk{self.chunk}-n{self.num_samples}-block{self.block_size}"
        return f"{cache}-{sizes}-{self.preemption}-{self.policy}"


EVERY = [
    Setting(*each)
    for each in itertools.product(
        (True, False), (0, 3), (1, 3, 40), PREEMPTIONS, (2, 4), (1, 3, 4), ("fcfs", "fair", "fair, tight", "srpt")
    )
]
SOME = random.Random(11).sample([setting for setting in EVERY if setting.caches], 14) + random.Random(12).sample(
    EVERY, 4
)


def traffic(setting: Setting, source: random.Random) -> abc.Iterator[tuple[int, list[Request]]]:
    """Groups of samples with the step before which each comes; their prompts begin alike and part anywhere."""
    text, step = [source.randrange(4) for _ in range(40)], 0
    for group in range(6):
        step += source.randrange(3)
        prompt = [*text[: source.randrange(1, 18)], *[source.randrange(4) for _ in range(source.randrange(3))]]
        salt, tenant = source.choice([b"", b"public"]), source.choice("ab")
        yield (
            step,
            [
                make_request(
                    f"{group}.{number}",
                    tenant=tenant,
                    prompt=prompt,
                    cache_salt=salt,
                    max_output_tokens=source.randrange(1, 12),
                    sampling=SamplingParams(seed=number),
                    speculates=source.random() < 0.8,
                )
                for number in range(setting.num_samples)
            ],
        )


class Play:
    """All requests of one setting, and commands that come between."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.source, self.charged, self.requests = random.Random(seed), list[Service](), list[Request]()
        scheduler = make_scheduler(
            make_policy(setting.policy, self.charged),
            make_victims(self.source.choice(["latest_arrival", "over_served", "arbitrary"])),
            block_size=setting.block_size,
            num_device_blocks=-(-36 // setting.block_size),
            max_num_seqs=5,
            max_num_batched_tokens=5 + setting.chunk,
            num_draft_tokens=setting.num_drafts,
            min_draft_acceptance=0.0,
            enable_prefix_caching=setting.caches,
            growth_reserve_tokens=0,
            min_resident_steps=self.source.choice([0, 2]),
            **PREEMPTIONS[setting.preemption],
        )
        self.driver = Driver(scheduler, max_copy_delay=self.source.choice([0, 2, 5]), seed=seed)

    def run(self, setting: Setting) -> None:
        for step, requests in traffic(setting, self.source):
            while len(self.driver.plans) < step and self.driver.scheduler.has_unfinished:
                self.driver.step()
                self.disturb()
            self.driver.add(*requests)
            self.requests += requests
        for _ in range(12):
            self.driver.step()
            self.disturb()
        for request in self.requests:
            self.driver.scheduler.set_reader_blocked(request.generation_id, blocked=False, now=self.driver.now)
        self.driver.run(3_000)

    def disturb(self) -> None:
        """Now and then one of those that are unfinished ends, is held, fails or changes its class."""
        scheduler, names = self.driver.scheduler, [*self.driver.scheduler.lifecycle.by_generation]
        if not names or self.source.random() < 0.7:
            return
        name = self.source.choice(names)
        match self.source.randrange(5):
            case 0:
                self.driver.abort(name, FinishReason.CANCELLED)
            case 1:
                scheduler.set_reader_blocked(name, blocked=True, now=self.driver.now)
            case 2:
                scheduler.set_class(name, PriorityClass("batch", 5), self.driver.now)
            case 3:
                self.driver.runner.errors[name] = "numbers went wrong"
            case 4:
                price = self.source.choice([1e3, 1e6])
                prices = Prices(StepCosts(base_ns=3e6, prefill_token_ns=price), are_measured=self.source.random() < 0.5)
                scheduler.calibrate(prices, self.driver.now)


def check(setting: Setting, seed: int) -> Driver:
    """Outputs are right, which the runner checks slot by slot, accounts add up, and nothing is left."""
    play = Play(setting, seed)
    play.run(setting)
    for request in play.requests:
        check_story(play.driver, request)
    check_accounts(play.driver, play.charged)
    assert setting.caches or not any(plan.block_copies for plan in play.driver.plans)
    check_nothing_is_left(play.driver)
    return play.driver


@pytest.mark.parametrize("setting", SOME, ids=str)
def test_samples_say_what_they_say_alone(setting: Setting):
    check(setting, seed=SOME.index(setting))


def test_blocks_are_copied_in_these_settings():
    """The sweep is about what it says that it is about."""
    settings = [setting for setting in SOME if setting.caches and setting.block_size > 1 and setting.num_samples > 2]
    drivers = [check(setting, seed) for seed, setting in enumerate(settings[:3])]

    assert sum(len(plan.block_copies) for driver in drivers for plan in driver.plans) > 10
    assert sum(driver.scheduler.stats().num_preemptions for driver in drivers) > 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("policy", ["fcfs", "fair", "fair, tight", "srpt"])
def test_samples_say_what_they_say_alone_in_every_setting(policy: str):
    for number, setting in enumerate(each for each in EVERY if each.policy == policy):
        check(setting, 1_000 + number)
