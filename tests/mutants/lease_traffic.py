"""Fixed traffic of quota leases, and what came of it in one number: replicas that crash, are cut off, and come back."""

import hashlib
import random

from gateway.quota_terms import BudgetWindow, Calendar, Dimension, Limit, Mode
from tests.leases.replicas import NODE, NS_PER_S, World, tokens

NUM_STEPS = 1500
WINDOW = BudgetWindow(Calendar.MONTH, 0, 10**18)


def lease_decisions() -> str:
    """The number of the lease book as it is, over limits of every kind and mode."""
    rng, world, digest = random.Random(1), World(), hashlib.blake2b(digest_size=16)
    for _ in range(3):
        world.add_replica()
    for step in range(NUM_STEPS):
        replica = rng.choice(world.replicas)
        if rng.random() < 0.02:
            replica.is_cut = not replica.is_cut
        if rng.random() < 0.002:
            world.crash(replica)
            replica = world.add_replica()
        limits = tuple(rng.sample(_limits(rng), 3))
        world.reserve(replica, limits, rng.choice((1, 5, 25)))
        if world.reserved and rng.random() < 0.7:
            world.settle(rng.choice(sorted(world.reserved)), rng.randrange(25))
        if world.reserved and rng.random() < 0.2:
            world.extend(rng.choice(sorted(world.reserved)), 5)
        world.run(rng.choice((0, NS_PER_S // 100, NS_PER_S // 10, NS_PER_S)))
        if step % 10 == 0:
            digest.update(repr([each.book.remaining(limits[0], world.clock(each)) for each in world.replicas]).encode())
    digest.update(repr([(name, _spelled(result)) for name, result in sorted(world.results.items())]).encode())
    digest.update(repr([each.book.counters for each in world.replicas]).encode())
    digest.update(repr(sorted(world.centre.rows.items())).encode())
    return digest.hexdigest()


def _spelled(result: object) -> str:
    return type(result).__name__ if isinstance(result, Exception) else repr(result)


def _limits(rng: random.Random) -> list[Limit]:
    amount, is_strict = rng.choice((50, 51)), rng.random() < 0.1
    return [
        tokens(amount, 200, model="a", max_overdraft=500),
        tokens(20, 60, model="b", strict=is_strict),
        tokens(5, 100, model="c", mode=Mode.SHADOW),
        tokens(30, 90, model="d", max_overdraft=100, fails_closed=True),
        Limit(NODE, Dimension.CONCURRENCY, 12),
        Limit(NODE, Dimension.BUDGET, 20_000, window=WINDOW, max_overdraft=100),
    ]
