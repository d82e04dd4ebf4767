"""Streams of events: as many as there may be, whoever asks for them at once."""

import asyncio
from contextlib import suppress
from types import SimpleNamespace

import pytest

from gateway.console import live
from gateway.console.live import LiveStreams, TooManyStreamsError


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
