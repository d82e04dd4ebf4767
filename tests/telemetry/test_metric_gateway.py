"""A gateway measures what it does: calls however they end, both doors, the door's answers, changes, slow readers."""

import asyncio
import json
import urllib.error
import urllib.request

import httpx2
import pytest_asyncio

from evenflow.engine.v1 import engine_pb2
from evenflow.inference.v1 import generation_pb2 as pb
from gateway.store.enums import Dimension
from gateway.store.records import QuotaLimit, ResourcePath
from tests.gateway.conftest import *  # noqa: F403 - the gateway's own fixtures
from tests.gateway.fake_engine import FakeCall, begun
from tests.gateway.world import Tenant, World, eventually, refused
from tests.telemetry.measured import samples, value

ONE_REQUEST = QuotaLimit(Dimension.REQUESTS, 1, 3_600_000, 1)
GENERATE = "evenflow.inference.v1.GenerationService/Generate"


def meters(world: World):
    return world.live._meters


async def test_calls_are_counted_by_method_and_status_however_they_end(world: World, tenant: Tenant) -> None:
    await tenant.generate()
    await refused(tenant.generate(text=""))
    world.engine.script = begun
    call = tenant.stream()
    await call.read()
    call.cancel()
    method = "evenflow.inference.v1.GenerationService/StreamGenerate"
    name = "rpc_server_call_duration_seconds_count"
    await eventually(lambda: value(meters(world), name, rpc_method=method))

    assert value(meters(world), name, rpc_method=GENERATE, rpc_response_status_code="OK") == 1
    assert value(meters(world), name, rpc_method=GENERATE, rpc_response_status_code="INVALID_ARGUMENT") == 1
    assert value(meters(world), name, rpc_method=method, rpc_response_status_code="CANCELLED") == 1


async def test_admissions_and_refusals_are_counted_with_their_reason(world: World) -> None:
    limited = await world.tenant("limited", (ONE_REQUEST,))
    await limited.generate()
    await refused(limited.generate())

    name, labels = "evenflow_admissions_total", {"tenant": "limited/search"}
    assert value(meters(world), name, outcome="admitted", **labels) == 1
    assert value(meters(world), name, outcome="refused", reason="RATE_LIMITED", **labels) == 1
    report = await world.live.report()
    assert report.quota.left["limited/search", "team", "requests"] == 0


async def test_tokens_and_stages_are_those_of_the_request(world: World, tenant: Tenant) -> None:
    usage = (await tenant.generate()).usage

    assert value(meters(world), "evenflow_tokens_total", kind="input") == usage.input_tokens
    assert value(meters(world), "evenflow_tokens_total", kind="output") == usage.output_tokens
    for stage in ("authenticate", "tokenize", "admit", "settle"):
        assert value(meters(world), "evenflow_overhead_seconds_count", stage=stage) == 1
    assert value(meters(world), "gen_ai_server_request_duration_seconds_count", gen_ai_request_model="bytes") == 1


async def test_credentials_are_counted_by_result(world: World, tenant: Tenant) -> None:
    await tenant.generate()
    tenant.key = tenant.key[:-1] + ("A" if tenant.key[-1] != "A" else "B")
    await refused(tenant.generate())

    assert value(meters(world), "evenflow_auth_cache_total", result="hit") == 1
    assert value(meters(world), "evenflow_auth_cache_total", result="refused") == 1


async def test_a_change_is_timed_from_the_moment_it_was_made(world: World, tenant: Tenant) -> None:
    before = value(meters(world), "evenflow_policy_propagation_seconds_count")
    await world.limit(ResourcePath(tenant.path.organization, tenant.path.team), (ONE_REQUEST,))
    await world.cache.refresh()

    assert value(meters(world), "evenflow_policy_propagation_seconds_count") > before


async def test_end_users_and_request_ids_are_no_labels(world: World, tenant: Tenant) -> None:
    sizes = []
    for number in range(20):
        labels = {"user": f"user-{number}"}
        await tenant.generate(
            admission=pb.AdmissionOptions(labels=labels), metadata=(("x-request-id", f"id-{number}"),)
        )
        await eventually(lambda: not world.live.num_live_requests)
        sizes.append(len(samples(meters(world))))

    assert sizes[0] == sizes[-1]
    told = str(list(samples(meters(world))))
    assert "user-" not in told
    assert "id-1" not in told
    assert tenant.public_id not in told


@pytest_asyncio.fixture
async def http_world(closed_world: World) -> World:
    closed_world.options["http_listen"] = "127.0.0.1:0"
    await closed_world.open()
    await closed_world.serving()
    return closed_world


async def test_http_is_counted_by_route_and_what_clients_make_up_is_one(http_world: World) -> None:
    tenant = await http_world.tenant()
    url = f"http://{http_world.live.http_address}"

    def get(path: str, key: str = tenant.key, body: dict | None = None) -> int:
        data = None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        try:
            with urllib.request.urlopen(urllib.request.Request(url + path, data, headers), timeout=30) as answer:
                answer.read()
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    body = {"model": "bytes", "prompt": "hi", "max_tokens": 2}
    assert await asyncio.to_thread(get, "/v1/completions", body=body) == 200
    assert await asyncio.to_thread(get, "/v1/models", "nonsense") == 401
    for number in range(3):
        await asyncio.to_thread(get, f"/made/up/{number}")

    name = "http_server_request_duration_seconds_count"
    await eventually(lambda: value(meters(http_world), name) == 5)
    completed = {"http_route": "/v1/completions", "http_response_status_code": "200"}
    assert value(meters(http_world), name, **completed) == 1
    assert value(meters(http_world), name, http_route="/v1/models", http_response_status_code="401") == 1
    assert value(meters(http_world), name, http_route="other", http_response_status_code="404") == 3


async def test_a_stream_over_http_that_fails_or_loses_its_client_late_is_no_success(http_world: World) -> None:
    tenant = await http_world.tenant()
    path, name = "/v1/chat/completions", "http_server_request_duration_seconds_count"
    body = {"model": "bytes", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    headers = {"authorization": f"Bearer {tenant.key}"}

    async def fails(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.emit(b"abc")
        await call.finish(engine_pb2.FINISH_REASON_ERROR, error="a bug")

    async with httpx2.AsyncClient(base_url=f"http://{http_world.live.http_address}", headers=headers) as client:
        await client.post(path, json=body)
        http_world.engine.script = fails
        assert (await client.post(path, json=body)).status_code == 200
        http_world.engine.script = begun
        async with client.stream("POST", path, json=body) as answer:
            await anext(answer.aiter_lines())
        await client.post(path, json=body | {"model": "another"})
    await eventually(lambda: value(meters(http_world), name, http_route=path) == 4)

    def number(status: str, error_type: str) -> float:
        told = {"http_route": path, "http_response_status_code": status, "error_type": error_type}
        return value(meters(http_world), name, **told)

    told = [("200", ""), ("200", "INTERNAL"), ("200", "CANCELLED"), ("404", "MODEL_NOT_FOUND")]
    assert [number(*each) for each in told] == [1, 1, 1, 1]
