"""TLS of the HTTP port: the same files as gRPC's, replaced under a running gateway."""

import asyncio
import socket
import ssl
from pathlib import Path

import httpx2
import pytest
import pytest_asyncio
from starlette.responses import PlainTextResponse

from gateway.accepting import TURNS_TO_HAND_OVER
from gateway.http.door import HttpDoor
from gateway.http.protocol import HEAD_PATIENCE_S
from tests.auth.certificates import Authority, write
from tests.gateway.world import World


class Files:
    """The files of one gateway, as an administrator keeps them."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority()
        self.certificate, self.key = directory / "tls.pem", directory / "tls.key"
        self.client_ca = directory / "client-ca.pem"
        self.replace(self.authority)

    def replace(self, authority: Authority) -> None:
        certificate, key = authority.issue("gateway")
        write(self.certificate, certificate)
        write(self.key, key)

    @property
    def options(self) -> dict[str, str]:
        return {"tls_cert": str(self.certificate), "tls_key": str(self.key), "http_listen": "127.0.0.1:0"}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest_asyncio.fixture
async def tls_world(closed_world: World, files: Files) -> World:
    closed_world.options |= files.options
    await closed_world.open()
    return closed_world


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.certificate.decode())


async def reaches(world: World, context: ssl.SSLContext) -> bool:
    port = world.live.http_address.rpartition(":")[2]
    async with httpx2.AsyncClient(verify=context, base_url=f"https://localhost:{port}") as client:
        try:
            return (await client.get("/healthz")).status_code == 200
        except httpx2.TransportError:
            return False


async def test_clients_that_trust_the_authority_get_in_and_plain_ones_do_not(tls_world: World, files: Files) -> None:
    assert await reaches(tls_world, trusting(files.authority))
    assert not await reaches(tls_world, trusting(Authority("another")))
    async with httpx2.AsyncClient(base_url=f"http://{tls_world.live.http_address}") as plain:
        with pytest.raises(httpx2.TransportError):
            await plain.get("/healthz")


async def test_a_certificate_is_replaced_and_files_that_do_not_fit_are_not_used(tls_world: World, files: Files) -> None:
    other = Authority("another")
    certificate, key = other.issue("gateway")
    write(files.certificate, certificate)
    assert await reaches(tls_world, trusting(files.authority))

    write(files.key, key)

    assert await reaches(tls_world, trusting(other))
    assert not await reaches(tls_world, trusting(files.authority))


async def test_clients_need_a_certificate_where_an_authority_is_named(
    closed_world: World, files: Files, tmp_path: Path
) -> None:
    clients = Authority("clients")
    write(files.client_ca, clients.certificate)
    closed_world.options |= files.options | {"client_ca": str(files.client_ca)}
    await closed_world.open()
    certificate, key = clients.issue("somebody")
    write(tmp_path / "me.pem", certificate)
    write(tmp_path / "me.key", key)
    known = trusting(files.authority)
    known.load_cert_chain(tmp_path / "me.pem", tmp_path / "me.key")

    assert await reaches(closed_world, known)
    assert not await reaches(closed_world, trusting(files.authority))


async def test_who_is_still_shaking_hands_when_the_door_stops_is_not_served(files: Files) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    door = HttpDoor(("127.0.0.1", 0), PlainTextResponse("served"), max_connections=4, tls=context)
    await door.start()
    host, _, port = door.address.rpartition(":")
    slow = socket.create_connection((host, int(port)))
    for _ in range(TURNS_TO_HAND_OVER):  # it is accepted
        await asyncio.sleep(0)
    await door.stop(grace_s=1)

    with slow, pytest.raises(asyncio.IncompleteReadError):
        async with asyncio.timeout(HEAD_PATIENCE_S / 2):
            await read_over(slow, trusting(files.authority))


async def read_over(connected: socket.socket, context: ssl.SSLContext) -> None:
    """Shake hands now, and wait for a byte, which nobody who is served gets before asking for something."""
    reader, writer = await asyncio.open_connection(sock=connected, ssl=context, server_hostname="localhost")
    try:
        await reader.readexactly(1)
    finally:
        writer.transport.abort()
