"""A page that is sent while the work that it tells of goes on, and ends with the work's result.

No script and no second request: the browser shows what has arrived. When the reader leaves, the work is cancelled, so
that nothing runs on for nobody, and nothing has to be kept for a later request that another process may get.
"""

import asyncio
from collections import abc

from starlette.responses import HTMLResponse, Response
from starlette.types import Receive, Scope, Send

Emit = abc.Callable[[str], abc.Awaitable[None]]
Work = abc.Callable[[Emit], abc.Awaitable[None]]


class ProgressivePage(Response):
    """`opening` is sent at once; then `work` sends the rest, piece by piece, all of it HTML. It raises nothing."""

    def __init__(self, opening: HTMLResponse, head: str, work: Work) -> None:
        super().__init__(status_code=opening.status_code)
        self.raw_headers = [each for each in opening.raw_headers if each[0] != b"content-length"]
        # A proxy that gathers the answer before it passes it on would show nothing until the end.
        self.headers["x-accel-buffering"] = "no"
        self._head = head
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})

        async def emit(text: str) -> None:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

        await emit(self._head)
        async with asyncio.TaskGroup() as group:
            working = group.create_task(_until_done(self._work, emit))
            leaving = group.create_task(_until_gone(receive))
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
            working.cancel()
            leaving.cancel()
        if leaving.cancelled():
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_done(work: Work, emit: Emit) -> None:
    await work(emit)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
