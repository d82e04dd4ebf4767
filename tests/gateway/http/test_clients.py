"""Clients that nobody here wrote, in threads of their own as their users run them."""

import asyncio

import openai
from langchain_openai import ChatOpenAI

from gateway.store.enums import Dimension
from gateway.store.records import QuotaLimit
from tests.gateway.fake_engine import MODEL
from tests.gateway.http.clients import Clients
from tests.gateway.world import Tenant, World

HI = [{"role": "user", "content": "hi"}]


async def test_the_blocking_sdk_lists_chats_and_streams(shared_clients: Clients, shared_tenant: Tenant) -> None:
    def use() -> tuple[list[str], str | None, str]:
        with openai.OpenAI(base_url=f"{shared_clients.url}/v1", api_key=shared_tenant.key) as sdk:
            models = [model.id for model in sdk.models.list()]
            chat = sdk.chat.completions.create(model=MODEL, messages=HI)
            stream = sdk.chat.completions.create(model=MODEL, messages=HI, stream=True)
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            return models, chat.choices[0].message.content, streamed

    assert await asyncio.to_thread(use) == ([MODEL], "hello", "hello")


async def test_the_blocking_sdk_waits_out_a_rate_limit(shared_world: World, shared_clients: Clients) -> None:
    tenant = await shared_world.tenant(limits=(QuotaLimit(Dimension.REQUESTS, 600, 60_000, 1),))

    def use() -> list[str | None]:
        with openai.OpenAI(base_url=f"{shared_clients.url}/v1", api_key=tenant.key, max_retries=3) as sdk:
            chats = [sdk.chat.completions.create(model=MODEL, messages=HI) for _ in range(3)]
            return [chat.choices[0].message.content for chat in chats]

    assert await asyncio.to_thread(use) == ["hello"] * 3


async def test_langchain_invokes_and_streams(shared_clients: Clients, shared_tenant: Tenant) -> None:
    model = ChatOpenAI(
        base_url=f"{shared_clients.url}/v1", api_key=shared_tenant.key, model=MODEL, temperature=0, max_retries=0
    )

    answer = await model.ainvoke("hi")
    pieces = [piece async for piece in model.astream("hi", stream_usage=True)]

    assert (answer.content, answer.usage_metadata["output_tokens"]) == ("hello", 6)
    assert answer.response_metadata["finish_reason"] == "stop"
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    assert (whole.content, whole.usage_metadata["output_tokens"]) == ("hello", 6)
