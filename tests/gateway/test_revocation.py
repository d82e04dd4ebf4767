"""A key that is revoked through one gateway process: what it runs on another one ends, if that was asked for."""

from collections import abc
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from evenflow.admin.v1 import admin_pb2, admin_pb2_grpc
from evenflow.engine.v1 import engine_pb2
from evenflow.inference.v1 import generation_pb2 as pb
from evenflow.inference.v1 import generation_pb2_grpc
from tests.gateway.calls import rest_of
from tests.gateway.fake_engine import begun
from tests.gateway.test_process import next_event, start_process
from tests.gateway.world import Tenant, World, make_spec, refused


@asynccontextmanager
async def gateway(world: World, data_dir: Path) -> abc.AsyncIterator[grpc.aio.Channel]:
    """Connections to a gateway process of its own, over the world's engine and database."""
    process = await start_process(world, 0, EVENFLOW_DATA_DIR=str(data_dir), EVENFLOW_GATEWAY_METRICS_LISTEN="off")
    try:
        address = (await next_event(process, "gateway listening"))["address"]
        await next_event(process, "engine ready")
        async with grpc.aio.insecure_channel(address) as channel:
            yield channel
    finally:
        process.kill()
        await process.wait()


def stream(channel: grpc.aio.Channel, tenant: Tenant):
    stub = generation_pb2_grpc.GenerationServiceStub(channel)
    return stub.StreamGenerate(pb.StreamGenerateRequest(spec=make_spec()), metadata=tenant.metadata)


async def revoke(channel: grpc.aio.Channel, administrator: Tenant, tenant: Tenant, **fields) -> None:
    request = admin_pb2.RevokeApiKeyRequest(name=tenant.path.name, **fields)
    await admin_pb2_grpc.AdminServiceStub(channel).RevokeApiKey(request, metadata=administrator.metadata)


@pytest.mark.timeout(90)
async def test_a_revoked_keys_stream_on_another_gateway_ends_if_asked_for(world: World, tmp_path: Path) -> None:
    world.engine.script = begun
    tenant, administrator = await world.tenant(), await world.administrator()
    colleague = await world.key(tenant.path, tenant.organization_id, tenant.team_id)
    async with gateway(world, tmp_path / "a") as first, gateway(world, tmp_path / "b") as second:
        running, others = stream(second, tenant), stream(second, colleague)
        for each in (running, others):
            await each.read()
            await each.read()

        await revoke(first, administrator, tenant)
        refusal = await refused(stream(first, tenant))
        goes_on = not running.done()
        await revoke(first, administrator, tenant, abort_inflight=True)
        end = await refused(rest_of(running))

        assert refusal.code is grpc.StatusCode.UNAUTHENTICATED
        assert goes_on
        assert end.info.reason == "KEY_REVOKED"
        (call,) = (each for each in world.engine.calls if each.start.sender_id == str(tenant.key_id))
        assert (await call.control("cancel")).cancel.reason == engine_pb2.CANCEL_REASON_KEY_REVOKED
        assert not others.done()
        others.cancel()
