"""What `fair` guarantees, on the real scheduler under random traffic: every bound, in every step, in both modes.

The observer believes nobody: flags, counters and gaps are its own. A run on a few seeds takes seconds; the long sweep
has the sizes under which the bounds were measured.
"""

import copy
import random
from collections import abc
from dataclasses import replace

import pytest

from engine.core.policy import SequenceView
from engine.plugins import load_scheduling_policy
from tests.fairness.counterexamples import F, G, H
from tests.fairness.ledger import Key
from tests.fairness.machine import Machine
from tests.fairness.observer import Observer, Report
from tests.fairness.random_runs import RandomRun, random_run
from tests.fairness.runs import Arrival, Command, Flood, Source, drive
from tests.fairness.scheduler_world import SchedulerWorld, fair_options, leaf_of


def check(world: SchedulerWorld, traffic: abc.Sequence[Source], num_steps: int) -> Report:
    """Play the traffic; nothing may be breached, and what was charged must be what was computed."""
    report = drive(world, traffic, Observer(world.bounds()), num_steps)
    assert report.breaches == {}
    assert world.accounts == []
    assert world.num_deadlocks == 0
    return report


def play(run: RandomRun, num_steps: int, **options: object) -> Report:
    world = SchedulerWorld(run.machine, options=options, checks_invariants=True)
    return check(world, run.traffic, num_steps)


@pytest.mark.parametrize("seed", range(8))
def test_random_traffic_keeps_every_bound(seed: int):
    play(random_run(seed, 300), 300, pace_prefill=seed % 2 == 0)


@pytest.mark.parametrize("seed", range(100, 103))
def test_classes_keep_every_bound_each_in_its_own_tree(seed: int):
    play(random_run(seed, 250, num_classes=2), 250)


@pytest.mark.parametrize("seed", range(200, 203))
def test_weights_that_are_edited_live_keep_every_bound(seed: int):
    play(random_run(seed, 250, edits_weights=True), 250)


@pytest.mark.parametrize("seed", range(300, 302))
def test_a_threshold_that_the_policy_chooses_keeps_every_bound(seed: int):
    run = random_run(seed, 250)
    play(replace(run, machine=replace(run.machine, threshold=0)), 250)


