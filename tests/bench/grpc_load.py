"""A process that calls over gRPC as `load_loops` says.

A job has `address`, `key` (empty: none), `prompt`, `max_tokens`, `is_stream`, and what `load_loops` wants.
"""

import asyncio
import time
from collections import abc
from contextlib import asynccontextmanager

import grpc

from evenflow.inference.v1 import generation_pb2 as pb
from evenflow.inference.v1 import generation_pb2_grpc
from tests.bench.load_loops import Answer, Ask, serve_jobs


@asynccontextmanager
async def asker(job: dict) -> abc.AsyncIterator[Ask]:
    chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content=job["prompt"])])
    stopping = pb.StoppingOptions(max_output_tokens=job["max_tokens"])
    spec = pb.GenerationSpec(chat=chat, stopping=stopping)
    metadata = (("authorization", f"Bearer {job['key']}"),) if job["key"] else ()
    async with grpc.aio.insecure_channel(job["address"]) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)

        async def unary() -> Answer:
            response = await stub.Generate(pb.GenerateRequest(spec=spec), metadata=metadata)
            return _checked(Answer(time.monotonic(), response.usage.output_tokens), job)

        async def stream() -> Answer:
            first_s = num_tokens = 0
            async for response in stub.StreamGenerate(pb.StreamGenerateRequest(spec=spec), metadata=metadata):
                if response.HasField("token_delta"):
                    first_s = first_s or time.monotonic()
                    num_tokens = response.token_delta.output_tokens_so_far
            return _checked(Answer(first_s, num_tokens), job)

        yield stream if job["is_stream"] else unary


def _checked(answer: Answer, job: dict) -> Answer:
    if answer.num_tokens != job["max_tokens"]:
        raise RuntimeError(f"{answer.num_tokens} tokens came where {job['max_tokens']} were asked for")
    return answer


if __name__ == "__main__":
    asyncio.run(serve_jobs(asker))
