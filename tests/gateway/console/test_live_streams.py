"""Streams of events: as many as there may be, whoever asks for them at once."""

import asyncio
from contextlib import suppress
from types import SimpleNamespace

import pytest

from gateway.console import live
from gateway.console.live import LiveStreams, TooManyStreamsError
from gateway.errors import StoreUnavailableError
from gateway.errors_auth import KeyRevokedError


async def renew() -> None:
    pass


async def figures() -> str:
    return "<p id='now'>1</p>"


VISIT = SimpleNamespace(renew=renew)
SCOPE = {"type": "http", "asgi": {"spec_version": "2.4"}}


async def test_streams_that_nobody_has_read_from_yet_are_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live, "MAX_STREAMS", 2)
    streams = LiveStreams()
    opened = [streams.respond(VISIT, figures) for _ in range(2)]

    with pytest.raises(TooManyStreamsError):
        streams.respond(VISIT, figures)
    assert len(opened) == 2


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
            await streams.respond(VISIT, figures)(SCOPE, receive, send)


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

    events = live._events(SimpleNamespace(renew=renew_or_not), figures, interval_s=0)
    kinds = [event.split()[1] async for event in events]

    assert kinds == ["fragment", "trouble", "fragment", "end"]
