"""Random machines and traffic, the same for the same seed: the ranges under which the bounds were measured."""

import random
from collections import abc
from dataclasses import dataclass, replace

from tests.fairness.ledger import Key
from tests.fairness.machine import Machine
from tests.fairness.runs import Arrival, Command, Flood, Source

WEIGHTS = (0.5, 1.0, 1.0, 2.0, 4.0)  # powers of two keep the counters exact


@dataclass(frozen=True, slots=True)
class RandomRun:
    machine: Machine
    traffic: tuple[Source, ...]


def random_run(seed: int, num_steps: int, *, num_classes: int = 1, edits_weights: bool = False) -> RandomRun:
    """One to three organizations with two to nine tenants on a small machine; both modes, all delays."""
    rng = random.Random(seed)
    machine = _random_machine(rng)
    max_tokens = machine.num_device_blocks * machine.block_size
    leaves = _random_leaves(rng, num_classes)
    keys = sorted({leaf[:depth] for leaf in leaves for depth in range(2, len(leaf) + 1)})
    weight_by_path = {key[1:]: rng.choice(WEIGHTS) for key in keys}
    sources: list[Source] = []
    for leaf in leaves:
        sources += _random_demand(rng, leaf, num_steps, max_tokens)
    sources += _random_commands(rng, num_steps)
    if edits_weights:
        for _ in range(20):
            sources.append(Command(rng.randrange(num_steps), "weight", rng.choice(keys), rng.choice(WEIGHTS)))
    weights = {key: weight_by_path[key[1:]] for key in keys}
    return RandomRun(replace(machine, weights=weights), tuple(sources))


def _random_machine(rng: random.Random) -> Machine:
    machine = Machine(
        max_num_batched_tokens=rng.choice([16, 32, 32, 64]),
        num_device_blocks=rng.choice([12, 40, 96]),
        num_host_blocks=rng.choice([0, 20, 1000]),
        copy_out_steps=rng.randint(0, 6),
        copy_in_steps=rng.randint(0, 5),
        min_resident_steps=rng.choice([0, 4, 20]),
        is_strict=rng.random() < 0.5,
        partial_swap=rng.random() < 0.5,
    )
    return replace(machine, threshold=rng.choice([0.125, 0.5, 1, 4]) * machine.max_step_cost)


def _random_leaves(rng: random.Random, num_classes: int) -> list[Key]:
    num_organizations, num_tenants = rng.randint(1, 3), rng.randint(2, 9)
    return [(f"class{i % num_classes}", f"o{i % num_organizations}", f"t{i}") for i in range(num_tenants)]


def _random_demand(rng: random.Random, leaf: Key, num_steps: int, max_tokens: int) -> abc.Iterator[Source]:
    kind = rng.choice(["flood", "flood", "on_off", "trickle", "burst", "huge"])
    output = min(rng.choice([1, 2, 8, 40, 100]), max_tokens // 2)
    prompt = max(1, min(rng.choice([1, 3, 16, 60, max_tokens // 5]), max_tokens - output))
    if kind == "flood":
        yield Flood(leaf, prompt, output, rng.randint(1, 6), rng.choice([0, 0, num_steps // 3]))
    elif kind == "on_off":
        start = rng.randrange(50)
        while start < num_steps:
            end = start + rng.randrange(1, 120)
            yield Flood(leaf, prompt, output, rng.randint(1, 4), start, end)
            start = end + rng.randrange(1, 120)
    elif kind == "huge":
        for start in range(rng.randrange(100), num_steps, rng.randrange(50, 300)):
            yield Arrival(start, leaf, int(rng.uniform(0.3, 0.9) * max_tokens), 2)
    else:
        gap, size = (rng.randrange(2, 60), 1) if kind == "trickle" else (rng.randrange(60, 300), rng.randrange(3, 9))
        for start in range(rng.randrange(50), num_steps, gap):
            for _ in range(size):
                yield Arrival(start, leaf, prompt, output)


def _random_commands(rng: random.Random, num_steps: int) -> abc.Iterator[Source]:
    for _ in range(rng.choice([0, 0, 5, 40])):
        yield Command(rng.randrange(num_steps), "cancel", rng.randrange(1000), while_open=rng.random() < 0.5)
    for _ in range(rng.choice([0, 0, 3, 20])):
        start, target, is_open = rng.randrange(num_steps), rng.randrange(1000), rng.random() < 0.5
        yield Command(start, "hold", target, while_open=is_open)
        yield Command(start + rng.randrange(1, 60), "let_go", target)
