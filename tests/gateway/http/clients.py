"""Clients of the HTTP door that nobody here wrote, each with its own connections."""

import ssl
from contextlib import AsyncExitStack

import httpx2
import openai

from tests.gateway.world import Tenant, World

# Made once: a client that makes its own takes longer for that than for most requests.
TLS = ssl.create_default_context()


class Clients:
    """Makes them for a world; `close` ends them all."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._open = AsyncExitStack()

    @property
    def url(self) -> str:
        return f"http://{self._world.live.http_address}"

    def http(self, tenant: Tenant) -> httpx2.AsyncClient:
        """A plain one with the tenant's key."""
        client = httpx2.AsyncClient(base_url=self.url, headers={"authorization": f"Bearer {tenant.key}"}, verify=TLS)
        self._open.push_async_callback(client.aclose)
        return client

    def sdk(self, tenant: Tenant, *, max_retries: int = 0) -> openai.AsyncOpenAI:
        """OpenAI's own."""
        client = openai.AsyncOpenAI(
            base_url=f"{self.url}/v1",
            api_key=tenant.key,
            max_retries=max_retries,
            http_client=openai.DefaultAsyncHttpxClient(verify=TLS),
        )
        self._open.push_async_callback(client.close)
        return client

    async def close(self) -> None:
        await self._open.aclose()
