"""Parts of a page that change while it is looked at: server-sent events, each with HTML made by the same templates.

The page asks with `data-live`; the script replaces what has the same `id`. A session that has ended ends its streams.
"""

import asyncio
import time
from collections import Counter, abc
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

import grpc
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from gateway.errors import GatewayError, UnavailableError
from gateway.store.errors import DatabaseUnavailableError

if TYPE_CHECKING:
    from gateway.console.visit import Visit

INTERVAL_S = 1.0
KEEP_ALIVE_S = 15.0
MAX_STREAMS = 128
# Of one key or subject, in however many browsers: nobody takes the others' places.
MAX_STREAMS_EACH = 16
MEDIA_TYPE = "text/event-stream"
Produce = abc.Callable[[], abc.Awaitable[str]]


class TooManyStreamsError(UnavailableError):
    """As many pages as the process keeps up to date are open."""

    reason = "TOO_MANY_STREAMS"

    def __init__(self) -> None:
        super().__init__("too many pages are being kept up to date; load this one again to see what is new")


class TooManyOwnStreamsError(GatewayError):
    """As many pages as one visitor may keep up to date are open."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "TOO_MANY_OWN_STREAMS"

    def __init__(self) -> None:
        super().__init__(f"you keep {MAX_STREAMS_EACH} pages up to date already; close some of them")


class LiveStreams:
    """Counts the streams of this process, by whose they are. Written by itself only."""

    def __init__(self) -> None:
        self._num_by_holder: Counter[UUID] = Counter()

    def respond(self, visit: "Visit", produce: Produce, interval_s: float = INTERVAL_S) -> Response:
        """What `produce` makes, each time that it is another one, until the page is left or the session ends.

        Raises TooManyStreamsError, TooManyOwnStreamsError.
        """
        holder = visit.principal.key_id
        if self._num_by_holder[holder] >= MAX_STREAMS_EACH:
            raise TooManyOwnStreamsError
        if self._num_by_holder.total() >= MAX_STREAMS:
            raise TooManyStreamsError
        self._num_by_holder[holder] += 1
        return _Stream(events_of(visit, produce, interval_s), partial(self._release, holder))

    def _release(self, holder: UUID) -> None:
        self._num_by_holder[holder] -= 1
        self._num_by_holder += Counter()  # which keeps those above 0


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


async def events_of(visit: "Visit", produce: Produce, interval_s: float) -> abc.AsyncIterator[str]:
    """As they are written on the wire: what is new, what is wrong, and what ends it."""
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
