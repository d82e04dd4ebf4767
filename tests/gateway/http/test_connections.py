"""What a connection may hold without saying anything, and how requests end with it."""

import asyncio
import json
import socket
from contextlib import suppress

import pytest
import pytest_asyncio
import structlog

from gateway.http import app, call, protocol
from tests.gateway.fake_engine import MODEL, FakeCall, begun
from tests.gateway.http.clients import Clients
from tests.gateway.world import Tenant, World, eventually

PATH = "/v1/chat/completions"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


class Wire:
    """A connection that sends what a test says, byte by byte if need be."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, world: World) -> "Wire":
        host, _, port = world.live.http_address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""

    async def answer(self) -> tuple[int, dict[str, object]]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next(int(line[16:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length: "))
        return int(head.split()[1]), json.loads(await self.reader.readexactly(length))

    def close(self) -> None:
        self.writer.close()


def head(tenant: Tenant, *more: str, path: str = PATH, verb: str = "POST") -> bytes:
    lines = (f"{verb} {path} HTTP/1.1", "host: x", f"authorization: Bearer {tenant.key}", *more)
    return "\r\n".join((*lines, "", "")).encode()


@pytest_asyncio.fixture
async def wire(world: World):
    made = await Wire.to(world)
    yield made
    made.close()


async def test_a_head_that_never_ends_is_not_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_PATIENCE_S", 0.05)
    silent, slow = await Wire.to(world), await Wire.to(world)
    await slow.send(b"GET /healthz HTTP/1.1\r\nx: ")

    assert await silent.rest() == b""
    assert await slow.rest() == b""
    silent.close()
    slow.close()


async def test_a_second_head_is_given_no_more_time_than_the_first(
    world: World, wire: Wire, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_PATIENCE_S", 0.2)
    await wire.send(head(tenant, path="/v1/models", verb="GET"))
    assert (await wire.answer())[0] == 200
    await wire.send(b"GET /v1/models HTT")

    assert await wire.rest() == b""


async def test_a_head_that_is_too_long_is_refused_and_ends_the_connection(wire: Wire) -> None:
    async def flood() -> None:
        await wire.send(b"GET /healthz HTTP/1.1\r\nx: ")
        with suppress(ConnectionError):
            while True:
                await wire.send(b"y" * 4096)

    flooding = asyncio.create_task(flood())
    status, body = await wire.answer()

    assert (status, body["error"]["reason"]) == (431, "REQUEST_HEAD_TOO_LARGE")
    assert await wire.rest() == b""
    flooding.cancel()
    await asyncio.wait([flooding])


@pytest.mark.parametrize("size", [70_000, 200_000])
async def test_a_head_that_is_too_long_and_comes_at_once_is_refused(wire: Wire, size: int) -> None:
    await wire.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: " + b"y" * size + b"\r\n\r\n")

    assert (await wire.answer())[0] == 431
    assert await wire.rest() == b""


async def test_a_large_head_is_served(wire: Wire) -> None:
    await wire.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 60_000 + b"\r\n\r\n")

    assert (await wire.answer())[0] == 200


@pytest.mark.parametrize("hosts", [b"", b"host: a\r\nhost: b\r\n", b"Host: a\r\nhOsT: a\r\n"])
async def test_a_request_says_once_for_which_host_it_is(wire: Wire, hosts: bytes) -> None:
    await wire.send(b"GET /healthz HTTP/1.1\r\n" + hosts + b"\r\n")

    status, body = await wire.answer()
    assert (status, body["error"]["reason"]) == (400, "INVALID_HOST")
    assert await wire.rest() == b""


async def test_the_older_http_needs_no_host(wire: Wire) -> None:
    await wire.send(b"GET /healthz HTTP/1.0\r\n\r\n")

    assert (await wire.answer())[0] == 200


async def test_a_second_request_without_a_host_does_not_spoil_the_first_answer(wire: Wire) -> None:
    first = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    await wire.send(first + b"GET /healthz HTTP/1.1\r\n\r\n")

    assert b" 400 " not in (await wire.rest())[:20]


async def test_bytes_that_are_no_http_get_an_answer_of_the_same_shape(wire: Wire) -> None:
    await wire.send(b"\x16\x03\x01 hello\r\n\r\n")

    status, body = await wire.answer()
    assert (status, body["error"]["code"]) == (400, "invalid_http")
    assert await wire.rest() == b""


async def test_a_body_that_trickles_in_is_refused(
    world: World, wire: Wire, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, "BODY_PATIENCE_S", 0.1)
    monkeypatch.setattr(call, "DISCARD_PATIENCE_S", 0.05)
    await wire.send(head(tenant, "content-length: 1000") + b"{")

    status, body = await wire.answer()
    assert (status, body["error"]["reason"]) == (408, "REQUEST_TOO_SLOW")
    assert await wire.rest() == b""


async def test_a_body_that_is_too_large_is_refused_before_it_is_sent(wire: Wire, tenant: Tenant) -> None:
    await wire.send(head(tenant, "content-length: 99999999", "expect: 100-continue"))

    status, body = await wire.answer()
    assert (status, body["error"]["reason"]) == (413, "PROMPT_TOO_LARGE")
    assert await wire.rest() == b""


async def test_a_body_that_grows_too_large_is_refused(closed_world: World) -> None:
    closed_world.options |= {"http_listen": "127.0.0.1:0", "http_max_body_bytes": 2048}
    await closed_world.open()
    tenant = await closed_world.tenant()
    wire = await Wire.to(closed_world)
    await wire.send(head(tenant, "transfer-encoding: chunked") + (b"400\r\n" + b" " * 1024 + b"\r\n") * 3)

    assert (await wire.answer())[0] == 413
    wire.close()


async def test_whoever_is_not_known_is_answered_without_being_read(wire: Wire, tenant: Tenant) -> None:
    tenant.key = "ef_live_nobody"
    await wire.send(head(tenant, "content-length: 1000", "expect: 100-continue"))

    assert (await wire.answer())[0] == 401
    assert await wire.rest() == b""


async def test_no_more_connections_are_kept_than_there_may_be(closed_world: World) -> None:
    closed_world.options |= {"http_listen": "127.0.0.1:0", "max_concurrent_rpcs": 2}
    await closed_world.open()
    tenant = await closed_world.tenant()
    kept = [await Wire.to(closed_world) for _ in range(2)]
    for wire in kept:
        await wire.send(head(tenant, path="/v1/models", verb="GET"))
        await wire.answer()
    extra = await Wire.to(closed_world)

    assert await extra.rest() == b""
    for wire in (*kept, extra):
        wire.close()


async def test_a_body_does_not_wait_until_its_head_is_acknowledged(world: World, wire: Wire, tenant: Tenant) -> None:
    await wire.send(head(tenant, path="/v1/models", verb="GET"))
    await wire.answer()

    (connection,) = world.http_state.connections
    accepted = connection.transport.get_extra_info("socket")
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_requests_on_one_connection_are_answered_in_their_order(wire: Wire, tenant: Tenant) -> None:
    body = json.dumps(CHAT).encode()
    one = head(tenant, f"content-length: {len(body)}") + body
    await wire.send(one + head(tenant, path="/v1/models", verb="GET"))

    first, second = await wire.answer(), await wire.answer()
    assert (first[1]["object"], second[1]["object"]) == ("chat.completion", "list")


async def test_a_request_takes_nothing_over_from_the_one_before_it(wire: Wire, tenant: Tenant) -> None:
    known = head(tenant, path="/v1/models", verb="GET")
    with structlog.testing.capture_logs() as lines:
        await wire.send(known + known.replace(tenant.key.encode(), b"ef_live_nobody"))
        statuses = [(await wire.answer())[0] for _ in range(2)]

    assert statuses == [200, 401]
    assert [line["key"] for line in lines if line["event"] == "request refused"] == [None]


async def test_a_silent_stream_is_kept_alive_by_comments(closed_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "HEARTBEAT_S", 0.05)
    closed_world.options["http_listen"] = "127.0.0.1:0"
    await closed_world.open()
    await closed_world.serving()
    clients, tenant = Clients(closed_world), await closed_world.tenant()
    go_on = asyncio.Event()

    async def script(call: FakeCall) -> None:
        await call.accept()
        await go_on.wait()
        await call.admit()
        await call.emit(b"abc")
        await call.finish()

    closed_world.engine.script = script
    lines = []
    async with clients.http(tenant).stream("POST", PATH, json=CHAT | {"stream": True}) as response:
        async for line in response.aiter_lines():
            lines.append(line)
            if lines.count(": keep-alive") == 2:
                go_on.set()
    await clients.close()

    assert lines.count(": keep-alive") >= 2
    assert lines[-2] == "data: [DONE]"
    chats = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(chat["choices"][0]["delta"].get("content", "") for chat in chats) == "abc"


async def test_a_drain_lets_streams_end_and_turns_new_requests_away(
    world: World, clients: Clients, tenant: Tenant
) -> None:
    may_end = asyncio.Event()

    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.emit(b"abc")
        await may_end.wait()
        await call.emit(b"def")
        await call.finish()

    world.engine.script = script
    http = clients.http(tenant)
    streams = [asyncio.create_task(http.post(PATH, json=CHAT | {"stream": True})) for _ in range(10)]
    await eventually(lambda: sum(call.num_emitted for call in world.engine.calls) == 30)
    draining = asyncio.create_task(world.live.drain())
    await asyncio.sleep(0)
    late, ready = await http.post(PATH, json=CHAT), await http.get("/readyz")
    may_end.set()
    ended = await asyncio.gather(*streams)
    await draining

    assert (late.status_code, late.json()["error"]["reason"], late.headers["retry-after-ms"]) == (503, "DRAINING", "0")
    assert ready.status_code == 503
    assert all(response.text.endswith("data: [DONE]\n\n") for response in ended)
    assert {row["output_tokens"] for row in await world.usage_rows()} == {6}


async def test_what_does_not_end_in_time_is_told_in_its_stream(closed_world: World) -> None:
    closed_world.options |= {"http_listen": "127.0.0.1:0", "drain_grace_s": 0.05}
    await closed_world.open()
    await closed_world.serving()
    closed_world.engine.script = begun
    clients, tenant = Clients(closed_world), await closed_world.tenant()
    stream = asyncio.create_task(clients.http(tenant).post(PATH, json=CHAT | {"stream": True}))
    await eventually(lambda: sum(call.num_emitted for call in closed_world.engine.calls) == 3)
    await closed_world.live.drain()
    text = (await stream).text
    await clients.close()

    assert '"reason":"DRAINING"' in text
    assert "[DONE]" not in text


async def streaming(world: World, tenant: Tenant, wire: Wire) -> None:
    """An answer is under way on the wire."""
    world.engine.script = begun
    body = json.dumps({**CHAT, "stream": True}).encode()
    await wire.send(head(tenant, f"content-length: {len(body)}") + body)
    await wire.reader.readuntil(b"data: ")


async def test_what_comes_behind_a_request_without_an_end_closes_the_connection(
    world: World, tenant: Tenant, wire: Wire
) -> None:
    await streaming(world, tenant, wire)
    with suppress(ConnectionError):
        await wire.send(b"POST /x HTTP/1.1\r\nhost: x\r\n")
        for _ in range(100):
            await wire.send(b"a: " + b"b" * 4000 + b"\r\n")
            await asyncio.sleep(0)
    assert b"HTTP/1.1 4" not in await wire.rest()


async def test_trailers_without_an_end_close_the_connection(world: World, tenant: Tenant, wire: Wire) -> None:
    with suppress(ConnectionError):
        await wire.send(head(tenant, "transfer-encoding: chunked") + b"0\r\n")
        for _ in range(100):
            await wire.send(b"a: " + b"b" * 4000 + b"\r\n")
            await asyncio.sleep(0)
    await wire.rest()


async def test_nonsense_behind_a_request_writes_nothing_into_its_answer(
    world: World, tenant: Tenant, wire: Wire
) -> None:
    await streaming(world, tenant, wire)
    await wire.send(b"\x00\x01 nonsense\r\n\r\n")
    assert b"HTTP/1.1 400" not in await wire.rest()


@pytest.mark.parametrize("path", ["/v1/completions/", "/console/tenants/"])
async def test_no_path_leads_to_the_host_that_a_request_names(tenant: Tenant, wire: Wire, path: str) -> None:
    await wire.send(head(tenant, "content-length: 0", path=path).replace(b"host: x", b"host: elsewhere.example"))
    answered = await wire.reader.readuntil(b"\r\n\r\n")
    assert b"elsewhere.example" not in answered
