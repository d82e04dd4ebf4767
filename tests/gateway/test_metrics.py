"""What Prometheus reads: figures by name, few tenants by name, counters that never fall, and on loopback only."""

import asyncio
from dataclasses import replace
from uuid import uuid4

import pytest
from prometheus_client.parser import text_string_to_metric_families

from evenflow.engine.v1 import engine_pb2
from gateway import metric_names as names
from gateway.errors import SettingsError
from gateway.meters import Meters
from gateway.metrics import Metrics
from gateway.metrics_endpoint import MetricsEndpoint
from gateway.settings import load_settings
from gateway.status import EngineReport, LedgerReport, PoolReport, QuotaReport, SystemReport
from gateway.store.snapshot import EMPTY_SNAPSHOT
from tests.admin.service import engine_stats, tenant_stats
from tests.gateway.test_settings import GOOD
from tests.gateway.world import Tenant, World

ENGINE = "unix:/e.sock"


def report(*tenants, **figures) -> SystemReport:
    engine = EngineReport(ENGINE, "m", engine_stats(tenants, **figures))
    return SystemReport(1.0, is_store_reachable=True, policy_revision=7, engines=(engine,), num_live_requests=2)


def samples(metrics: Metrics, told: SystemReport) -> dict[tuple[str, ...], float]:
    """Value by name and label values, the engine left out."""
    return {
        (sample.name, *(value for label, value in sorted(sample.labels.items()) if label != "engine")): sample.value
        for family in metrics.families(told, EMPTY_SNAPSHOT)
        for sample in family.samples
    }


async def read(address: str, path: str = "/metrics", host: str = "localhost", method: str = "GET") -> tuple[str, str]:
    """Status line and body."""
    name, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(name, int(port))
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return head.split("\r\n")[0], body


def test_figures_of_gateway_and_tenant_have_their_names():
    found = samples(Metrics(), report(tenant_stats(("o", "a"))))

    assert found[names.METRIC_POLICY_REVISION,] == 7
    assert found[names.METRIC_ENGINE_UP,] == 1
    assert found["evenflow_tenant_tokens_total", "recomputed", "o/a"] == 5
    assert found["evenflow_tenant_tokens_total", "borrowed", "o/a"] == 17
    assert found["evenflow_tenant_swaps_total", "out", "o/a"] == 4
    assert found["evenflow_tenant_copied_bytes_total", "o/a"] == 4096
    assert found["evenflow_tenant_wait_seconds_total", "o/a"] == 1.5
    assert found[names.METRIC_TENANT_LEAD, "o/a"] == 31
    assert found[names.METRIC_TENANT_SHARE, "o/a"] == 0.25


def test_usage_that_was_lost_is_counted():
    lost = LedgerReport(0, 0, 0.0, num_duplicates=0, num_dropped=2, num_damaged_bytes=99)

    found = samples(Metrics(), replace(report(), ledger=lost))

    assert found["evenflow_ledger_dropped_events_total",] == 2
    assert found["evenflow_ledger_spool_damaged_bytes_total",] == 99


def test_what_is_left_of_limits_is_told_of_tenants_that_have_a_label():
    meters = Meters(max_tenants=1)
    meters.admitted("admitted", "", "acme/search")
    left = {
        ("acme/search", "team", "requests"): 0.25,
        ("acme", "organization", "requests"): 0.5,
        ("b/x", "team", "requests"): 0.75,
        ("c/x", "team", "requests"): 0.125,
    }

    found = samples(Metrics(meters), replace(report(), quota=QuotaReport({}, {}, 3, left)))

    remaining = {key[1:]: value for key, value in found.items() if key[0] == names.METRIC_QUOTA_REMAINING}
    assert remaining == {
        ("requests", "team", "acme/search"): 0.25,
        ("requests", "organization", "acme"): 0.5,
        ("requests", "team", "other"): 0.125,
    }
    assert found[names.METRIC_QUOTA_RESERVATIONS,] == 3


def test_pool_and_staleness_are_told():
    told = replace(report(), pool=PoolReport(2, 1, 10), staleness_s=float("inf"), num_dropped_spans=4)

    found = samples(Metrics(), told)

    assert (found[names.METRIC_DB_POOL, "in_use"], found[names.METRIC_DB_POOL, "idle"]) == (2, 1)
    assert found[names.METRIC_DB_POOL_SIZE,] == 10
    assert found[names.METRIC_POLICY_STALENESS,] == float("inf")
    assert found["evenflow_dropped_spans_total",] == 4


def test_engine_that_does_not_answer_is_down_and_has_no_figures():
    gone = SystemReport(
        1.0, is_store_reachable=False, policy_revision=0, engines=(EngineReport(ENGINE, "", None),), num_live_requests=0
    )

    found = samples(Metrics(), gone)

    assert found[names.METRIC_ENGINE_UP,] == 0
    assert not [key for key in found if key[0] == names.METRIC_TENANT_SHARE]


def test_tenants_beyond_the_limit_are_one_label():
    tenants = [tenant_stats(("o", f"t{index}"), served_work=float(index), num_pauses=1) for index in range(10)]

    found = samples(Metrics(max_tenants=3), report(*tenants))

    pauses = {key[1]: value for key, value in found.items() if key[0] == "evenflow_tenant_pauses_total"}
    assert pauses == {"o/t9": 1, "o/t8": 1, "o/t7": 1, "other": 7}
    assert found[names.METRIC_TENANT_REQUESTS, "running", "other"] == 7
    assert found[names.METRIC_TENANT_LEAD, "other"] == 31


