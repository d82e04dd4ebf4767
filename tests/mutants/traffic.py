"""Fixed traffic, and what came of it in one number: two schedulers with equal numbers made the same plans.

On the way everything is checked that can be: invariants, the bounds of `fair`, and who was charged what.
"""

import hashlib
import random
from dataclasses import replace

from engine.core.costs import Prices, StepCosts
from engine.core.policy import SchedulingPolicy
from engine.core.types import PriorityClass
from engine.plugins import load_scheduling_policy
from tests.fairness.observer import Observer
from tests.fairness.random_runs import random_run
from tests.fairness.runs import drive
from tests.fairness.scheduler_world import SchedulerWorld

NUM_STEPS = 120
OTHERS = ("fcfs", "vtc", "priority")
CLASSES = {"class0": PriorityClass("class0", 0, 0.25), "class1": PriorityClass("class1", 1, 0.25)}
STEP = StepCosts(2e5, 1e5, 10.0, 3e5, 20.0, 2e4)
PRICES = Prices(STEP, 3e5, 2e5, 1e5, are_measured=True)


class Digested(SchedulerWorld):
    """A world that remembers its plans."""

    digest = hashlib.blake2b(digest_size=16)
    changes_classes = False

    def plan(self):
        planned = super().plan()
        self.digest.update(repr(self._open).encode())
        return planned

    def commit(self):
        services = super().commit()
        if self.changes_classes and self._num_steps % 17 == 16:
            self._change_class()
        return services

    def _change_class(self) -> None:
        """The request that arrived first goes to the other class."""
        seq = next(iter(self.scheduler.lifecycle.by_generation.values()), None)
        if seq is not None:
            other = "class1" if seq.priority_class.name == "class0" else "class0"
            self.scheduler.set_class(seq.key.generation_id, CLASSES[other], self.now)


def plans() -> str:
    """The number of the scheduler as it is. AssertionError, or whatever else goes wrong, if it breaks a rule."""
    Digested.digest = hashlib.blake2b(digest_size=16)
    _play_priced()
    for seed in range(10):
        run = random_run(2000 + seed, NUM_STEPS, num_classes=1 + seed % 3 // 2, edits_weights=seed % 4 == 0)
        machine = replace(run.machine, threshold=0) if seed % 5 == 0 else run.machine
        config = {"growth_reserve_tokens": 16, "max_prefill_share": 0.5} if seed % 2 else {}
        world = Digested(machine, config=config, options={"pace_prefill": seed % 2 == 0}, checks_invariants=True)
        report = drive(world, run.traffic, Observer(world.bounds()), NUM_STEPS)
        assert not report.breaches, report.breaches
        assert not world.accounts, world.accounts[0]
        Digested.digest.update(repr(world.scheduler.stats()).encode())
    for seed, name in enumerate(OTHERS):
        run = random_run(3000 + seed, NUM_STEPS)
        _play_other(load_scheduling_policy(name, {}), run, seed)
    return Digested.digest.hexdigest()


def _play_priced() -> None:
    """Measured prices, classes with a share each, requests that change class, a busy link and a limit on steps."""
    for seed, options in enumerate(({}, {"class_ageing_ms": 20}, {"mode": "strict"})):
        run = random_run(2100 + seed, NUM_STEPS, num_classes=2)
        machine = replace(run.machine, threshold=0, num_host_blocks=60, is_strict=options.get("mode") == "strict")
        config = {"link_share": 0.5, "target_step_ms": 4.0, "max_prefill_share": 0.25}
        world = Digested(machine, config=config, options={"theta": 0} | options, checks_invariants=True)
        world.classes = CLASSES
        world.changes_classes = True
        world.scheduler.calibrate(PRICES, world.now)
        drive(world, run.traffic, Observer(world.bounds(), compare_counters=False), NUM_STEPS)
        assert not world.accounts, world.accounts[0]
        Digested.digest.update(repr(world.scheduler.stats()).encode())


def _play_other(policy: SchedulingPolicy, run, seed: int) -> None:
    """A policy that counts otherwise is only digested."""
    world = Digested(run.machine, policy, config={"admission_interval": 1 + seed}, checks_invariants=True)
    world.leads = dict  # type: ignore[method-assign,assignment] # no leads to compare
    bounds = run.machine.bounds()
    drive(world, run.traffic, Observer(replace(bounds, is_strict=False), compare_counters=False), NUM_STEPS)
    Digested.digest.update(repr(world.scheduler.stats()).encode())


def quota_decisions() -> str:
    """The number of the quota book as it is: reservations, extensions and ends under limits of every kind."""
    from gateway.quota import QuotaBook
    from gateway.quota_budgets import window_at
    from gateway.quota_terms import Calendar, Charge, CostWeights, Dimension, Limit, Mode, ReservationEndedError

    rng, book, digest = random.Random(1), QuotaBook(), hashlib.blake2b(digest_size=16)
    now_ns, live = 0, []

    def limit(node: str, dimension: Dimension) -> Limit:
        amount, mode = rng.choice([3, 7, 60]), rng.choice(list(Mode))
        weights = CostWeights(rng.choice([1, 3]), 1, rng.choice([0, 2, 5]))
        if dimension is Dimension.CONCURRENCY:
            return Limit(node, dimension, amount, mode=mode)
        if dimension is Dimension.BUDGET:
            window = window_at(rng.choice(list(Calendar)), "Europe/Berlin", now_ns * 10**6)
            return Limit(node, dimension, 8 * amount, window=window, weights=weights, mode=mode)
        return Limit(node, dimension, amount, 10**9, rng.choice([1, 5, 20]), weights=weights, mode=mode)

    for serial in range(3000):
        now_ns += rng.choice([0, 1, 1000, 10**6, 10**8])
        limits = [limit(node, kind) for node in ("org", "team") for kind in rng.sample(list(Dimension), 3)]
        num_input = rng.randrange(6)
        charge = Charge(1, num_input, rng.randrange(6), rng.randint(0, num_input))
        digest.update(repr(book.reserve(f"r{serial}", limits, charge, now_ns)).encode())
        live.append(f"r{serial}")
        if rng.random() < 0.4:
            try:
                digest.update(repr(book.extend(rng.choice(live), Charge(0, output_tokens=3), now_ns)).encode())
            except ReservationEndedError as ended:
                digest.update(repr(ended).encode())
        if rng.random() < 0.6:
            name = live.pop(rng.randrange(len(live)))
            actual = Charge(rng.randrange(2), rng.randrange(9), rng.randrange(9))
            was_live = book.settle(name, actual, now_ns) if rng.random() < 0.8 else book.release(name, now_ns)
            digest.update(repr(was_live).encode())
        digest.update(repr([book.remaining(each, now_ns) for each in limits]).encode())
        digest.update(repr((book.num_buckets, book.num_reservations)).encode())
    return digest.hexdigest()
