"""Every method of every service goes through one door, and bytes that are no message get the same kind of answer."""

import weakref

import grpc
import pytest
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.interceptors import errors, routes
from gateway.interceptors.routes import PUBLIC_METHODS
from gateway.server import ADMIN_SERVICE, GENERATION_SERVICE, MODEL_SERVICE
from gateway.servicer import launch
from tests.gateway.world import Tenant, World, refused

SERVICES = (GENERATION_SERVICE, MODEL_SERVICE, ADMIN_SERVICE)


def raw_call(tenant: Tenant, method: str, data: bytes, metadata=()):
    """A call that sends these bytes."""
    is_stream = method.endswith("/StreamGenerate")
    make = tenant.channel.unary_stream if is_stream else tenant.channel.unary_unary
    return make(method, request_serializer=None, response_deserializer=None)(data, metadata=metadata)


async def listed_services(channel: grpc.aio.Channel) -> list[str]:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    answer = await call.read()
    call.cancel()
    return [service.name for service in answer.list_services_response.service]


async def test_health_and_reflection_need_no_key_and_everything_else_does(
    shared_world: World, shared_tenant: Tenant
) -> None:
    health = health_pb2_grpc.HealthStub(shared_tenant.channel)
    answered = await health.Check(health_pb2.HealthCheckRequest())
    services = await listed_services(shared_tenant.channel)

    methods = [
        f"/{service}/{method.name}"
        for service in services
        for method in descriptor_pool.Default().FindServiceByName(service).methods
    ]
    protected = [method for method in methods if method not in PUBLIC_METHODS]
    refusals = {method: await refused(raw_call(shared_tenant, method, b"")) for method in protected}

    assert answered.status == health_pb2.HealthCheckResponse.SERVING
    assert set(SERVICES) <= set(services)
    assert len(protected) >= 20
    assert {refusal.info.reason for refusal in refusals.values()} == {"CREDENTIAL_INVALID"}


async def test_a_watcher_of_health_hears_of_each_change(world: World, tenant: Tenant) -> None:
    watch = health_pb2_grpc.HealthStub(tenant.channel).Watch(health_pb2.HealthCheckRequest(service=GENERATION_SERVICE))
    unknown = health_pb2_grpc.HealthStub(tenant.channel).Watch(health_pb2.HealthCheckRequest(service="nobody"))
    statuses = [(await watch.read()).status]
    await world.engine.stop()
    statuses.append((await watch.read()).status)
    await world.engine.start()
    statuses.append((await watch.read()).status)

    answers = health_pb2.HealthCheckResponse
    assert statuses == [answers.SERVING, answers.NOT_SERVING, answers.SERVING]
    assert (await unknown.read()).status == answers.SERVICE_UNKNOWN
    absent = await refused(
        health_pb2_grpc.HealthStub(tenant.channel).Check(health_pb2.HealthCheckRequest(service="nobody"))
    )
    assert absent.code is grpc.StatusCode.NOT_FOUND


async def test_a_method_that_nobody_put_on_the_list_is_refused(
    shared_world: World, shared_tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(routes.ROUTES, f"/{GENERATION_SERVICE}/Generate")

    refusal = await refused(shared_tenant.generate())

    assert refusal.code is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("method", ["Generate", "StreamGenerate", "CountTokens", "CancelGeneration"])
async def test_bytes_that_are_no_message_are_an_invalid_field(shared_tenant: Tenant, method: str) -> None:
    name = f"/{GENERATION_SERVICE}/{method}"
    refusal = await refused(raw_call(shared_tenant, name, b"\xff\xff\xff", shared_tenant.metadata))

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert refusal.info.domain == "evenflow"
    assert refusal.request.request_id


@pytest.mark.parametrize("text", [b"\xed\xa0\x80", b"\xff\xfe", b"ok \xc3"])
async def test_text_that_is_not_utf_8_is_an_invalid_field(
    shared_world: World, shared_tenant: Tenant, text: bytes
) -> None:
    placeholder = b"#" * len(text)
    message = pb.GenerateRequest(spec=pb.GenerationSpec(text=placeholder.decode())).SerializeToString()
    broken = message.replace(placeholder, text)

    refusal = await refused(raw_call(shared_tenant, f"/{GENERATION_SERVICE}/Generate", broken, shared_tenant.metadata))

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert not shared_world.engine.calls


async def test_a_method_that_does_not_exist_is_unimplemented(shared_tenant: Tenant) -> None:
    refusal = await refused(raw_call(shared_tenant, f"/{GENERATION_SERVICE}/Invent", b"", shared_tenant.metadata))

    assert refusal.code is grpc.StatusCode.UNIMPLEMENTED


async def test_a_tenant_named_by_the_client_changes_nothing(shared_world: World, shared_tenant: Tenant) -> None:
    other = await shared_world.tenant()
    await shared_tenant.generate(metadata=(("x-evenflow-tenant", str(other.team_id)),))

    assert (await shared_world.engine.call()).start.path[1].id == str(shared_tenant.team_id)


@pytest.mark.parametrize("method", ["/evenflow.inference.v1.GenerationService/Nope", "/x.Y/Z", "/"])
async def test_a_method_that_does_not_exist_is_refused_with_details(shared_tenant: Tenant, method: str) -> None:
    refusal = await refused(raw_call(shared_tenant, method, b"", shared_tenant.metadata))

    assert refusal.code is grpc.StatusCode.UNIMPLEMENTED
    assert refusal.info.reason == "METHOD_NOT_FOUND"


async def test_a_refused_message_is_gone_before_its_refusal_is_written(
    shared_tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[weakref.ref[pb.GenerationSpec]] = []
    alive: list[bool] = []
    real_ask, real_details = launch.ask_from_pb, errors._details

    def ask(spec: pb.GenerationSpec):
        holder = Holder()
        parsed.append(weakref.ref(holder))
        return holder.pass_on(real_ask, spec)

    def details(*args):
        alive.extend(reference() is not None for reference in parsed)
        return real_details(*args)

    monkeypatch.setattr(launch, "ask_from_pb", ask)
    monkeypatch.setattr(errors, "_details", details)
    await refused(shared_tenant.generate(text=""))

    assert alive == [False]


class Holder:
    """Lives as long as the frame that it is in."""

    def pass_on(self, call, *args):
        return call(*args)
