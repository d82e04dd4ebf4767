"""Several engines share a stream of traffic; tenants have the weights and classes of their records."""

import gc
import tracemalloc
from collections import Counter

from engine.core.scheduler import Scheduler
from engine.core.types import FinishReason, Nanos, PriorityClass
from engine.plugins import load_preemption_policy, load_scheduling_policy
from engine.sim.requests import Tenancy
from engine.sim.samples import Samples
from engine.sim.service_meter import meter
from engine.sim.traffic.row import NANOS_PER_S, Arrival
from engine.sim.world import Outage, Replica, World
from tests.sim.simulations import LINE, make_config, random_traffic


def make_world(num_engines: int, samples: object, tenancy: Tenancy = Tenancy(), **fields: object) -> World:  # noqa: B008
    replicas = []
    for _ in range(num_engines):
        policy = meter(load_scheduling_policy("fair", {}))
        replicas.append(
            Replica(Scheduler(make_config(**fields), policy, load_preemption_policy("over_served", {})), policy)
        )
    return World(replicas, LINE, samples, tenancy)


class Admissions(Samples):
    def __init__(self) -> None:
        super().__init__()
        self.engines: Counter[int] = Counter()

    def on_admitted(self, request_id: str, now: int, engine: int = 0) -> None:
        super().on_admitted(request_id, now, engine)
        self.engines[engine] += 1


def test_arrivals_go_where_the_fewest_tokens_are_outstanding():
    records = Admissions()

    make_world(3, records).run([Arrival(0, "o/a", 50, 50), Arrival(0, "o/a", 5, 5), Arrival(0, "o/a", 5, 5)] * 1)

    assert records.engines == {0: 1, 1: 1, 2: 1}


def test_several_engines_are_faster_than_one():
    traffic = random_traffic(1, 80, rate=30.0, cancels=False)
    ends = {num_engines: make_world(num_engines, Samples()).run(traffic) for num_engines in (1, 4)}

    assert ends[4] < 0.5 * ends[1]


def test_a_run_can_end_before_its_requests_do():
    samples = Samples()

    ended_at = make_world(1, samples).run(random_traffic(1, 60, rate=30.0), until=Nanos(NANOS_PER_S))

    assert ended_at == NANOS_PER_S
    assert any(sample.ended_at is None for sample in samples.by_id.values())
    assert all(sample.arrival.at_ns < NANOS_PER_S for sample in samples.by_id.values())


def test_weights_and_classes_come_from_the_records():
    tenancy = Tenancy({"o/b": 3.0}, {"gold": PriorityClass("gold", rank=-1)})
    samples = Samples()
    world = make_world(1, samples, tenancy, max_num_seqs=4)
    world.run(
        [Arrival(0, f"o/{tenant}", 20, 20, "gold") for _ in range(200) for tenant in "ab"], until=Nanos(5 * NANOS_PER_S)
    )

    stats = {tenant.tenant_id: tenant for tenant in world.engines[0].scheduler.stats().tenants}
    assert [node.weight for node in stats["o/b"].path] == [1.0, 3.0]
    assert samples.work("o/b", 1.0, 5.0) > 2 * samples.work("o/a", 1.0, 5.0)


class Nothing:
    """Records that keep nothing."""

    def __getattr__(self, name: str):
        return lambda *args, **kwargs: None


def test_memory_follows_the_unfinished_requests_not_the_traffic():
    def traffic(num_requests: int):
        for index in range(num_requests):
            yield Arrival(index * NANOS_PER_S, f"o/t{index % 7}", 8, 2)

    def growth(num_requests: int) -> int:
        world = make_world(2, Nothing())
        gc.collect()
        tracemalloc.start()
        world.run(traffic(num_requests))
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return size

    # The smallest thing that were kept for each of them would be three times as much.
    assert growth(1500) - growth(300) < 1200 * 16


def test_an_engine_that_drains_finishes_what_it_has_and_takes_nothing_new():
    records = Admissions()
    world = make_world(2, records)
    world.plan_outage(Outage(0, Nanos(NANOS_PER_S), Nanos(3 * NANOS_PER_S), is_kill=False))

    world.run([Arrival(at * NANOS_PER_S // 2, "o/a", 8, 30) for at in range(10)])

    assert all(sample.reason is FinishReason.LENGTH for sample in records.by_id.values())
    during = [sample for sample in records.by_id.values() if NANOS_PER_S <= sample.arrival.at_ns < 3 * NANOS_PER_S]
    assert len(during) == 4
    assert records.engines[1] >= len(during)


def test_a_killed_engine_loses_streams_and_nothing_that_had_not_begun():
    samples = Samples()
    world = make_world(2, samples, max_num_seqs=2)
    world.plan_outage(Outage(0, Nanos(NANOS_PER_S), Nanos(2 * NANOS_PER_S), is_kill=True))

    world.run([Arrival(0, "o/a", 8, 200) for _ in range(12)])

    reasons = Counter(sample.reason for sample in samples.by_id.values())
    assert reasons == {FinishReason.ERROR: 2, FinishReason.LENGTH: 10}
    lost = [sample for sample in samples.by_id.values() if sample.reason is FinishReason.ERROR]
    assert all(sample.ended_at == NANOS_PER_S and sample.first_token_at for sample in lost)


def test_without_any_engine_arrivals_are_refused():
    samples = Samples()
    world = make_world(1, samples)
    world.plan_outage(Outage(0, Nanos(1), Nanos(NANOS_PER_S), is_kill=True))

    world.run([Arrival(2, "o/a", 8, 2), Arrival(2 * NANOS_PER_S, "o/a", 8, 2)])

    assert list(samples.refusals) == ["r0"]
    assert samples.by_id["r1"].reason is FinishReason.LENGTH
