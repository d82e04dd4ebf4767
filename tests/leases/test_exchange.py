"""`quota_exchange` in a real Postgres does what the plain Python beside this file does; turns do not collide."""

import asyncio
import json
import random
from uuid import UUID

import asyncpg  # type: ignore[import-untyped]  # it ships no types

from gateway.leases.terms import LEASE_NS
from gateway.store.db import Database
from gateway.store.quota_buckets import Ask, Batch, PostgresQuotaStore, decode, encode, forget_idle_buckets
from tests.leases.centre import NS_PER_S, Centre

NODES = ("organizations/a", "organizations/a/teams/b", "organizations/ä")
DIMENSIONS = ("BUDGET", "CONCURRENCY", "INPUT_TOKENS", "REQUESTS")
REPLICAS = tuple(UUID(int=number) for number in range(3))


def random_ask(rng: random.Random, node: str, dimension: str) -> Ask:
    calendar = ("MONTH", 1_790_000_000 * NS_PER_S) if dimension == "BUDGET" else ("", 0)
    limit, kept = rng.choice((7, 60, 60)), rng.choice((0, 0, 1, 5))
    want, leave = rng.choice((0, 3, 50)), rng.choice((0, 4, 30))
    if dimension in ("BUDGET", "CONCURRENCY"):
        settled = rng.choice((0, 4)) if dimension == "BUDGET" else 0
        return Ask((node, dimension, "", *calendar), limit, kept=kept, want=want, leave=leave, settled=settled)
    return Ask(
        (node, dimension, "", *calendar),
        limit,
        period_ns=rng.choice((NS_PER_S // 10, NS_PER_S)),
        burst=rng.choice((10, 20)),
        kept=kept,
        want=want,
        leave=leave,
        refund=rng.choice((0, 0, 2, 9)),
        debt=rng.choice((0, 0, 4)),
        debt_age_ns=rng.choice((0, NS_PER_S)),
    )


def random_batch(rng: random.Random, number: int) -> Batch:
    if rng.random() < 0.2:
        return Batch(rng.choice(REPLICAS), number + 1, LEASE_NS, is_question=True)
    keys = sorted({(rng.choice(NODES), rng.choice(DIMENSIONS)) for _ in range(rng.randrange(5))})
    asks = tuple(random_ask(rng, *key) for key in keys)
    claims = tuple(
        tuple((index, rng.choice((1, 2, 6, 11))) for index in range(len(asks)) if rng.random() < 0.7)
        for _ in range(rng.randrange(4))
    )
    return Batch(rng.choice(REPLICAS), number, LEASE_NS, asks, claims, is_last=rng.random() < 0.05)


async def test_turns_do_what_the_plain_python_does(database: Database) -> None:
    rng = random.Random(7)
    connection = await database.connect()
    centre = Centre()
    for turn in range(400):
        batch = random_batch(rng, number=2 * (turn - rng.choice((0, 0, 0, 4))))  # late ones have no effect
        raw = await connection.fetchval("SELECT quota_exchange($1)", encode(batch))
        now_ns = json.loads(raw).get("now_ns", 0)
        assert decode(raw) == centre.exchange(batch, now_ns), f"turn {turn}: {batch}"
        if rng.random() < 0.1:
            await move_clock(connection, centre, rng.choice((-5, -1, 1, 4)) * NS_PER_S)
    await connection.close()


async def move_clock(connection: asyncpg.Connection, centre: Centre, step_ns: int) -> None:
    """What the rows remember is `step_ns` later: as if the server's clock had been set back by that much."""
    for row in centre.rows.values():
        row.tat += step_ns * row.ticks_per_ns
        row.clock_ns += step_ns
        row.holders = {name: (amount, since + step_ns) for name, (amount, since) in row.holders.items()}
    await connection.execute(
        "UPDATE quota_bucket SET tat = tat + $1::bigint * ticks_per_ns, clock_ns = clock_ns + $1::bigint, holders ="
        " (SELECT coalesce(jsonb_object_agg(key, jsonb_build_array(value->0, (value->>1)::bigint + $1::bigint)), '{}')"
        " FROM jsonb_each(holders))",
        step_ns,
    )


async def test_turns_on_the_same_rows_neither_deadlock_nor_lose_a_charge(database: Database) -> None:
    """Each of 8 replicas takes 25 times 3 of two new limits and 1 of another one, in batches over shared rows."""
    stores = [PostgresQuotaStore(database) for _ in range(8)]

    async def take(replica: int, store: PostgresQuotaStore) -> None:
        rng = random.Random(replica)
        for number in range(1, 26):
            dimensions = sorted(rng.sample(("INPUT_TOKENS", "OUTPUT_TOKENS", "REQUESTS", "TOTAL_TOKENS"), 2))
            asks = tuple(Ask(("organizations/a", name, "", "", 0), 1, NS_PER_S, 10_000) for name in dimensions)
            everyone = Ask(("organizations/z", "REQUESTS", "", "", 0), 1, NS_PER_S, 10_000)
            claims = (((0, 3), (1, 3)), ((2, 1),))
            answer = await store.exchange(Batch(UUID(int=replica), number, LEASE_NS, (*asks, everyone), claims))
            assert answer.verdicts == (True, True)

    await asyncio.gather(*(take(replica, store) for replica, store in enumerate(stores)))
    asks = (Ask(("organizations/z", "REQUESTS", "", "", 0), 1, NS_PER_S, 10_000),)
    answer = await stores[0].exchange(Batch(UUID(int=99), 1, LEASE_NS, asks))

    taken = answer.grants[0].lead_ticks / NS_PER_S
    assert 200 - 30 < taken <= 200  # one comes back each second
    assert answer.num_replicas == 9
    for store in stores:
        await store.close()


async def test_rows_that_say_nothing_any_more_are_forgotten(database: Database) -> None:
    store = PostgresQuotaStore(database)
    busy = Ask(("organizations/a", "REQUESTS", "", "", 0), 1, NS_PER_S, 1_000_000)
    idle = Ask(("organizations/b", "REQUESTS", "", "", 0), 1, NS_PER_S, 1_000_000)
    await store.exchange(Batch(REPLICAS[0], 1, LEASE_NS, (busy, idle), (((0, 500_000),), ((1, 1),))))
    connection = await database.connect()
    await connection.execute("UPDATE quota_bucket SET clock_ns = clock_ns - 200000::bigint * 1000000000")
    await connection.execute("UPDATE quota_bucket SET tat = 0 WHERE node = 'organizations/b'")

    assert await forget_idle_buckets(database) == 1
    assert await connection.fetchval("SELECT node FROM quota_bucket") == "organizations/a"
    await connection.close()
    await store.close()


async def test_a_last_turn_whose_answer_is_lost_counts_once(database: Database) -> None:
    """The connection breaks after the commit, and the store sends the same turn on a new one."""
    store, key = PostgresQuotaStore(database), ("organizations/a", "REQUESTS", "", "", 0)
    await store.exchange(Batch(REPLICAS[0], 1, LEASE_NS, (Ask(key, 1, NS_PER_S, 100),), (((0, 50),),)))
    last = Batch(REPLICAS[0], 2, LEASE_NS, (Ask(key, 1, NS_PER_S, 100, refund=20),), is_last=True)
    taken = await store.exchange(last)
    again = await store.exchange(last)
    seen = await store.exchange(Batch(REPLICAS[1], 1, LEASE_NS, (Ask(key, 1, NS_PER_S, 100),)))

    assert (taken.is_new, again.is_new) == (True, False)
    assert 28 < seen.grants[0].lead_ticks / NS_PER_S <= 30
    assert seen.num_replicas == 1
    connection = await database.connect()
    await forget_idle_buckets(database)
    assert await connection.fetchval("SELECT count(*) FROM replica") == 1
    await connection.close()
    await store.close()


async def test_a_question_is_answered_the_same_however_often_its_answer_is_lost(database: Database) -> None:
    store, key = PostgresQuotaStore(database), ("organizations/a", "BUDGET", "", "MONTH", 1_790_000_000 * NS_PER_S)
    told = Batch(REPLICAS[0], 2, LEASE_NS, (Ask(key, 100, settled=5),))
    untold = Batch(REPLICAS[0], 4, LEASE_NS, (Ask(key, 100, settled=7),))
    await store.exchange(told)

    answers = [await store.exchange(Batch(REPLICAS[0], 3, LEASE_NS, is_question=True)) for _ in range(2)]
    fenced = [await store.exchange(Batch(REPLICAS[0], 5, LEASE_NS, is_question=True)) for _ in range(2)]
    late = await store.exchange(untold)
    again = await store.exchange(Batch(REPLICAS[0], 6, LEASE_NS, (Ask(key, 100, settled=7),)))

    assert [answer.is_new for answer in answers] == [False, False]
    assert [answer.is_new for answer in fenced] == [True, True]
    assert not late.is_new
    assert again.grants[0].room == 100 - 5 - 7
    await store.close()
