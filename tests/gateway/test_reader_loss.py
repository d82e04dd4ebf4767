"""A message that can be sent no more has lost its reader: no failure of ours."""

import asyncio
from types import SimpleNamespace

import grpc
import pytest
import structlog

from gateway.errors import NoEngineError
from gateway.interceptors.call import Call
from gateway.interceptors.errors import errors_as_status
from gateway.interceptors.pipeline import _relay


class DeadContext:
    """Of a call whose connection has gone, of which the transport has not told yet."""

    def __init__(self, *dead: str) -> None:
        self._dead = dead

    def __getattr__(self, name: str):
        async def send(*_arguments) -> None:
            if name in self._dead:
                raise grpc.aio.InternalError('Failed "execute_batch"')

        return (lambda: ()) if name == "invocation_metadata" else send


@pytest.mark.parametrize("dead", ["write", "send_initial_metadata", "abort"])
async def test_a_reader_that_hung_up_is_a_cancellation_and_no_failure(dead: str) -> None:
    call = Call.begin("/s/m", DeadContext(dead))
    closed = []

    async def behavior(_request, _context):
        try:
            yield SimpleNamespace()
            raise NoEngineError
        finally:
            closed.append(True)

    with structlog.testing.capture_logs() as lines, pytest.raises(asyncio.CancelledError):
        async with errors_as_status(call):
            await _relay(behavior, None, call)

    assert closed == [True]
    assert [line["event"] for line in lines if line["log_level"] == "error"] == []
