"""A server that stops while clients are connecting."""

import asyncio
import gc
import socket

import pytest

from gateway.accepting import stop_accepting


class Greeted(asyncio.Protocol):
    """Counts itself, and ends what it was given."""

    def __init__(self, greeted: list[asyncio.BaseTransport]) -> None:
        self._greeted = greeted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._greeted.append(transport)
        transport.close()


def is_over(client: socket.socket) -> bool:
    """The server has closed the connection, or never took it."""
    try:
        return client.recv(1, socket.MSG_DONTWAIT) == b""
    except ConnectionResetError:
        return True
    except BlockingIOError:
        return False


@pytest.mark.parametrize("num_turns", range(6))
async def test_no_client_is_left_with_a_connection_that_nobody_has(num_turns: int) -> None:
    """However far the loop has come with those who connect."""
    greeted: list[asyncio.BaseTransport] = []
    server = await asyncio.get_running_loop().create_server(lambda: Greeted(greeted), "127.0.0.1", 0)
    clients = [socket.create_connection(server.sockets[0].getsockname()) for _ in range(4)]
    gc.disable()  # which would close what nobody has, some time
    try:
        for _ in range(num_turns):
            await asyncio.sleep(0)
        await stop_accepting(server)
        await server.wait_closed()
        assert [is_over(client) for client in clients] == [True] * 4
    finally:
        gc.enable()
        for client in clients:
            client.close()

    assert len(greeted) in {0, 4}


async def test_stopping_twice_changes_nothing() -> None:
    server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)

    await stop_accepting(server)
    await stop_accepting(server)

    assert not server.is_serving()