class Shuffled:
    """`fair`, but any flow that need not yield may come next, and any of its requests: the seed decides."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self._fair = load_scheduling_policy("fair", fair_options(machine))
        self._random = random.Random(seed)
        self._yielding: abc.Set[object] = frozenset()
        self._waiting: dict[int, SequenceView] = {}

    def __getattr__(self, name: str) -> object:
        return getattr(self._fair, name)

    def on_arrive(self, seq, now):
        self._waiting[seq.arrival_index] = seq
        self._fair.on_arrive(seq, now)

    def on_leave(self, seq, reason, now):
        self._waiting.pop(seq.arrival_index, None)
        self._fair.on_leave(seq, reason, now)

    def begin(self, start):
        terms = self._fair.begin(start)
        self._yielding = terms.yielding
        return terms

    def select(self, passed):
        heads: dict[object, SequenceView] = {}
        for index in sorted(self._waiting):
            heads.setdefault(self._waiting[index].flow, self._waiting[index])
        able = [seq for flow, seq in heads.items() if seq not in passed and flow not in self._yielding]
        rest = [seq for flow, seq in heads.items() if seq not in passed and flow in self._yielding]
        return self._random.choice(able or rest) if able or rest else None

    def key(self, seq):
        return (float(seq.flow in self._yielding), self._random.random())


@pytest.mark.parametrize("seed", range(400, 404))
def test_the_order_among_those_that_need_not_yield_does_not_matter(seed: int):
    run = random_run(seed, 250)
    world = SchedulerWorld(run.machine, Shuffled(run.machine, seed))  # type: ignore[arg-type] # it has all methods
    report = drive(world, run.traffic, Observer(world.bounds()), 250)
    assert set(report.breaches) <= {"idle"}  # progress was proved for the policy's own order


def test_a_policy_says_what_its_bounds_are():
    machine = Machine(threshold=100.0, weights={F: 0.25, F[:2]: 2.0})
    world = SchedulerWorld(machine)
    world.add("f", F, 16, 4)
    world.plan()
    (flow,) = world.scheduler.lifecycle.flows.all()
    assert world.policy.threshold(flow) == (100.0, 100.0)
    assert world.policy.step_bound(flow) == (machine.max_step_cost / 2, machine.max_step_cost * 4)
    assert world.policy.gap_bound() == 0.0  # it has nobody to be ahead of


def test_the_bound_of_a_gap_is_that_of_the_lightest_of_the_siblings():
    machine = Machine(threshold=100.0, weights={F: 0.25})
    world = SchedulerWorld(machine)
    world.add("f", F, 16, 4)
    world.add("g", (*F[:-1], "sibling"), 16, 4)
    world.plan()

    assert world.scheduler.stats().gap_bound == 2 * (100.0 + machine.max_step_cost * 4)


@pytest.mark.parametrize("seed", range(500, 504))
def test_lending_displaces_nobody(seed: int):
    """From one state both modes give those that need not yield the same chunks."""
    run = random_run(seed, 250)
    num_compared = 0

    class Comparing(SchedulerWorld):
        def plan(self):
            nonlocal num_compared
            lending, keeping = copy.deepcopy(self), copy.deepcopy(self)
            lending.policy.rewrites.append(lambda terms: replace(terms, lends=True))
            keeping.policy.rewrites.append(lambda terms: replace(terms, lends=False))
            if len(SchedulerWorld.plan(lending)) == len(SchedulerWorld.plan(keeping)) == 1:
                assert chunks_of_entitled(lending) == chunks_of_entitled(keeping)
                num_compared += 1
            return super().plan()

    world = Comparing(run.machine)
    drive(world, run.traffic, Observer(world.bounds(), compare_counters=False), 60)
    assert num_compared > 30


def chunks_of_entitled(world: SchedulerWorld) -> list[tuple[str, int]]:
    yielding = world.policy.terms.yielding
    seqs = world.scheduler.open_sequences
    return sorted((seq.key.generation_id, seq.num_scheduled_tokens) for seq in seqs if seq.flow not in yielding)


def test_shares_follow_weights_level_by_level_when_all_are_backlogged():
    """T2, strict: each tenant's work against its share of all work."""
    weights = {
        F[:2]: 1.0,
        ("default", "p"): 2.0,
        F: 1.0,
        G: 4.0,
        ("default", "p", "x"): 1.0,
        ("default", "p", "y"): 1.0,
    }
    machine = Machine(num_device_blocks=200, threshold=96.0, weights=weights)
    leaves = [key for key in weights if len(key) == 3]
    world = SchedulerWorld(machine)
    report = check(world, [Flood(leaf, 24, 24, 8) for leaf in leaves], 1500)
    total = sum(report.served[leaf] * weights[leaf] for leaf in leaves)

    def share(key: Key) -> float:
        return weights[key] / sum(weight for other, weight in weights.items() if other[:-1] == key[:-1])

    def spread(key: Key) -> float:
        siblings = [other for other in weights if other[:-1] == key[:-1] and other != key]
        steps = [machine.max_step_cost / weights[other] for other in siblings]
        return 2 * machine.threshold + machine.max_step_cost / weights[key] + max(steps)

    for leaf in leaves:
        organization = leaf[:2]
        served = report.served[leaf] * weights[leaf]
        bound = weights[leaf] * (1 - share(leaf)) * spread(leaf)
        bound += share(leaf) * weights[organization] * (1 - share(organization)) * spread(organization)
        assert abs(served - share(leaf) * share(organization) * total) <= bound


def test_an_idle_tenant_gains_no_credit():
    machine = Machine(num_device_blocks=200)
    world = SchedulerWorld(machine)
    observer = Observer(world.bounds())
    drive(world, [Arrival(0, G, 8, 2), Flood(F, 24, 24, 8)], observer, 600)
    before = dict(observer.report.served)
    report = drive(world, [Flood(F, 24, 24, 8), Flood(G, 24, 24, 8)], observer, 200)
    gained = {leaf: report.served[leaf] - before[leaf] for leaf in (F, G)}
    assert report.breaches == {}
    assert abs(gained[F] - gained[G]) <= machine.threshold + machine.max_step_cost


_ENTRY = Machine(
    num_host_blocks=1000,
    threshold=4 * 48,
    min_resident_steps=4,
    copy_out_steps=2,
    copy_in_steps=1,
    max_preemptions=10**6,
)


