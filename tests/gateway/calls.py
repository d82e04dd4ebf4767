"""Calls about generations that were made before, for tests."""

import grpc

from evenflow.inference.v1 import generation_pb2 as pb
from evenflow.inference.v1 import generation_pb2_grpc
from tests.gateway.world import Tenant


def get(tenant: Tenant, **name):
    stub = generation_pb2_grpc.GenerationServiceStub(tenant.channel)
    return stub.GetGeneration(pb.GetGenerationRequest(**name), metadata=tenant.metadata)


def watch(tenant: Tenant, after_sequence: int = 0, **name):
    stub = generation_pb2_grpc.GenerationServiceStub(tenant.channel)
    request = pb.WatchGenerationRequest(after_sequence=after_sequence, **name)
    return stub.WatchGeneration(request, metadata=tenant.metadata)


async def updates(call) -> list[pb.StreamGenerateResponse]:
    """What a watch tells, to its end."""
    return [response.update async for response in call]


def text_of(messages) -> str:
    return "".join(message.token_delta.text for message in messages)


async def rest_of(stream) -> list[pb.StreamGenerateResponse]:
    """What a stream that was read from still says."""
    messages = []
    while (message := await stream.read()) is not grpc.aio.EOF:
        messages.append(message)
    return messages
