"""The HTTP door of the gateway under test, and clients of it."""

from collections import abc

import httpx2
import openai
import pytest
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


@pytest_asyncio.fixture(loop_scope="module")
async def shared_clients(shared_world: World) -> abc.AsyncIterator[Clients]:
    """Clients of the module's shared gateway."""
    made = Clients(shared_world)
    yield made
    await made.close()


@pytest.fixture
def shared_http(shared_clients: Clients, shared_tenant: Tenant) -> httpx2.AsyncClient:
    """A plain client of it with the key of its tenant."""
    return shared_clients.http(shared_tenant)


@pytest.fixture
def shared_sdk(shared_clients: Clients, shared_tenant: Tenant) -> openai.AsyncOpenAI:
    """OpenAI's own client of it with that key."""
    return shared_clients.sdk(shared_tenant)


@pytest.fixture
def own_http(shared_clients: Clients, own_tenant: Tenant) -> httpx2.AsyncClient:
    """A plain client of it with the key of the test's own tenant."""
    return shared_clients.http(own_tenant)


@pytest.fixture
def own_sdk(shared_clients: Clients, own_tenant: Tenant) -> openai.AsyncOpenAI:
    """OpenAI's own client of it with that key."""
    return shared_clients.sdk(own_tenant)
