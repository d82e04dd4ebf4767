"""What is said while engines are away or turn work away, and that nobody has to restart anything."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.server import GENERATION_SERVICE, MODEL_SERVICE
from gateway.servicer import served_models
from gateway.store.records import ApiKeySettings
from tests.gateway.fake_engine import FakeCall, FakeEngine, begun
from tests.gateway.postgres_proxy import PostgresProxy
from tests.gateway.world import Tenant, World, eventually, refused

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def health_of(world: World, service: str) -> int:
    stub = health_pb2_grpc.HealthStub(world.channel())
    return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status


async def test_a_gateway_that_starts_without_postgres_and_engine_finds_both_by_itself(
    closed_world: World, proxy: PostgresProxy
) -> None:
    world, closed_world.database_url = closed_world, proxy.url
    await world.engine.stop()
    await proxy.shut()
    await world.open()
    before = (await health_of(world, GENERATION_SERVICE), await health_of(world, MODEL_SERVICE))

    await proxy.open()
    tenant = await world.tenant()
    without_engine = await refused(tenant.generate())
    await world.engine.start()
    await world.serving()
    answer = await tenant.generate()

    assert before == (NOT_SERVING, SERVING)
    assert (without_engine.code, without_engine.info.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_ENGINE")
    assert without_engine.retry is not None
    assert answer.outputs[0].text == "hello"
    assert await health_of(world, GENERATION_SERVICE) == SERVING


async def test_an_engine_that_comes_back_with_another_model_serves_that_one(world: World, tenant: Tenant) -> None:
    await tenant.generate(model="bytes")
    await world.engine.stop()
    await eventually(lambda: not world.live._models.is_serving)
    away = await refused(tenant.generate(model="bytes"))
    unhealthy = await health_of(world, GENERATION_SERVICE)
    world.engine.info.name = "other"
    world.engine.info.context_tokens = 100
    await world.engine.start()
    await world.serving()

    assert (away.info.reason, unhealthy) == ("NO_ENGINE", NOT_SERVING)
    assert (await refused(tenant.generate(model="bytes"))).info.reason == "MODEL_NOT_FOUND"
    assert (await tenant.generate(model="other")).model == "other"
    assert (await refused(tenant.generate(text="x" * 100))).info.reason == "CONTEXT_LENGTH"


async def test_an_engine_that_speaks_another_version_is_not_used(closed_world: World) -> None:
    closed_world.engine.info.protocol_version = 2
    await closed_world.open()
    tenant = await closed_world.tenant()

    assert (await refused(tenant.generate())).info.reason == "NO_ENGINE"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"),
        (grpc.StatusCode.INVALID_ARGUMENT, "CONTEXT_LENGTH"),
        (grpc.StatusCode.FAILED_PRECONDITION, "PROTOCOL_VERSION"),
        (grpc.StatusCode.INTERNAL, "OTHER"),
        (grpc.StatusCode.UNIMPLEMENTED, "OTHER"),
    ],
)
async def test_an_engine_that_will_not_say_what_it_serves_takes_nothing_else_with_it(
    closed_world: World,
    second_engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    code: grpc.StatusCode,
    reason: str,
) -> None:
    world = closed_world
    monkeypatch.setattr(served_models, "RETRY_S", 0.01)
    monkeypatch.setattr(served_models, "UNUSABLE_RETRY_S", 0.01)
    world.engine.info_refusal = (code, reason)
    world.options["engine"] = f"{world.engine.address},{second_engine.address}"
    await world.open()
    await world.serving()
    await eventually(lambda: world.engine.num_info_calls >= 3)
    tenant = await world.tenant()
    assert await tenant.generate()

    world.engine.info_refusal = None
    await eventually(lambda: len(world.live._models._ready) == 2)
    assert world.is_running


async def test_an_engine_that_turns_a_request_away_attracts_no_others_until_it_takes_them_again(
    closed_world: World, second_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, draining, other = closed_world, closed_world.engine, second_engine
    monkeypatch.setattr(served_models, "RETRY_S", 0.01)
    world.options["engine"] = f"{draining.address},{other.address}"
    await world.open()
    await eventually(lambda: len(world.live._models._ready) == 2)
    tenant = await world.tenant()
    draining.script, other.script = turn_away, begun
    draining.is_draining = True
    refusal = await refused(tenant.stream())  # both are idle: the first one is asked
    held = [tenant.stream() for _ in range(5)]
    first_messages = [await stream.read() for stream in held]

    assert refusal.info.reason == "NO_ENGINE"
    assert all(message.HasField("admission") for message in first_messages)
    assert (len(draining.calls), len(other.calls)) == (1, 5)
    draining.script, draining.is_draining = begun, False
    await eventually(lambda: len(world.live._models._ready) == 2)
    late = tenant.stream()
    await late.read()
    assert len(draining.calls) == 2
    for stream in (*held, late):
        stream.cancel()
    await eventually(lambda: not world.live.num_live_requests)


async def turn_away(call: FakeCall) -> None:
    await call.refuse(grpc.StatusCode.UNAVAILABLE, "DRAINING")


async def test_a_draining_engine_is_no_engine(world: World, tenant: Tenant) -> None:
    world.engine.script = turn_away
    refusal = await refused(tenant.stream())

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_ENGINE")
    assert world.book.num_reservations == 0


async def test_of_two_engines_the_less_busy_one_is_used_and_one_may_go(
    closed_world: World, second_engine: FakeEngine
) -> None:
    world, second = closed_world, second_engine
    world.engine.script = second.script = begun
    world.options["engine"] = f"{world.engine.address},{second.address}"
    await world.open()
    await eventually(lambda: len(world.live._models._ready) == 2)
    tenant = await world.tenant()

    streams = [tenant.stream() for _ in range(4)]
    await asyncio.gather(*(stream.read() for stream in streams))
    shares = (len(world.engine.calls), len(second.calls))
    await second.stop()
    await eventually(lambda: len(world.live._models._ready) == 1)
    late = tenant.stream()
    await late.read()

    assert shares == (2, 2)
    assert len(world.engine.calls) == 3
    for stream in (*streams, late):
        stream.cancel()
    await eventually(lambda: not world.live.num_live_requests)


async def test_who_names_no_model_that_is_there_is_told_of_those_it_may_use_and_of_no_other(
    closed_world: World, second_engine: FakeEngine
) -> None:
    world = closed_world
    second_engine.info.name = "secret"
    world.options["engine"] = f"{world.engine.address},{second_engine.address}"
    await world.open()
    await eventually(lambda: len(world.live._models._ready) == 2)
    free = await world.tenant()
    bound = await world.tenant("globex", key=ApiKeySettings(model_grants=("bytes",)))

    assert (await refused(free.generate(model="x"))).message.endswith(": this key may use bytes, secret")
    assert (await refused(free.generate())).message.endswith("name one of bytes, secret")
    hidden = await refused(bound.generate(model="secret"))
    assert (hidden.info.reason, hidden.message.endswith(": this key may use bytes")) == ("MODEL_NOT_FOUND", True)
