"""`GenerateMany` of an engine that has `Generate`: each call as if it had a stream of its own."""

import asyncio
from collections import abc

import grpc
from google.rpc import error_details_pb2, status_pb2

from evenflow.engine.v1 import engine_pb2 as pb

DETAILS = "grpc-status-details-bin"


class CallEndedError(Exception):
    """What `abort` raises in the transport's own context, too."""


class OneOfMany:
    """The context of one call."""

    def __init__(self, stream: "ManyStream", first: pb.CallRequest) -> None:
        self.requests: asyncio.Queue[pb.GenerateRequest] = asyncio.Queue()
        self.has_finished = False
        self._stream = stream
        self._call_id = first.call_id
        trace = (("traceparent", first.traceparent), ("tracestate", first.tracestate))
        self._metadata = tuple((name, value) for name, value in trace if value)

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    async def write(self, response: pb.GenerateResponse) -> None:
        self.has_finished = self.has_finished or response.HasField("finished")
        await self._stream.write(pb.CallResponse(call_id=self._call_id, responses=[response]))

    async def abort_with_status(self, status) -> None:
        found = dict(status.trailing_metadata)[DETAILS]
        info = error_details_pb2.ErrorInfo()
        status_pb2.Status.FromString(found).details[0].Unpack(info)
        await self.refuse(status.code.value[0], status.details, info.reason, dict(info.metadata))
        raise CallEndedError

    async def abort(self, code, details: str = "") -> None:
        await self.refuse(code.value[0], details)
        raise CallEndedError

    async def requests_to_come(self) -> abc.AsyncIterator[pb.GenerateRequest]:
        while True:
            yield await self.requests.get()

    async def refuse(self, code: int, message: str, reason: str = "", metadata: dict[str, str] | None = None) -> None:
        refusal = pb.CallRefusal(code=code, message=message, reason=reason, metadata=metadata or {})
        await self._stream.write(pb.CallResponse(call_id=self._call_id, refusal=refusal))


class ManyStream:
    """One stream. What waits while a message is being written is one message. `heard` gets every message that comes."""

    def __init__(self, generate, context, heard: list[pb.GenerateManyRequest]) -> None:
        self._generate = generate
        self._context = context
        self._heard = heard
        self._open: dict[int, tuple[OneOfMany, asyncio.Task[None]]] = {}
        self._waiting: list[pb.CallResponse] = []
        self._taken = asyncio.Event()
        self._has_mail = asyncio.Event()

    async def serve(self, requests) -> None:
        writer = asyncio.create_task(self._write_forever())
        try:
            async for message in requests:
                self._heard.append(message)
                for asked in message.calls:
                    self._take(asked)
            while self._open:
                await asyncio.wait([task for _, task in self._open.values()])
        finally:
            tasks = [writer, *(task for _, task in self._open.values())]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def write(self, response: pb.CallResponse) -> None:
        """Return when it is on its way."""
        self._waiting.append(response)
        self._has_mail.set()
        await self._taken.wait()

    def _take(self, asked: pb.CallRequest) -> None:
        known = self._open.get(asked.call_id)
        if known is None and asked.request.HasField("start"):
            call = OneOfMany(self, asked)
            task = asyncio.create_task(self._run(call))
            task.add_done_callback(lambda _: self._open.pop(asked.call_id, None))
            self._open[asked.call_id] = known = call, task
        if known is None:
            return
        call, task = known
        if asked.abandoned:
            task.cancel()
        else:
            call.requests.put_nowait(asked.request)

    async def _run(self, call: OneOfMany) -> None:
        serving = self._generate(call.requests_to_come(), call)
        try:
            if hasattr(serving, "__aiter__"):
                async for response in serving:
                    await call.write(response)
            else:
                await serving
        except CallEndedError:
            return
        except Exception as error:
            await call.refuse(grpc.StatusCode.UNKNOWN.value[0], repr(error))
            raise
        if not call.has_finished:
            await call.refuse(grpc.StatusCode.CANCELLED.value[0], "the script has ended")

    async def _write_forever(self) -> None:
        while True:
            await self._has_mail.wait()
            self._has_mail.clear()
            told, self._waiting = self._waiting, []
            taken, self._taken = self._taken, asyncio.Event()
            taken.set()
            await self._context.write(pb.GenerateManyResponse(calls=told))
