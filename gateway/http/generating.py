"""One request of a generating path, from its specs to its answer: whole, or as it is generated.

Each choice is a generation of its own, with its own settlement; all are admitted before one is started. A client that
goes away leaves its readers closed, which is what ends a generation that nobody else reads.
"""

import asyncio
import time
from collections import abc
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pydantic import BaseModel

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.errors import GatewayError
from gateway.http.call import HttpCall
from gateway.http.event_stream import EventStream
from gateway.http.refusals import Header, OutputNotKeptError
from gateway.interceptors.errors import refusal_of
from gateway.servicer.attachment import Served, result_of
from gateway.servicer.launch import Launcher
from gateway.servicer.limits_snapshot import tell, tell_limits
from gateway.servicer.outcome import Delta, Outcome, Queued, Started
from gateway.store.generations import StoredUsage

Ended = TypeVar("Ended")

OVERHEAD = "x-evenflow-overhead-ms"
NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Result:
    """The whole output of one choice, and its end."""

    deltas: tuple[Delta, ...]
    outcome: Outcome

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)


class Wording(Protocol):
    """How a path words its answers. The stream's pieces are whole events; the choices are counted from 0."""

    def whole(self, results: abc.Sequence[Result]) -> BaseModel:
        """The answer in one piece."""
        ...

    def opening(self, choice: int) -> bytes:
        """A choice has begun."""
        ...

    def delta(self, choice: int, delta: Delta) -> bytes:
        """A choice goes on."""
        ...

    def ending(self, choice: int, outcome: Outcome) -> bytes:
        """A choice has ended."""
        ...

    def closing(self, outcomes: abc.Sequence[Outcome]) -> bytes:
        """All have ended well."""
        ...

    def failure(self, error: GatewayError, request_id: str) -> bytes:
        """The stream ends here, for a reason that came too late for a status."""
        ...


@dataclass(frozen=True, slots=True)
class Generating:
    """The generating paths over one gateway's launcher. `heartbeat_s`: the longest silence of a stream."""

    launcher: Launcher
    heartbeat_s: float

    async def answer(
        self,
        call: HttpCall,
        specs: abc.Sequence[pb.GenerationSpec],
        wording_of: abc.Callable[[abc.Sequence[Served]], Wording],
        *,
        is_stream: bool,
    ) -> None:
        """The caller has its answer. Raises GatewayError before it has begun, ClientGoneError."""
        async with call.while_connected():
            choices = _kept(await self.launcher.launch_all(specs, None, reports_queue=is_stream))
            try:
                _tell(choices)
                wording = wording_of(choices)
                if is_stream:
                    await self._stream(call, choices, wording)
                else:
                    await _respond_whole(call, choices, wording)
            finally:
                for served in choices:
                    served.abandon()

    async def _stream(self, call: HttpCall, choices: abc.Sequence[Served], wording: Wording) -> None:
        async with EventStream(call, self.heartbeat_s) as stream:
            try:
                outcomes = await _each([_pump(stream, index, served, wording) for index, served in enumerate(choices)])
            except Exception as error:
                if not stream.has_begun:
                    raise
                call.error = refusal_of(error, call.record)
                await stream.end(wording.failure(call.error, call.record.request_id))
            else:
                await stream.end(wording.closing(outcomes))


async def _respond_whole(call: HttpCall, choices: abc.Sequence[Served], wording: Wording) -> None:
    results = await _each([_collect(served) for served in choices])
    _tell(choices)  # now of how long they waited, too
    body = wording.whole(results).model_dump_json().encode()
    await call.respond(200, body, *_overhead(call, results))


def _tell(choices: abc.Sequence[Served]) -> None:
    """The call's record has the first choice's id, and what the last one left of the limits."""
    tell(choices[0])
    last = choices[-1]
    if last.generation is not None and not last.is_replay:
        tell_limits(last.generation.job.admitted.limits_left)


def _overhead(call: HttpCall, results: abc.Sequence[Result]) -> list[Header]:
    """What the answer took beside the engine's time for the slowest choice."""
    timings = [result.outcome.timings for result in results]
    if None in timings:
        return []
    engine_ns = max(each.queue_ns + each.prefill_ns + each.decode_ns for each in timings if each is not None)
    overhead_ms = (time.monotonic() - call.started_s) * 1000 - engine_ns / NS_PER_MS
    return [(OVERHEAD, f"{max(0.0, overhead_ms):.2f}")]


async def _collect(served: Served) -> Result:
    with served.reading(whole=True) as reader:
        async with aclosing(reader.messages()) as messages:
            deltas = tuple([event async for _, event in messages if isinstance(event, Delta)])
    return Result(deltas, result_of(served.transcript))


async def _pump(stream: EventStream, choice: int, served: Served, wording: Wording) -> Outcome:
    with served.reading() as reader:
        async with aclosing(reader.messages()) as messages:
            async for _, event in messages:
                match event:
                    case Delta():
                        await stream.write(wording.delta(choice, event))
                    case Started():
                        await stream.open()
                        await stream.write(wording.opening(choice))
                    case Queued():
                        await stream.comment(_place(event))
                    case _:
                        pass  # a pause shows as silence, which the heartbeat fills
        outcome = result_of(served.transcript)
        await stream.write(wording.ending(choice, outcome))
        return outcome


async def _each(waits: abc.Sequence[abc.Coroutine[object, object, Ended]]) -> list[Ended]:
    """What each returns. The first that raises ends the others; what it raised is raised here."""
    if len(waits) == 1:
        return [await waits[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(wait) for wait in waits]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


def _kept(launched: list[Served] | StoredUsage) -> list[Served]:
    """Those whose output can be read. Raises OutputNotKeptError where one was made before and is gone."""
    if isinstance(launched, StoredUsage):
        raise OutputNotKeptError(str(launched.generation_id), launched.input_tokens, launched.output_tokens)
    return launched


def _place(queued: Queued) -> str:
    """For whoever looks at the raw stream; clients skip comments."""
    bound = ">" if queued.is_lower_bound else ""
    wait_ns = queued.estimated_wait_ns
    wait = "" if wait_ns is None else f" estimated_wait_ms={wait_ns // 1_000_000}"
    return f"queued position={bound}{queued.position}{wait}"