def test_no_counter_falls_when_tenants_change_places():
    metrics = Metrics(max_tenants=1)
    seen: dict[tuple[str, ...], float] = {}
    for work_a, work_b in ((10.0, 5.0), (11.0, 50.0), (90.0, 51.0), (91.0, 52.0)):
        found = samples(
            metrics,
            report(
                tenant_stats(("o", "a"), served_work=work_a, num_pauses=int(work_a)),
                tenant_stats(("o", "b"), served_work=work_b, num_pauses=int(work_b)),
            ),
        )
        other = found["evenflow_tenant_pauses_total", "other"]
        assert other >= seen.get(("other",), 0)
        seen["other",] = other
    # a: 10 alone, 1 among the others, 79 and 1 alone again; b: 5 and 45 alone meanwhile.
    assert other == 5 + 1 + 1 + 1
    assert found["evenflow_tenant_pauses_total", "o/a"] == 80


def test_counters_go_on_where_the_engine_began_anew():
    metrics = Metrics()
    for num_pauses in (100, 4):
        found = samples(metrics, report(tenant_stats(("o", "a"), num_pauses=num_pauses)))

    assert found["evenflow_tenant_pauses_total", "o/a"] == 104


async def test_page_of_a_gateway_names_its_tenants(world: World, tenant: Tenant) -> None:
    path = [engine_pb2.WeightedNode(id=str(node), weight=1.0) for node in (tenant.organization_id, tenant.team_id)]
    world.engine.tenants = [
        engine_pb2.TenantStats(path=path, output_tokens=12, served_work=24),
        engine_pb2.TenantStats(path=[engine_pb2.WeightedNode(id=str(uuid4()), weight=1.0)], output_tokens=1),
    ]
    address = (await world.live.report()).metrics_address

    status, page = await read(address)

    assert status == "HTTP/1.1 200 OK"
    families = {family.name: family for family in text_string_to_metric_families(page)}
    output = {
        sample.labels["tenant"]: sample.value
        for sample in families["evenflow_tenant_tokens"].samples
        if sample.labels["kind"] == "output"
    }
    assert output["acme/search"] == 12
    assert len(output) == 2


async def test_page_is_served_while_the_engine_is_away(world: World) -> None:
    await world.engine.stop()

    status, page = await read((await world.live.report()).metrics_address)

    assert status == "HTTP/1.1 200 OK"
    assert f'evenflow_engine_up{{engine="{world.engine.address}"}} 0.0' in page


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"path": "/metrics?x=1", "host": "127.0.0.1:9"}, "HTTP/1.1 200 OK"),
        ({"host": "[::1]:80"}, "HTTP/1.1 200 OK"),
        ({"path": "/admin"}, "HTTP/1.1 404 Not Found"),
        ({"method": "POST"}, "HTTP/1.1 405 Method Not Allowed"),
        ({"host": "evil.example"}, "HTTP/1.1 403 Forbidden"),
        ({"host": ""}, "HTTP/1.1 403 Forbidden"),
        ({"host": "127.0.0.1.evil.example"}, "HTTP/1.1 403 Forbidden"),
    ],
)
async def test_only_the_page_is_served_and_only_to_this_machine(asked: dict, status: str) -> None:
    async def collect():
        return []

    endpoint = MetricsEndpoint(("127.0.0.1", 0), collect)
    await endpoint.start()
    try:
        assert (await read(endpoint.address, **asked))[0] == status
    finally:
        await endpoint.close()


async def test_client_that_says_nonsense_or_nothing_stops_nobody(world: World) -> None:
    address = (await world.live.report()).metrics_address
    host, _, port = address.rpartition(":")
    silent = await asyncio.open_connection(host, int(port))
    loud = await asyncio.open_connection(host, int(port))
    loud[1].write(b"x" * 100_000)

    assert (await read(address))[0] == "HTTP/1.1 200 OK"
    for _, writer in (silent, loud):
        writer.close()


async def test_endpoint_can_be_off(closed_world: World) -> None:
    closed_world.options["metrics_listen"] = "off"
    await closed_world.open()

    assert (await closed_world.live.report()).metrics_address == ""


async def test_address_in_use_is_named() -> None:
    async def collect():
        return []

    endpoint = MetricsEndpoint(("127.0.0.1", 0), collect)
    await endpoint.start()
    port = int(endpoint.address.rpartition(":")[2])
    try:
        with pytest.raises(SettingsError, match=f"^metrics_listen: cannot listen on 127.0.0.1:{port}"):
            MetricsEndpoint(("127.0.0.1", port), collect)
    finally:
        await endpoint.close()


@pytest.mark.parametrize("value", ["0.0.0.0:9100", "example.org:1", "[::]:1", "9100", "127.0.0.1:x"])
def test_address_that_others_could_reach_is_refused(value: str) -> None:
    with pytest.raises(SettingsError, match=r"^--metrics-listen: "):
        load_settings(**GOOD, metrics_listen=value)
