"""The port by itself: what fails behind it leaves a line and a count, and what does not end is not waited for."""

import asyncio
from collections import abc

import httpx2
import pytest
import pytest_asyncio
import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from gateway.http import door
from gateway.http.door import HttpDoor
from gateway.http.measuring import Measured
from gateway.meters import Meters

COUNT = "http_server_request_duration_seconds_count"


class Pages:
    """An application that has every bug."""

    def __init__(self) -> None:
        self.reached, self.never = asyncio.Event(), asyncio.Event()
        self.is_deaf = False
        paths = {"/before": self.before, "/midway": self.midway, "/stuck": self.stuck}
        self.app = Starlette(routes=[Route(path, serve) for path, serve in paths.items()])

    async def before(self, _request: Request) -> Response:
        raise RuntimeError("a bug before the answer")

    async def midway(self, _request: Request) -> Response:
        return StreamingResponse(self._half())

    async def stuck(self, _request: Request) -> Response:
        self.reached.set()
        try:
            await self.never.wait()
        except asyncio.CancelledError:
            if not self.is_deaf:
                raise
            await self.never.wait()
        return Response()

    async def _half(self) -> abc.AsyncIterator[str]:
        yield "a,b\n"
        raise RuntimeError("a bug in a page")


@pytest.fixture
def pages() -> Pages:
    return Pages()


@pytest.fixture
def meters() -> Meters:
    return Meters()


@pytest_asyncio.fixture
async def port(pages: Pages, meters: Meters, monkeypatch: pytest.MonkeyPatch) -> abc.AsyncIterator[HttpDoor]:
    monkeypatch.setattr(door, "LAST_WAIT_S", 0.05)
    app = Measured(pages.app, pages.app.routes, meters)
    opened = HttpDoor(("127.0.0.1", 0), app, max_connections=10)
    await opened.start()
    yield opened
    await opened.stop(0)


def counted(meters: Meters) -> set[tuple[str, str, str]]:
    """Route, status and error of each request so far."""
    samples = [sample for family in meters.families() for sample in family.samples if sample.name == COUNT]
    labels = ("http_route", "http_response_status_code", "error_type")
    return {tuple(sample.labels[label] for label in labels) for sample in samples}


async def test_what_no_page_catches_leaves_a_line_and_is_counted_as_failed(port: HttpDoor, meters: Meters) -> None:
    async with httpx2.AsyncClient(base_url=f"http://{port.address}") as client:
        with structlog.testing.capture_logs() as lines:
            assert (await client.get("/before")).status_code == 500
            with pytest.raises(httpx2.RemoteProtocolError):
                await client.get("/midway")

    told = [(line["event"], line["route"], str(line["exc_info"])) for line in lines]
    assert told == [
        ("http request failed", "/before", "a bug before the answer"),
        ("http request failed", "/midway", "a bug in a page"),
    ]
    assert counted(meters) == {("/before", "500", "INTERNAL"), ("/midway", "200", "INTERNAL")}


@pytest.mark.parametrize("is_deaf", [False, True])
async def test_a_request_that_does_not_end_is_cancelled_and_not_waited_for(
    port: HttpDoor, pages: Pages, is_deaf: bool
) -> None:
    pages.is_deaf = is_deaf
    async with httpx2.AsyncClient(base_url=f"http://{port.address}") as client:
        asking = asyncio.create_task(client.get("/stuck"))
        await pages.reached.wait()
        with structlog.testing.capture_logs() as lines:
            await port.stop(0.01)
        await asyncio.wait([asking])

    assert isinstance(asking.exception(), httpx2.RemoteProtocolError | httpx2.ReadError)
    assert [(line["event"], line["num_requests"]) for line in lines] == [("http requests do not end", 1)]
    assert len(port._state.tasks) == is_deaf
    pages.never.set()
    await asyncio.gather(*port._state.tasks)
