"""The HTTP door of the gateway under test, and clients of it."""

from collections import abc

import httpx2
import openai
import pytest_asyncio

from tests.gateway.http.clients import Clients
from tests.gateway.world import Tenant, World


@pytest_asyncio.fixture
async def world(closed_world: World) -> World:
    """A running gateway with an HTTP door, which has found its engine."""
    closed_world.options["http_listen"] = "127.0.0.1:0"
    await closed_world.open()
    await closed_world.serving()
    return closed_world


@pytest_asyncio.fixture
async def clients(world: World) -> abc.AsyncIterator[Clients]:
    made = Clients(world)
    yield made
    await made.close()


@pytest_asyncio.fixture
async def http(clients: Clients, tenant: Tenant) -> httpx2.AsyncClient:
    """A plain client with the tenant's key."""
    return clients.http(tenant)


@pytest_asyncio.fixture
async def sdk(clients: Clients, tenant: Tenant) -> openai.AsyncOpenAI:
    """OpenAI's own client with the tenant's key."""
    return clients.sdk(tenant)
