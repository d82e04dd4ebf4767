"""An inference service that says what a test tells it to, and remembers what it was asked."""

import asyncio
from collections import abc
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from evenflow.inference.v1 import generation_pb2 as pb
from evenflow.inference.v1 import model_pb2
from evenflow.inference.v1.generation_pb2_grpc import (
    GenerationServiceServicer,
    add_GenerationServiceServicer_to_server,
)
from evenflow.inference.v1.model_pb2_grpc import ModelServiceServicer, add_ModelServiceServicer_to_server


@dataclass
class InferenceServer(GenerationServiceServicer, ModelServiceServicer):
    """Answers with `pieces`, preempted after each, then ends; or goes on for ever; or refuses with reason and wait."""

    pieces: abc.Sequence[str] = ("Hello", ", you")
    token_ids: abc.Sequence[abc.Sequence[int]] = ((1,), (2,))
    is_endless: bool = False
    refusal: tuple[grpc.StatusCode, str, float] | None = None
    models: abc.Sequence[str] = ()
    tokenizer: model_pb2.GetTokenizerResponse = field(default_factory=model_pb2.GetTokenizerResponse)
    address: str = ""
    specs: list[pb.GenerationSpec] = field(default_factory=list)
    credentials: list[str] = field(default_factory=list)
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)
    was_cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def StreamGenerate(self, request, context):  # noqa: N802 - the protocol's name
        self.specs.append(request.spec)
        self.credentials.append(dict(context.invocation_metadata())["authorization"])
        if self.refusal is not None:
            await refuse(context, *self.refusal)
        try:
            for piece, ids in zip(self.pieces, self.token_ids, strict=False):
                yield pb.StreamGenerateResponse(token_delta=pb.TokenDelta(text=piece, token_ids=ids))
                yield pb.StreamGenerateResponse(preempted=pb.Preempted(reason="fairness", mode="swap"))
                yield pb.StreamGenerateResponse(resumed=pb.Resumed())
            self.has_begun.set()
            if self.is_endless:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise
        finish = pb.Finish(finish_reason=pb.FINISH_REASON_STOP, usage=pb.Usage(output_tokens=len(self.pieces)))
        yield pb.StreamGenerateResponse(finish=finish)

    async def ListModels(self, request, context):  # noqa: N802 - the protocol's name
        return model_pb2.ListModelsResponse(models=[model_pb2.Model(name=name) for name in self.models])

    async def GetTokenizer(self, request, context):  # noqa: N802 - the protocol's name
        if self.refusal is not None:
            await refuse(context, *self.refusal)
        return self.tokenizer


async def refuse(context, code: grpc.StatusCode, reason: str, wait_s: float) -> None:
    details = []
    for detail in (
        ErrorInfo(reason=reason, domain="evenflow"),
        RetryInfo(retry_delay=Duration(nanos=int(wait_s * 1e9) % 10**9, seconds=int(wait_s))),
    ):
        packed = AnyMessage()
        packed.Pack(detail)
        details.append(packed)
    status = Status(code=code.value[0], message="no more for now", details=details)
    await context.abort(code, "no more for now", (("grpc-status-details-bin", status.SerializeToString()),))


@asynccontextmanager
async def serve_inference(servicer: InferenceServer) -> abc.AsyncIterator[InferenceServer]:
    server = grpc.aio.server()
    add_GenerationServiceServicer_to_server(servicer, server)
    add_ModelServiceServicer_to_server(servicer, server)
    servicer.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield servicer
    finally:
        await server.stop(None)
