"""Parts of a page that change while it is looked at: server-sent events, each with HTML made by the same templates.

The page asks with `data-live`; the script replaces what has the same `id`. A session that has ended ends its streams.
"""

import asyncio
import time
from collections import abc
from typing import TYPE_CHECKING

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from gateway.errors import GatewayError, UnavailableError
from gateway.store.errors import DatabaseUnavailableError

if TYPE_CHECKING:
    from gateway.console.visit import Visit

INTERVAL_S = 1.0
KEEP_ALIVE_S = 15.0
MAX_STREAMS = 128
MEDIA_TYPE = "text/event-stream"
Produce = abc.Callable[[], abc.Awaitable[str]]


class TooManyStreamsError(UnavailableError):
    """As many pages as the process keeps up to date are open."""

    reason = "TOO_MANY_STREAMS"

    def __init__(self) -> None:
        super().__init__("too many pages are being kept up to date; load this one again to see what is new")


class LiveStreams:
    """Counts the streams of this process. Written by itself only."""

    def __init__(self) -> None:
        self._num_open = 0

    def respond(self, visit: "Visit", produce: Produce, interval_s: float = INTERVAL_S) -> Response:
        """What `produce` makes, each time that it is another one, until the page is left or the session ends.

        Raises TooManyStreamsError.
        """
        if self._num_open >= MAX_STREAMS:
            raise TooManyStreamsError
        self._num_open += 1
        return _Stream(_events(visit, produce, interval_s), self._release)

    def _release(self) -> None:
        self._num_open -= 1


class _Stream(StreamingResponse):
    """Releases its place when it has been sent, or was not, whether or not any of it was made."""

    def __init__(self, events: abc.AsyncIterator[str], release: abc.Callable[[], None]) -> None:
        super().__init__(events, media_type=MEDIA_TYPE)
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()


async def _events(visit: "Visit", produce: Produce, interval_s: float) -> abc.AsyncIterator[str]:
    told, told_at_s = "", time.monotonic()
    while True:
        try:
            await visit.renew()
        except UnavailableError as error:
            # Once, and what comes after it is sent even if it is as before: it takes the trouble away.
            if (trouble := _event("trouble", error.message)) != told:
                yield trouble
                told, told_at_s = trouble, time.monotonic()
        except GatewayError as error:
            yield _event("end", error.message)
            return
        else:
            event = await _produced(produce)
            if event != told:
                yield event
                told, told_at_s = event, time.monotonic()
        if time.monotonic() - told_at_s > KEEP_ALIVE_S:
            yield ": keep-alive\n\n"
            told_at_s = time.monotonic()
        await asyncio.sleep(interval_s)


async def _produced(produce: Produce) -> str:
    try:
        return _event("fragment", await produce())
    except GatewayError as error:
        return _event("trouble", error.message)
    except DatabaseUnavailableError:
        return _event("trouble", "the database cannot be reached now")


def _event(name: str, data: str) -> str:
    lines = "".join(f"data: {line}\n" for line in data.splitlines())
    return f"event: {name}\n{lines}\n"
