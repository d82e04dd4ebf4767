"""The engine's page: what it did is on it, by name; it is read on loopback only, and is there while a model loads."""

import asyncio
import selectors
import threading
import types
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from engine.core.stats import TenantStats
from engine.core.types import PathNode, TenantId
from engine.errors import ListenError, SettingsError
from engine.server import metrics_page
from engine.server.engine_server import EngineServer
from engine.server.fairness_window import FairnessWindow
from engine.server.listener import TcpAddress
from engine.server.metrics import saturation
from engine.server.metrics_endpoint import MetricsEndpoint
from engine.server.metrics_page import EnginePage
from engine.server.serve import load_policies
from engine.settings import read_settings
from engine.step_figures import Histogram
from evenflow.engine.v1 import engine_pb2 as pb
from tests.engine.conftest import channel, runner, server, stub  # noqa: F401 - fixtures
from tests.engine.wire import generate, start


def read(address: str, host: str = "localhost") -> str:
    request = urllib.request.Request(f"http://{address}/metrics", headers={"host": host})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode()


async def page_of(address: str) -> dict[tuple[str, ...], float]:
    """Value by name and label values."""
    text = await asyncio.to_thread(read, address)
    return {
        (sample.name, *(label for _, label in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_page_tells_what_the_engine_did(server, stub):  # noqa: F811
    await generate(stub, start("g", max_output_tokens=5)).to_end()

    page = await page_of(server.metrics_address)
    stats = await stub.GetStats(pb.GetStatsRequest())

    assert stats.metrics_address == server.metrics_address
    assert page["evenflow_engine_ready",] == 1
    assert page["evenflow_engine_info", "fake", "over_served", "fair"] == 1
    assert page["evenflow_engine_tokens_total", "output"] == 5
    assert page["evenflow_engine_draft_tokens_total", "accepted"] == 0
    assert page["evenflow_engine_finished_requests_total",] == 1
    assert page["evenflow_engine_step_seconds_count",] == stats.num_steps
    assert page["evenflow_engine_step_sequences_sum",] == stats.num_steps
    assert page["evenflow_engine_blocks", "device", "free"] == 64
    assert page["evenflow_engine_preemptions_total", "swap", "kv_pressure"] == 0
    assert page["evenflow_engine_jain_index",] == 1
    assert page["evenflow_engine_saturation",] == 0


async def test_steps_without_memory_and_who_was_sent_back_are_counted(server, runner, stub):  # noqa: F811
    runner.errors = [MemoryError("no room")]

    call = await generate(stub, start("g", max_output_tokens=5)).to_end()
    page = await page_of(server.metrics_address)
    stats = await stub.GetStats(pb.GetStatsRequest())

    assert len(call.token_ids) == 5
    assert (stats.lost_steps, stats.requeues) == (1, 1)
    assert page["evenflow_engine_lost_steps_total",] == 1
    assert page["evenflow_engine_requeues_total",] == 1
    assert page["evenflow_engine_preemptions_total", "recompute", "kv_pressure"] == 1


async def test_page_is_there_while_the_model_is_loaded(tmp_path):
    settings = read_settings({"listen": f"unix:{tmp_path}/e.sock"})
    server = EngineServer(settings, load_policies(settings), None)  # noqa: F811
    await server.listen()
    try:
        assert await page_of(server.metrics_address) == {("evenflow_engine_ready",): 0}
    finally:
        await server.close()


async def test_there_need_be_no_page(tmp_path):
    settings = read_settings({"listen": f"unix:{tmp_path}/e.sock", "metrics_listen": "off"})
    server = EngineServer(settings, load_policies(settings), None)  # noqa: F811
    await server.listen()
    try:
        assert server.metrics_address == ""
    finally:
        await server.close()


@pytest.mark.parametrize("value", ["0.0.0.0:1", "example.org:1", "9464", "127.0.0.1:x", "127.0.0.1:70000"])
def test_address_that_others_could_reach_is_refused(value: str):
    with pytest.raises(SettingsError, match=r"^metrics_listen "):
        read_settings({"listen": "unix:/e.sock", "metrics_listen": value})


@pytest.mark.parametrize(("host", "is_read"), [("127.0.0.1:9", True), ("[::1]:80", True), ("evil.example", False)])
def test_page_is_read_under_a_loopback_name_only(host: str, is_read: bool):
    endpoint = MetricsEndpoint(TcpAddress("127.0.0.1", 0), list)
    endpoint.start()
    try:
        if is_read:
            assert read(endpoint.address, host) == ""
        else:
            with pytest.raises(urllib.error.HTTPError, match="403"):
                read(endpoint.address, host)
        with pytest.raises(ListenError, match=endpoint.address):
            MetricsEndpoint(TcpAddress("127.0.0.1", int(endpoint.address.rpartition(":")[2])), list)
    finally:
        endpoint.close()


def test_the_page_waits_for_scrapes_and_for_its_end_and_never_for_the_clock(monkeypatch: pytest.MonkeyPatch):
    select, waits = selectors.DefaultSelector.select, []

    def noted(selector: selectors.BaseSelector, timeout: float | None = None) -> list:
        if threading.current_thread().name == "metrics":
            waits.append(timeout)
        return select(selector, timeout)

    monkeypatch.setattr(selectors.DefaultSelector, "select", noted)
    endpoint = MetricsEndpoint(TcpAddress("127.0.0.1", 0), list)
    endpoint.start()
    pages = [read(endpoint.address) for _ in range(2)]
    endpoint.close()

    assert (pages, waits) == ([""] * 2, [None] * 3)
    with pytest.raises(urllib.error.URLError):
        read(endpoint.address)


def test_a_value_is_counted_in_the_first_bucket_that_holds_it():
    histogram = Histogram((1.0, 10.0))
    for number in (0.5, 1.0, 1.5, 10.0, 11.0):
        histogram.add(number)

    told = histogram.told()

    assert told.counts == (2, 2, 1)
    assert told.total == 24.0


def tenant(
    name: str, num_output: int, weight: float = 1.0, organization: str = "o", num_waiting: int = 1, num_paused: int = 0
) -> TenantStats:
    numbers = dict.fromkeys(TenantStats.__dataclass_fields__, 0)
    path = (PathNode(organization, 1.0), PathNode(name, weight))
    own = {"tenant_id": TenantId(name), "path": path, "standing": (0.0, 0.0)}
    requests = {"num_waiting": num_waiting, "num_paused": num_paused}
    return TenantStats(**numbers | own | requests | {"num_output_tokens": num_output})


def index_of(*windows: tuple[TenantStats, ...]) -> float:
    window = FairnessWindow(window_s=10.0)
    for number, tenants in enumerate(windows):
        told = window.observe(tenants, number * 10.0)
    return told.jain_index


def test_evenness_counts_what_was_served_in_the_window_by_weight():
    begin = (tenant("a", 1000), tenant("b", 0))

    assert index_of(begin, (tenant("a", 1010), tenant("b", 10))) == pytest.approx(1.0)
    assert index_of(begin, (tenant("a", 1010), tenant("b", 0))) == pytest.approx(0.5)
    weighted = (tenant("a", 0, 3.0), tenant("b", 0))
    assert index_of(weighted, (tenant("a", 30, 3.0), tenant("b", 10))) == pytest.approx(1.0)


def test_who_asked_for_nothing_does_not_count_as_badly_served():
    begin = (tenant("a", 0), tenant("b", 0, num_waiting=0), tenant("c", 0))
    end = (tenant("a", 10), tenant("b", 0, num_waiting=0), tenant("c", 10))

    assert index_of(begin, end) == pytest.approx(1.0)
    assert index_of((tenant("a", 0),), (tenant("a", 10),)) == 1.0


def test_weight_of_an_idle_sibling_is_not_missed_by_those_that_waited():
    def tenants(num_output: int) -> tuple[TenantStats, ...]:
        idle = tenant("a2", 0, organization="a", num_waiting=0)
        return tenant("a1", num_output, organization="a"), idle, tenant("b1", num_output, organization="b")

    assert index_of(tenants(0), tenants(1000)) == pytest.approx(1.0)


def test_tenant_whose_requests_are_paused_is_compared_too():
    paused = {"num_waiting": 0, "num_paused": 1}

    assert index_of((tenant("a", 0, **paused), tenant("b", 0)), (tenant("a", 10, **paused), tenant("b", 0))) == 0.5


async def test_scrape_that_gets_no_figures_in_time_says_so_and_leaves_nothing_behind(monkeypatch):
    monkeypatch.setattr(metrics_page, "ANSWER_TIMEOUT_S", 0.5)
    ended = asyncio.Event()

    async def never():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    page = EnginePage(("127.0.0.1", 0), never)
    page.start()
    try:
        with capture_logs() as logs:
            assert await page_of(page.address) == {("evenflow_engine_ready",): 0}
        async with asyncio.timeout(5):
            await ended.wait()
    finally:
        await page.close()
    assert [each["event"] for each in logs] == ["the engine has no figures"]


@pytest.mark.parametrize(
    ("num_running", "num_free", "wait_ns", "expected"),
    [
        (0, 100, None, 0.0),
        (4, 100, 0, 0.5),  # of eight rows
        (1, 60, 0, 0.5),  # 40 of the 80 blocks that an engine should use
        (8, 0, 0, 1.25),
        (8, 50, 10_000_000_000, 4.0),  # a newcomer would wait four times as long as it should
    ],
)
def test_saturation_is_that_of_what_is_shortest(
    num_running: int, num_free: int, wait_ns: int | None, expected: float
) -> None:
    scheduler = types.SimpleNamespace(num_running=num_running, num_free_blocks=num_free)
    config = types.SimpleNamespace(max_num_seqs=8, num_device_blocks=100)
    figures = types.SimpleNamespace(
        stats=types.SimpleNamespace(scheduler=scheduler),
        engine=types.SimpleNamespace(config=config),
        new_request_wait_ns=wait_ns,
    )

    assert saturation(figures) == pytest.approx(expected)