@pytest.mark.parametrize("machine", [_ENTRY, replace(_ENTRY, threshold=50 * 48, copy_out_steps=6, copy_in_steps=5)])
@pytest.mark.parametrize("partial_swap", [False, True])
def test_a_lone_entrant_is_soon_served_however_large_the_threshold(machine: Machine, partial_swap: bool):
    world = SchedulerWorld(replace(machine, partial_swap=partial_swap))
    traffic = [Flood(F, 16, 400, 8), *(Arrival(step, G, 100, 8) for step in range(104, 1200, 60))]
    report = check(world, traffic, 1200)
    limit = machine.min_resident_steps + machine.copy_in_steps + machine.copy_out_steps + 3
    assert report.max_dispatch_steps[G] <= limit


def test_an_entrant_is_soon_served_behind_a_head_that_cannot_seize():
    machine = Machine(num_device_blocks=40, num_host_blocks=1000, threshold=2400, max_preemptions=10**6)
    world = SchedulerWorld(machine)
    traffic = [
        Flood(F, 8, 200, 6),
        Arrival(100, H, 200, 10),
        *(Arrival(step, G, 40, 4) for step in range(104, 900, 40)),
    ]
    assert check(world, traffic, 900).max_dispatch_steps[G] <= 4


@pytest.mark.parametrize("is_strict", [True, False])
def test_counters_and_flags_survive_a_restart(is_strict: bool):
    """A new scheduler with the restored policy goes on under the same observer: it must find the same counters."""
    run = random_run(7, 400)
    machine = replace(run.machine, is_strict=is_strict, num_host_blocks=0)
    old = SchedulerWorld(machine)
    observer = Observer(old.bounds())
    drive(old, run.traffic, observer, 150)
    new = SchedulerWorld(machine)
    new.policy.restore(old.policy.snapshot())  # type: ignore[operator] # the policy's own
    for seq in old.scheduler.lifecycle.by_generation.values():
        new.add(seq.key.generation_id, leaf_of(seq.flow), seq.num_prompt_tokens, seq.request.max_output_tokens)
    rest = [source for source in run.traffic if isinstance(source, Flood)]
    assert drive(new, rest, observer, 100).breaches == {}


def test_a_policy_that_is_switched_to_itself_goes_on_where_it_was():
    run = random_run(8, 300)
    world = SchedulerWorld(run.machine)
    observer = Observer(world.bounds())
    drive(world, run.traffic, observer, 150)
    successor = SchedulerWorld(run.machine).policy
    world.scheduler.set_scheduling_policy(successor, world.now)  # type: ignore[arg-type] # it has the policy's methods
    world.policy = successor
    floods = [source for source in run.traffic if isinstance(source, Flood)]
    assert drive(world, floods, observer, 150).breaches == {}


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("first_seed", range(1000, 1096, 8))
def test_much_random_traffic_keeps_every_bound(first_seed: int):
    for seed in range(first_seed, first_seed + 8):
        run = random_run(seed, 1200, num_classes=1 + seed % 4 // 3, edits_weights=seed % 5 == 0)
        play(run, 1200, pace_prefill=seed % 2 == 0)


def _mutated(rng: random.Random, traffic: tuple[Source, ...]) -> tuple[Source, ...]:
    """The traffic with one source more, fewer, or changed."""
    sources = list(traffic)
    leaf = rng.choice([F, G, H])
    start = rng.randrange(300)
    fresh: Source = rng.choice(
        [
            Flood(leaf, rng.choice([1, 8, 60, 200]), rng.choice([1, 8, 60]), rng.randint(1, 8), start, start + 200),
            Arrival(start, leaf, rng.choice([1, 60, 300]), rng.choice([1, 40])),
            Command(start, "cancel", rng.randrange(10)),
        ]
    )
    if sources and rng.random() < 0.5:
        sources[rng.randrange(len(sources))] = fresh
    else:
        sources.append(fresh)
    return tuple(sources[-30:])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("is_strict", [True, False])
def test_an_adversary_that_climbs_towards_the_bound_never_passes_it(is_strict: bool):
    rng = random.Random(5)
    machine = Machine(is_strict=is_strict, num_device_blocks=60, num_host_blocks=100, copy_out_steps=1)
    best: tuple[float, tuple[Source, ...]] = (0.0, ())
    for _ in range(400):
        traffic = _mutated(rng, best[1])
        report = check(SchedulerWorld(machine), traffic, 400)
        if report.gap >= best[0]:
            best = report.gap, traffic
    assert best[0] > 0.6
