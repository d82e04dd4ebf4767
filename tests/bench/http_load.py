"""A process that calls over HTTP as `load_loops` says, with as little of its own as it can: a parser and a socket.

A job is one of `grpc_load`, whose `address` is a URL. A connection carries one call at a time and is then used again.
"""

import asyncio
import json
import time
from collections import abc
from contextlib import asynccontextmanager

import httptools

from tests.bench.load_loops import Answer, Ask, serve_jobs

MODEL = "bytes"
PATH = "/v1/chat/completions"
FIRST_TEXT = b'"content":"x'


class Connection(asyncio.Protocol):
    """One call at a time. `first_s`: when the first text of its answer came."""

    def __init__(self) -> None:
        self._begin()

    async def ask(self, request: bytes) -> bytes:
        """The body of the answer. Raises RuntimeError for any that is no success."""
        self._begin()
        self._transport.write(request)
        await self._ended
        if self._parser.get_status_code() != 200:
            raise RuntimeError(f"{self._parser.get_status_code()}: {bytes(self._body)!r}")
        return bytes(self._body)

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_exception(exc or ConnectionError("closed before the end of the answer"))

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body
        if not self.first_s and FIRST_TEXT in body:
            self.first_s = time.monotonic()

    def on_message_complete(self) -> None:
        self._ended.set_result(None)

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body, self.first_s = bytearray(), 0.0
        self._ended = asyncio.get_running_loop().create_future()


@asynccontextmanager
async def asker(job: dict) -> abc.AsyncIterator[Ask]:
    host, _, port = job["address"].removeprefix("http://").rpartition(":")
    request, idle = request_of(job), []

    async def connection() -> Connection:
        _, made = await asyncio.get_running_loop().create_connection(Connection, host, int(port))
        return made

    async def ask() -> Answer:
        used = idle.pop() if idle else await connection()
        body = await used.ask(request)
        now_s = time.monotonic()
        idle.append(used)
        num_tokens = num_tokens_of(body, is_stream=job["is_stream"])
        if num_tokens != job["max_tokens"]:
            raise RuntimeError(f"{num_tokens} tokens came where {job['max_tokens']} were asked for")
        return Answer(used.first_s if job["is_stream"] else now_s, num_tokens)

    yield ask
    for each in idle:
        each.close()


def request_of(job: dict) -> bytes:
    """The whole request, which is the same for each call."""
    message = {"role": "user", "content": job["prompt"]}
    asked = {"model": MODEL, "messages": [message], "max_tokens": job["max_tokens"]}
    if job["is_stream"]:
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    body = json.dumps(asked).encode()
    lines = (
        *(f"POST {PATH} HTTP/1.1", "host: bench", "content-type: application/json"),
        *(f"authorization: Bearer {job['key']}", f"content-length: {len(body)}"),
    )
    return "\r\n".join((*lines, "", "")).encode() + body


def num_tokens_of(body: bytes, *, is_stream: bool) -> int:
    """By the usage that the answer tells."""
    if is_stream:
        *_, last, done = body.rstrip().split(b"\n\n")
        assert done == b"data: [DONE]", "a stream ends so"
        body = last.removeprefix(b"data: ")
    return json.loads(body)["usage"]["completion_tokens"]


if __name__ == "__main__":
    asyncio.run(serve_jobs(asker))
