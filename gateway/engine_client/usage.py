"""The engine's second witness: what requests used, told until a ledger has it."""

import asyncio
from collections import abc, deque

import grpc

from evenflow.engine.v1 import engine_pb2 as pb
from evenflow.engine.v1 import engine_pb2_grpc
from gateway.engine_client import wire
from gateway.engine_client.messages import WitnessedUsage
from gateway.errors import NoEngineError


class UsageCall:
    """One running `StreamUsage` call. Read by one task; what is written never waits."""

    def __init__(self, stub: "engine_pb2_grpc.EngineServiceAsyncStub", ledger_id: str) -> None:
        self._ledger_id = ledger_id
        self._outbox: deque[pb.StreamUsageRequest] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._has_failed_write = False
        self._call = stub.StreamUsage()

    async def told(self) -> abc.AsyncGenerator[WitnessedUsage, None]:
        """What the ledger is owed, until the engine stops. Raises NoEngineError if it is away, or does not do this."""
        self._send(pb.StreamUsageRequest(ledger_id=self._ledger_id))
        try:
            async for response in self._call:
                yield wire.witnessed_from_pb(response)
        except grpc.aio.AioRpcError as error:
            raise NoEngineError from error

    def acknowledge(self, sequence: int) -> None:
        """The ledger has everything up to `sequence`."""
        self._send(pb.StreamUsageRequest(after_sequence=sequence))

    def note_kept(self, generation_id: str, num_kept_tokens: int) -> None:
        """So much of the output of a request that ended belongs to it."""
        kept = pb.KeptOutput(generation_id=generation_id, output_tokens=num_kept_tokens)
        self._send(pb.StreamUsageRequest(kept_output=kept))

    def abandon(self) -> None:
        """The call is over, whatever its state."""
        if self._writer is not None:
            self._writer.cancel()
        self._call.cancel()
        if self._has_failed_write:
            # As in EngineCall: the transport must be told twice.
            self._call._cython_call.cancel("abandoned")  # type: ignore[attr-defined]  # no public way to it

    def _send(self, message: pb.StreamUsageRequest) -> None:
        self._outbox.append(message)
        # The transport takes one write at a time.
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all())

    async def _write_all(self) -> None:
        while self._outbox:
            try:
                await self._call.write(self._outbox.popleft())
            except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
                self._has_failed_write = True  # the reader hears why
                self._outbox.clear()
