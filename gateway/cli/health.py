"""Whether a part of ours serves, asked over `grpc.health.v1`."""

import asyncio

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from gateway.cli.security import Security

PROBE_TIMEOUT_S = 1.0
PROBE_INTERVAL_S = 0.1


async def is_serving(address: str, service: str = "") -> bool:
    """True if the server at `address` (HOST:PORT or unix:PATH) says that it, or its `service`, serves. Never raises."""
    # A fresh channel each time: a kept one would wait longer and longer between its own attempts to connect.
    credentials = None if address.startswith("unix:") else Security.from_environment().credentials()
    async with (
        grpc.aio.insecure_channel(address) if credentials is None else grpc.aio.secure_channel(address, credentials)
    ) as channel:
        try:
            answer = await HealthStub(channel).Check(HealthCheckRequest(service=service), timeout=PROBE_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == HealthCheckResponse.SERVING)


async def until_serving(address: str) -> None:
    """Return once it serves."""
    while not await is_serving(address):  # noqa: ASYNC110 - another process's state has no event
        await asyncio.sleep(PROBE_INTERVAL_S)
