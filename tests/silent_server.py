"""A server that takes connections and never says a word, and that notices who does not leave."""

import asyncio
from collections import abc
from contextlib import asynccontextmanager, suppress

from gateway.accepting import stop_accepting

PATIENCE_S = 5.0


@asynccontextmanager
async def silent_server() -> abc.AsyncIterator[int]:
    """Its port. At the end its clients have a moment to leave; that one has not is an AssertionError."""
    connections: set[asyncio.Task[None]] = set()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        connections.add(connection)
        try:
            with suppress(ConnectionError):
                await reader.read()
        finally:
            writer.transport.abort()
            with suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await stop_accepting(server)
        await asyncio.sleep(0)  # whoever was accepted has a task, which is in the set once it has begun
        num_left = await _part(connections)
    assert not num_left, f"{num_left} connections were left open"


async def _part(connections: abc.Set[asyncio.Task[None]]) -> int:
    """All have ended; the number of those that had to be told to."""
    if not connections:
        return 0
    _, left = await asyncio.wait(connections, timeout=PATIENCE_S)
    for connection in left:
        connection.cancel()
    await asyncio.gather(*connections, return_exceptions=True)
    return len(left)
