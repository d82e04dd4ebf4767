"""A stream of server-sent events that is never silent for long, so that no proxy on the way takes it for dead.

Written to by the tasks of one request. Whoever reads slowly holds up the writers, and through them the generation.
"""

import asyncio
from types import TracebackType

from gateway.http.call import HttpCall

MEDIA_TYPE = "text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = "keep-alive"


class EventStream:
    """The answer of `call`. It begins at the latest with the first thing that is written; use as a context."""

    def __init__(self, call: HttpCall, heartbeat_s: float) -> None:
        self._call = call
        self._heartbeat_s = heartbeat_s
        self._lock = asyncio.Lock()
        self._has_written = False
        self._heart: asyncio.Task[None] | None = None
        self.has_begun = False

    async def __aenter__(self) -> "EventStream":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop_heart()

    async def open(self) -> None:
        """The answer has begun, and beats."""
        async with self._lock:
            await self._begin()

    async def write(self, events: bytes) -> None:
        """These whole events are sent, as soon as the client has room for them; nothing is sent for none."""
        if not events:
            return
        async with self._lock:
            await self._begin()
            self._has_written = True
            await self._call.send({"type": "http.response.body", "body": events, "more_body": True})

    async def comment(self, text: str) -> None:
        """A line that clients skip."""
        await self.write(f": {text}\n\n".encode())

    async def end(self, events: bytes) -> None:
        """Nothing follows these."""
        self._stop_heart()
        async with self._lock:
            await self._call.send({"type": "http.response.body", "body": events, "more_body": False})

    async def _begin(self) -> None:
        if self.has_begun:
            return
        self.has_begun = True
        await self._call.begin(200, ("x-accel-buffering", "no"), media_type=MEDIA_TYPE)
        self._heart = asyncio.create_task(self._beat(), name="heartbeat of a stream")

    def _stop_heart(self) -> None:
        if self._heart is not None:
            self._heart.cancel()

    async def _beat(self) -> None:
        """Between two beats of a stream that is otherwise silent lie at most two heartbeats' time."""
        while True:
            self._has_written = False
            await asyncio.sleep(self._heartbeat_s)
            # A writer that waits for the client says that there is enough on the way.
            if not self._has_written and not self._lock.locked():
                await self.comment(KEEP_ALIVE)


def event(data: bytes, name: str = "") -> bytes:
    """One event of JSON, which holds no line break of its own."""
    named = f"event: {name}\n".encode() if name else b""
    return b"%bdata: %b\n\n" % (named, data)
