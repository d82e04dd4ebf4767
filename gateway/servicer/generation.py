"""GenerationService: the RPCs. What they share, from validation to settlement, is behind `Launcher`.

A generation outlives its RPC by the moments that its settlement takes: an RPC that ends early, by disconnect, cancel or
deadline, tells the engine to stop and leaves.
"""

# ruff: noqa: N802 - the names are the protocol's

from collections import abc
from contextlib import aclosing

import grpc

from evenflow.inference.v1 import generation_pb2 as pb
from evenflow.inference.v1.generation_pb2_grpc import GenerationServiceServicer, add_GenerationServiceServicer_to_server
from gateway.auth import current_principal
from gateway.errors import FieldViolation, InvalidFieldError
from gateway.servicer.convert import (
    delta_to_pb,
    finish_reason_to_pb,
    finish_to_pb,
    logprobs_to_pb,
    timings_to_pb,
    usage_to_pb,
)
from gateway.servicer.ending import EndCause
from gateway.servicer.launch import Launcher
from gateway.servicer.outcome import Continued, Delta, Event, Outcome, Paused, Started
from gateway.servicer.prompt import encode
from gateway.servicer.relay import Generation
from gateway.servicer.validation import Check, model_name, prompt_from_pb

SERVICE = pb.DESCRIPTOR.services_by_name["GenerationService"].full_name
MAX_CANCELLED_IDS = 1000

Context = grpc.aio.ServicerContext[object, object]


class GenerationServicer(GenerationServiceServicer):
    """The service over one gateway's engines."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def add_to(self, server: grpc.aio.Server) -> None:
        """`server` offers the service."""
        add_GenerationServiceServicer_to_server(self, server)

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:
        generation = await self._launcher.launch(request.spec, context.time_remaining())
        try:
            async with aclosing(generation.events()) as events:
                deltas = [event async for event in events if isinstance(event, Delta)]
        finally:
            generation.cancel(EndCause.CLIENT)
        outcome = _result(generation)
        return pb.GenerateResponse(
            generation_id=generation.job.generation_id,
            model=generation.job.model.info.name,
            outputs=[_output(generation, deltas, outcome)],
            usage=usage_to_pb(outcome.usage),
            timings=timings_to_pb(outcome.timings),
        )

    async def StreamGenerate(
        self, request: pb.StreamGenerateRequest, context: Context
    ) -> abc.AsyncIterator[pb.StreamGenerateResponse]:
        generation = await self._launcher.launch(request.spec, context.time_remaining())
        sequence = 0
        try:
            async with aclosing(generation.events()) as events:
                async for event in events:
                    sequence += 1
                    yield _event_to_pb(sequence, event, generation)
            yield pb.StreamGenerateResponse(sequence=sequence + 1, finish=finish_to_pb(_result(generation)))
        finally:
            generation.cancel(EndCause.CLIENT)

    async def CancelGeneration(
        self, request: pb.CancelGenerationRequest, context: Context
    ) -> pb.CancelGenerationResponse:
        if len(request.generation_ids) > MAX_CANCELLED_IDS:
            raise InvalidFieldError(FieldViolation("generation_ids", f"must have at most {MAX_CANCELLED_IDS} entries"))
        num_cancelled = self._launcher.live.cancel(current_principal(), request.generation_ids)
        return pb.CancelGenerationResponse(cancelled_count=num_cancelled)

    async def CountTokens(self, request: pb.CountTokensRequest, context: Context) -> pb.CountTokensResponse:
        check = Check("")
        name = model_name(request.model, check.at("model"))
        prompt = prompt_from_pb(request, request.WhichOneof("prompt"), check)
        check.finish()
        model = self._launcher.models.resolve(name, current_principal().model_grants, "model")
        return pb.CountTokensResponse(input_tokens=len(await encode(prompt, model, "")))


def _result(generation: Generation) -> Outcome:
    """The end of a generation whose events are all read. Raises the error that stands for a result."""
    outcome = generation.outcome
    assert outcome is not None, "its events have ended"
    if outcome.error is not None:
        raise outcome.error
    return outcome


def _output(generation: Generation, deltas: list[Delta], outcome: Outcome) -> pb.Output:
    ask, tokenizer = generation.job.ask, generation.job.model.tokenizer
    return pb.Output(
        text="".join(delta.text for delta in deltas),
        token_ids=[token_id for delta in deltas for token_id in delta.token_ids]
        if ask.output.returns_token_ids
        else (),
        logprobs=[entry for delta in deltas for entry in logprobs_to_pb(delta, tokenizer)],
        finish_reason=finish_reason_to_pb(outcome.finish_reason),
    )


def _event_to_pb(sequence: int, event: Event, generation: Generation) -> pb.StreamGenerateResponse:
    job = generation.job
    match event:
        case Delta():
            delta = delta_to_pb(event, job.model.tokenizer, with_ids=job.ask.output.returns_token_ids)
            return pb.StreamGenerateResponse(sequence=sequence, token_delta=delta)
        case Started():
            admission = pb.Admission(
                generation_id=job.generation_id,
                model=job.model.info.name,
                input_tokens=job.admitted.demand.num_input_tokens,
                reserved_tokens=job.admitted.reserved_tokens,
            )
            return pb.StreamGenerateResponse(sequence=sequence, admission=admission)
        case Paused():
            paused = pb.Preempted(reason=event.reason, mode=event.mode)
            return pb.StreamGenerateResponse(sequence=sequence, preempted=paused)
        case Continued():
            return pb.StreamGenerateResponse(sequence=sequence, resumed=pb.Resumed())
