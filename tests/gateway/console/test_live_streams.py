"""Streams of events: as many as there may be, whoever asks for them at once."""

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from uuid import UUID

import pytest
from starlette.requests import ClientDisconnect

from gateway.console import live
from gateway.console.live import LiveStreams, TooManyOwnStreamsError, TooManyStreamsError, events_of
from gateway.errors import StoreUnavailableError
from gateway.errors_auth import KeyRevokedError


async def renew() -> None:
    pass


async def figures() -> str:
    return "<p id='now'>1</p>"


def visit_of(number: int, renew=renew) -> SimpleNamespace:
    """Of the visitor of this number."""
    return SimpleNamespace(renew=renew, principal=SimpleNamespace(key_id=UUID(int=number)))


async def refuse(_message) -> None:
    raise OSError("gone")


SCOPE = {"type": "http", "asgi": {"spec_version": "2.4"}}


async def test_streams_that_nobody_has_read_from_yet_are_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live, "MAX_STREAMS", 2)
    streams = LiveStreams()
    opened = [streams.respond(visit_of(number), figures) for number in range(2)]

    with pytest.raises(TooManyStreamsError):
        streams.respond(visit_of(2), figures)
    assert len(opened) == 2


async def test_one_visitor_leaves_places_for_the_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live, "MAX_STREAMS_EACH", 3)
    streams = LiveStreams()
    opened = [streams.respond(visit_of(1), figures) for _ in range(3)]

    with pytest.raises(TooManyOwnStreamsError):
        streams.respond(visit_of(1), figures)
    opened.append(streams.respond(visit_of(2), figures))
    with suppress(ClientDisconnect):
        await opened[0](SCOPE, asyncio.Event().wait, refuse)
    opened.append(streams.respond(visit_of(1), figures))
    with pytest.raises(TooManyOwnStreamsError):
        streams.respond(visit_of(1), figures)


@pytest.mark.parametrize("fails_at", ["http.response.start", "http.response.body"])
async def test_a_stream_that_is_left_before_or_after_its_first_event_gives_its_place_back(
    monkeypatch: pytest.MonkeyPatch, fails_at: str
):
    monkeypatch.setattr(live, "MAX_STREAMS", 1)
    streams = LiveStreams()

    async def send(message) -> None:
        if message["type"] == fails_at:
            raise OSError("gone")

    async def receive():
        await asyncio.Event().wait()

    for _ in range(3):
        with suppress(Exception):
            await streams.respond(visit_of(1), figures)(SCOPE, receive, send)


async def test_what_is_as_before_is_sent_again_after_a_trouble_which_is_told_once():
    rounds = iter(["well", "away", "away", "well"])

    async def renew_or_not() -> None:
        match next(rounds, "over"):
            case "away":
                raise StoreUnavailableError
            case "over":
                raise KeyRevokedError
            case _:
                pass

    events = events_of(visit_of(1, renew_or_not), figures, interval_s=0)
    kinds = [event.split()[1] async for event in events]

    assert kinds == ["fragment", "trouble", "fragment", "end"]
