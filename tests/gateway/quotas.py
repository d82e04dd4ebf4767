"""Limits, requests that meet them, and scripted engines that use tokens, for tests about quotas."""

import asyncio

from evenflow.engine.v1 import engine_pb2
from evenflow.inference.v1 import generation_pb2 as pb
from gateway.quota_terms import Mode
from gateway.store.enums import Dimension, ReservationMode
from gateway.store.records import QuotaLimit, QuotaPolicySettings, ResourcePath
from tests.gateway.fake_engine import FakeCall
from tests.gateway.world import Tenant, World, eventually

TOKENS = QuotaLimit(Dimension.TOTAL_TOKENS, 600, 60_000, 200)
OUTPUT = QuotaLimit(Dimension.OUTPUT_TOKENS, 1800, 60_000, 20)
HOUR_MS = 3_600_000  # nothing refills while a test runs, however slow the machine is
ONE_REQUEST = QuotaLimit(Dimension.REQUESTS, 1, HOUR_MS, 1)
SLOTS = QuotaLimit(Dimension.CONCURRENCY, 5, None, None)


def team_of(tenant: Tenant) -> ResourcePath:
    return ResourcePath(tenant.path.organization, tenant.path.team)


def five_tokens(most_running: list[int]):
    """An engine that generates five tokens after a moment, and notes how many requests it had at once."""
    running = 0

    async def script(call: FakeCall) -> None:
        nonlocal running
        running += 1
        most_running[0] = max(most_running[0], running)
        await call.accept()
        await call.admit()
        await call.emit(b"abcde")
        await asyncio.sleep(0.01)
        running -= 1  # as the gateway hears of the end
        await call.finish()

    return script


async def obedient(call: FakeCall) -> None:
    """Generates to the end of what it was granted, pauses there, and goes on with the next grant."""
    most = call.start.max_output_tokens
    await call.accept()
    await call.admit()
    while call.num_emitted < most:
        if call.num_emitted == granted_to(call):
            await call.preempt(engine_pb2.PREEMPTION_MODE_PAUSE, engine_pb2.PAUSE_REASON_QUOTA)
            await eventually(lambda: call.num_emitted < granted_to(call) or is_cancelled(call))
            if is_cancelled(call):
                await call.finish(engine_pb2.FINISH_REASON_CANCELLED)
                return
            await call.resume()
        await call.emit(b"x")
        await asyncio.sleep(0.001)
    await call.finish()


def granted_to(call: FakeCall) -> int:
    """Output tokens that the engine may have generated."""
    first = call.start.grant_output_tokens if call.start.HasField("grant_output_tokens") else 10**9
    grants = [message.grant.max_output_tokens for message in call.controls if message.HasField("grant")]
    return grants[-1] if grants else first


def is_cancelled(call: FakeCall) -> bool:
    return any(message.HasField("cancel") for message in call.controls)


async def drain(stream) -> list[pb.StreamGenerateResponse]:
    return [message async for message in stream]


async def expecting(world: World, *limits: QuotaLimit, mode: Mode = Mode.ENFORCE) -> Tenant:
    """A tenant that reserves what is expected, and an engine that keeps to its grants."""
    world.engine.script = obedient
    tenant = await world.tenant()
    settings = QuotaPolicySettings(limits=limits, mode=mode, reservation=ReservationMode.EXPECTED)
    await world.policy(team_of(tenant), settings)
    return tenant


def exhausted(action: int) -> dict:
    return {"admission": pb.AdmissionOptions(on_quota_exhausted=action), "stopping": {"max_output_tokens": 60}}
