"""The silent server of the tests notices a client that does not leave, and none of its connections outlives it."""

import asyncio

import pytest

from tests import silent_server as module
from tests.silent_server import silent_server


async def test_a_client_that_leaves_is_forgotten():
    async with silent_server() as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        await writer.wait_closed()


async def test_a_client_that_stays_is_noticed_and_shut_out(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    with pytest.raises(AssertionError, match="1 connections were left open"):
        async with silent_server() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
