"""Labels are few, whoever asks: series stay flat, no counter falls, and no key or made-up name is one."""

import random

from gateway.meters import Ended, Meters
from gateway.metrics import Metrics
from gateway.status import EngineReport, SystemReport
from gateway.store.snapshot import EMPTY_SNAPSHOT
from gateway.tenant_labels import TenantLabels
from tests.admin.service import engine_stats, tenant_stats
from tests.telemetry.measured import samples, value

NUM_NAMES = 10_000


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def ended(tenant: str, **fields) -> Ended:
    some = {
        "operation": "chat",
        "model": "m",
        "priority_class": "standard",
        "outcome": "length",
        "reason": "",
        "is_scheduled": True,
        "arrived_s": 10.0,
        "first_token_s": 10.5,
        "ended_s": 12.5,
        "queue_s": 0.25,
        "tokens": {"input": 5, "output": 21},
        "num_output_tokens": 21,
        "num_reader_holds": 1,
    }
    return Ended(tenant=tenant, **(some | fields))


def test_ten_thousand_tenants_models_and_classes_leave_series_flat():
    meters, draw = Meters(max_tenants=20), random.Random(7)
    sizes = []
    for number in range(NUM_NAMES):
        tenant = f"o{draw.randrange(NUM_NAMES)}/t{draw.randrange(NUM_NAMES)}"
        meters.admitted("admitted", "", tenant)
        meters.ended(ended(tenant, model=f"m{number}", priority_class=f"c{number}"))
        if number in (NUM_NAMES // 2, NUM_NAMES - 1):
            sizes.append(len(samples(meters)))

    assert sizes[0] == sizes[1] < 4_000
    assert value(meters, "evenflow_requests_total") == NUM_NAMES
    assert value(meters, "evenflow_admissions_total", tenant="other") == NUM_NAMES - 20


def test_ten_thousand_tenants_of_an_engine_leave_series_flat():
    metrics, draw, sizes = Metrics(max_tenants=20), random.Random(8), []
    for round_number in range(3):
        tenants = tuple(
            tenant_stats(("o", f"t{draw.randrange(10**9)}"), served_work=draw.random()) for _ in range(NUM_NAMES)
        )
        report = SystemReport(
            1.0,
            is_store_reachable=True,
            policy_revision=1,
            engines=(EngineReport("unix:/e", "m", engine_stats(tenants)),),
            num_live_requests=round_number,
        )
        sizes.append(sum(len(family.samples) for family in metrics.families(report, EMPTY_SNAPSHOT)))

    assert sizes[0] == sizes[1] == sizes[2] < 600


def test_a_tenant_keeps_its_label_while_it_is_active_and_loses_it_to_another_when_idle():
    clock = Clock()
    gone: list[str] = []
    labels = TenantLabels(max_tenants=2, idle_s=100.0, on_gone=gone.append, clock=clock)

    assert [labels.label(name) for name in ("a", "b", "c")] == ["a", "b", "other"]
    clock.now_s = 99.0
    assert labels.label("a") == "a"
    clock.now_s = 100.0
    assert labels.label("c") == "c"
    assert gone == ["b"]
    assert [labels.label(name) for name in ("a", "b", "c")] == ["a", "other", "c"]


def test_what_a_tenant_counted_goes_with_its_label_and_never_makes_another_series_fall_or_jump():
    clock = Clock()
    meters = Meters(max_tenants=1, clock=clock)
    meters.ended(ended("a"))
    meters.ended(ended("b"))
    other_before = value(meters, "evenflow_tokens_total", tenant="other", kind="output")

    clock.now_s = 4_000.0
    meters.ended(ended("c"))

    found = samples(meters)
    assert not [labels for _, labels in found if ("tenant", "a") in labels]
    assert other_before == value(meters, "evenflow_tokens_total", tenant="other", kind="output") == 21
    assert value(meters, "evenflow_tokens_total", tenant="c", kind="output") == 21


def test_times_of_a_generation_are_those_of_the_conventions():
    meters = Meters()
    meters.ended(ended("a/b"))
    meters.ended(ended("a/b", first_token_s=None, outcome="error", reason="ENGINE_LOST", queue_s=None))
    meters.ended(ended("a/b", num_output_tokens=1))

    assert value(meters, "gen_ai_server_request_duration_seconds_sum", error_type="") == 5.0
    assert value(meters, "gen_ai_server_request_duration_seconds_count", error_type="ENGINE_LOST") == 1
    assert value(meters, "gen_ai_server_time_to_first_token_seconds_count") == 2
    assert value(meters, "gen_ai_server_time_to_first_token_seconds_bucket", le="0.5") == 2
    # 2 s for the 20 tokens after the first; of a single token there is no pace.
    assert value(meters, "gen_ai_server_time_per_output_token_seconds_count") == 1
    assert value(meters, "gen_ai_server_time_per_output_token_seconds_sum") == 0.1
    assert value(meters, "evenflow_stream_slow_reader_total") == 3


def test_buckets_are_those_of_the_conventions():
    meters = Meters()
    meters.rpc_ended("p.S/M", "OK", 0.004)
    meters.ended(ended("a/b"))

    def bounds(name: str) -> list[float]:
        found = {dict(labels)["le"] for found, labels in samples(meters) if found == f"{name}_bucket"}
        return sorted(map(float, found))[:-1]

    assert bounds("gen_ai_server_request_duration_seconds") == [0.01 * 2**power for power in range(14)]
    assert bounds("gen_ai_server_time_to_first_token_seconds")[:16] == [
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
    ]
    assert bounds("gen_ai_server_time_per_output_token_seconds") == [
        *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
    ]
    assert bounds("rpc_server_call_duration_seconds") == [
        *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
    ]


def test_stage_is_measured_also_where_it_refuses():
    meters = Meters()
    try:
        with meters.stage("admit"):
            raise ValueError
    except ValueError:
        pass

    assert value(meters, "evenflow_overhead_seconds_count", stage="admit") == 1


def test_no_series_tells_when_it_began():
    meters = Meters()
    meters.authenticated("hit")

    assert not [name for name, _ in samples(meters) if name.endswith("_created")]
