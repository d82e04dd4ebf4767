"""One request of a generating path, from its specs to its answer: whole, or as it is generated.

Each choice is a generation of its own, with its own settlement, but for those of a beam search, which are one together.
All are admitted before one is started. A client that goes away leaves its readers closed, which is what ends a
generation that nobody else reads.
"""

import asyncio
import time
from collections import abc
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.http.call import HttpCall
from gateway.http.choices import ChoiceStream, Place, Wording, places
from gateway.http.event_stream import EventStream
from gateway.http.refusals import Header, OutputNotKeptError, error_object
from gateway.interceptors.errors import refusal_of
from gateway.servicer.attachment import Served, result_of
from gateway.servicer.launch import Launcher
from gateway.servicer.limits_snapshot import tell, tell_limits
from gateway.servicer.outcome import Delta, Outcome, Queued, Started
from gateway.store.generations import StoredUsage

Ended = TypeVar("Ended")

OVERHEAD = "x-evenflow-overhead-ms"
NS_PER_MS = 1_000_000

Placed = tuple[Place, Served]
"""A generation, and which choices it makes."""


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
            generations = _kept(await self.launcher.launch_all(specs, None, reports_queue=is_stream))
            try:
                _tell(generations)
                wording = wording_of(generations)
                placed = list(zip(places(specs), generations, strict=True))
                if is_stream:
                    await self._stream(call, placed, wording)
                else:
                    await _respond_whole(call, placed, wording)
            finally:
                for served in generations:
                    served.abandon()

    async def _stream(self, call: HttpCall, placed: abc.Sequence[Placed], wording: Wording) -> None:
        async with EventStream(call, self.heartbeat_s) as stream:
            try:
                outcomes = await _each([_pump(stream, served, ChoiceStream(at, wording)) for at, served in placed])
            except Exception as error:
                if not stream.has_begun:
                    raise
                call.error = refusal_of(error, call.record)
                await stream.end(wording.failure(error_object(call.error, call.record.request_id, call.renamed)))
            else:
                await stream.end(wording.closing(outcomes))


async def _respond_whole(call: HttpCall, placed: abc.Sequence[Placed], wording: Wording) -> None:
    collected = await _each([_collect(served) for _, served in placed])
    _tell([served for _, served in placed])  # now of how long they waited, too
    outcomes = [outcome for _, outcome in collected]
    results = [
        result
        for (at, _), (deltas, outcome) in zip(placed, collected, strict=True)
        for result in at.results(deltas, outcome)
    ]
    body = wording.whole(results, outcomes).model_dump_json().encode()
    await call.respond(200, body, *_overhead(call, outcomes))


def _tell(generations: abc.Sequence[Served]) -> None:
    """The call's record has the first one's id, and what the last one left of the limits."""
    tell(generations[0])
    last = generations[-1]
    if last.generation is not None and not last.is_replay:
        tell_limits(last.generation.job.admitted.limits_left)


def _overhead(call: HttpCall, outcomes: abc.Sequence[Outcome]) -> list[Header]:
    """What the answer took beside the engine's time for the slowest generation."""
    timings = [outcome.timings for outcome in outcomes]
    if None in timings:
        return []
    engine_ns = max(each.queue_ns + each.prefill_ns + each.decode_ns for each in timings if each is not None)
    overhead_ms = (time.monotonic() - call.started_s) * 1000 - engine_ns / NS_PER_MS
    return [(OVERHEAD, f"{max(0.0, overhead_ms):.2f}")]


async def _collect(served: Served) -> tuple[tuple[Delta, ...], Outcome]:
    with served.reading(whole=True) as reader:
        async with aclosing(reader.messages()) as messages:
            deltas = tuple([event async for _, event in messages if isinstance(event, Delta)])
    return deltas, result_of(served)


async def _pump(stream: EventStream, served: Served, choices: ChoiceStream) -> Outcome:
    with served.reading() as reader:
        async with aclosing(reader.messages()) as messages:
            async for _, event in messages:
                match event:
                    case Delta():
                        await stream.write(choices.went_on(event))
                    case Started():
                        await stream.open()
                        await stream.write(choices.started())
                    case Queued():
                        await stream.comment(_place(event))
                    case _:
                        pass  # a pause shows as silence, which the heartbeat fills
        outcome = result_of(served)
        await stream.write(choices.ended(outcome))
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
