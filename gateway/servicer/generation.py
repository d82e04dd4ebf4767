"""GenerationService: the RPCs. What they share, from validation to settlement, is behind `Launcher`.

A generation outlives its RPC by the moments that its settlement takes: when the last RPC that reads it ends early, by
disconnect, cancel or deadline, the engine is told to stop, unless the request asked to go on without a reader.
"""

# ruff: noqa: N802 - the names are the protocol's

from collections import abc
from contextlib import aclosing

import grpc

from evenflow.inference.v1 import generation_pb2 as pb
from evenflow.inference.v1.generation_pb2_grpc import GenerationServiceServicer, add_GenerationServiceServicer_to_server
from gateway.auth import current_principal
from gateway.servicer.check import Check
from gateway.servicer.launch import Launcher
from gateway.servicer.limits_snapshot import tell
from gateway.servicer.lookup import Lookup
from gateway.servicer.outcome import Delta
from gateway.servicer.prompt import encode
from gateway.servicer.quota import forecast_to_pb
from gateway.servicer.shown import (
    end_to_pb,
    event_to_pb,
    response_to_pb,
    stored_response_to_pb,
    stored_stream_to_pb,
)
from gateway.servicer.validation import model_name, prompt_from_pb
from gateway.store.generations import StoredUsage

SERVICE = pb.DESCRIPTOR.services_by_name["GenerationService"].full_name

Context = grpc.aio.ServicerContext[object, object]


class GenerationServicer(GenerationServiceServicer):
    """The service over one gateway's engines."""

    def __init__(self, launcher: Launcher, lookup: Lookup) -> None:
        self._launcher = launcher
        self._lookup = lookup

    def add_to(self, server: grpc.aio.Server) -> None:
        """`server` offers the service."""
        add_GenerationServiceServicer_to_server(self, server)

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:
        served = await self._launcher.launch(request.spec, context.time_remaining())
        if isinstance(served, StoredUsage):
            return stored_response_to_pb(served)
        tell(served)  # if it fails, in the trailers
        with served.reading(whole=True) as reader:
            async with aclosing(reader.messages()) as messages:
                deltas = [event async for _, event in messages if isinstance(event, Delta)]
        response = response_to_pb(served, deltas)
        tell(served)  # now of how long it waited, too
        return response

    async def StreamGenerate(
        self, request: pb.StreamGenerateRequest, context: Context
    ) -> abc.AsyncIterator[pb.StreamGenerateResponse]:
        served = await self._launcher.launch(request.spec, context.time_remaining(), reports_queue=True)
        if isinstance(served, StoredUsage):
            for message in stored_stream_to_pb(served):
                yield message
            return
        tell(served)
        sequence = 0
        with served.reading() as reader:
            async with aclosing(reader.messages()) as messages:
                async for sequence, event in messages:
                    yield event_to_pb(sequence, event, served)
            yield end_to_pb(sequence + 1, served)

    async def GetGeneration(self, request: pb.GetGenerationRequest, context: Context) -> pb.GetGenerationResponse:
        return await self._lookup.state(request)

    async def WatchGeneration(
        self, request: pb.WatchGenerationRequest, context: Context
    ) -> abc.AsyncIterator[pb.WatchGenerationResponse]:
        async with aclosing(self._lookup.watch(request)) as responses:
            async for response in responses:
                yield response

    async def CancelGeneration(
        self, request: pb.CancelGenerationRequest, context: Context
    ) -> pb.CancelGenerationResponse:
        num_cancelled = await self._lookup.cancel(request.generation_ids)
        return pb.CancelGenerationResponse(cancelled_count=num_cancelled)

    async def CountTokens(self, request: pb.CountTokensRequest, context: Context) -> pb.CountTokensResponse:
        check = Check("")
        name = model_name(request.model, check.at("model"))
        prompt = prompt_from_pb(request, request.WhichOneof("prompt"), check)
        check.finish()
        model = self._launcher.models.resolve(name, current_principal().model_grants, "model")
        return pb.CountTokensResponse(input_tokens=len(await encode(prompt, model, "")))

    async def CheckAdmission(self, request: pb.CheckAdmissionRequest, context: Context) -> pb.CheckAdmissionResponse:
        return forecast_to_pb(await self._launcher.forecast(request.spec))
