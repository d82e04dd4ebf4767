"""Clients that never stop asking, and a tenant for them."""

import asyncio
import random
from collections import abc
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

from evenflow.inference.v1 import generation_pb2 as pb
from evenflow.inference.v1 import generation_pb2_grpc
from gateway import api_key
from gateway.store.changes import Change
from gateway.store.keys import create_key
from gateway.store.organizations import create_organization
from gateway.store.records import ApiKeySettings, KeySecret, OrganizationSettings, ResourcePath, TeamSettings
from gateway.store.teams import create_team
from tests.gateway.world import PEPPER, World, make_spec

MARKER = "MARK-a8f1"
NUM_CLIENTS = 12
CHANGE = Change("apiKeys/tests")


@dataclass
class Load:
    """Clients that generate until they are told to stop, whatever becomes of their calls."""

    port: int
    key: str
    delivered: dict[str, int] = field(default_factory=dict)
    """Output tokens by generation, as the clients were told."""
    finished: dict[str, pb.Usage] = field(default_factory=dict)
    failures: list[grpc.StatusCode] = field(default_factory=list)
    _must_stop: asyncio.Event = field(default_factory=asyncio.Event)
    _clients: list[asyncio.Task[None]] = field(default_factory=list)

    def begin(self, num_channels: int) -> None:
        """Clients on so many sets of connections ask from now on."""
        self._clients = [asyncio.create_task(self._run(first)) for first in range(num_channels)]

    async def end(self) -> None:
        """No client is left, whatever it was at."""
        for client in self._clients:
            client.cancel()
        await asyncio.wait(self._clients)

    async def stop(self) -> None:
        """Every client has come to its end."""
        self._must_stop.set()
        await asyncio.gather(*self._clients)

    async def finishes(self, num_more: int) -> None:
        """Return when so many more generations have come to their end."""
        num_finished = len(self.finished) + num_more
        while len(self.finished) < num_finished:  # noqa: ASYNC110 - the clients announce nothing
            await asyncio.sleep(0.02)

    async def _run(self, seed: int) -> None:
        options = (
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 200),
            ("grpc.use_local_subchannel_pool", 1),
        )
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=options) as channel:
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            chances = [random.Random(100 * seed + client) for client in range(NUM_CLIENTS)]
            await asyncio.gather(*(self._generate(stub, chance) for chance in chances))

    async def _generate(self, stub, chance: random.Random) -> None:
        while not self._must_stop.is_set():
            # A stop string at the 24th token, for some of them.
            stopping = {"max_output_tokens": chance.randrange(1, 60), "stop": ["!"] if chance.random() < 0.3 else []}
            spec = make_spec(text=f"{MARKER} {'x' * chance.randrange(30)}", stopping=stopping)
            request = pb.StreamGenerateRequest(spec=spec)
            try:
                await self._read(stub.StreamGenerate(request, metadata=(("authorization", f"Bearer {self.key}"),)))
            except grpc.aio.AioRpcError as error:
                self.failures.append(error.code())
                await asyncio.sleep(0.05)

    async def _read(self, stream) -> None:
        generation_id = ""
        async for message in stream:
            if message.HasField("admission"):
                generation_id = message.admission.generation_id
                self.delivered[generation_id] = 0
            elif message.HasField("token_delta"):
                self.delivered[generation_id] = message.token_delta.output_tokens_so_far
            elif message.HasField("finish"):
                self.finished[generation_id] = message.finish.usage


@asynccontextmanager
async def under(load: Load, num_channels: int = 1) -> abc.AsyncIterator[None]:
    """The load goes on until it is stopped, or the block ends."""
    load.begin(num_channels)
    try:
        yield
    finally:
        await load.end()


async def make_key(world: World) -> str:
    organization, path = ResourcePath("acme"), ResourcePath("acme", "search")
    await create_organization(world.database, CHANGE, organization, OrganizationSettings())
    await create_team(world.database, CHANGE, path, TeamSettings())
    fresh = api_key.generate()
    secret = KeySecret(api_key.digest(PEPPER.encode(), fresh.secret), 1)
    at = ResourcePath("acme", "search", fresh.public_id)
    await create_key(world.database, CHANGE, at, ApiKeySettings(), secret)
    return fresh.text
