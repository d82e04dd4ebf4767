"""A process that stands in for the engine, for what an empty hop forwards to, and for a collector of traces.

`python -m tests.bench.fake_upstream DIRECTORY` serves on a Unix socket there, tells a line of JSON, and ends with its
stdin. Engine and generation service give the same answers with the same delays, those that the prompt asks for.
"""

import asyncio
import json
import sys
from pathlib import Path

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from evenflow.engine.v1 import engine_pb2
from evenflow.inference.v1 import generation_pb2 as pb
from evenflow.inference.v1 import generation_pb2_grpc
from tests.bench.load_shape import Shape
from tests.gateway.fake_engine import FakeEngine


class ShapedEngine(FakeEngine):
    """Answers as the prompt asks, and remembers nothing."""

    async def Generate(self, request_iterator, context):  # noqa: N802 - the name is the protocol's
        start = (await anext(aiter(request_iterator))).start
        shape = Shape.read(bytes(start.prompt_token_ids).decode())
        yield engine_pb2.GenerateResponse(accepted=engine_pb2.Accepted(protocol_version=1))
        yield engine_pb2.GenerateResponse(admitted=engine_pb2.Admitted())
        async for text in shape.chunks():
            yield engine_pb2.GenerateResponse(token_chunk=engine_pb2.TokenChunk(token_ids=text.encode()))
        usage = engine_pb2.Usage(prompt_tokens=len(start.prompt_token_ids), output_tokens=shape.num_tokens)
        finished = engine_pb2.Finished(reason=engine_pb2.FINISH_REASON_LENGTH, usage=usage)
        yield engine_pb2.GenerateResponse(finished=finished)


class DirectService(generation_pb2_grpc.GenerationServiceServicer):
    """What callers see of it without a gateway."""

    async def Generate(self, request, context):  # noqa: N802
        text = "".join([chunk async for chunk in Shape.read(_prompt(request.spec)).chunks()])
        usage = pb.Usage(output_tokens=len(text))
        return pb.GenerateResponse(model="bytes", outputs=[pb.Output(text=text)], usage=usage)

    async def StreamGenerate(self, request, context):  # noqa: N802
        yield pb.StreamGenerateResponse(sequence=1, admission=pb.Admission(model="bytes"))
        sequence, num_tokens = 1, 0
        async for text in Shape.read(_prompt(request.spec)).chunks():
            sequence, num_tokens = sequence + 1, num_tokens + len(text)
            delta = pb.TokenDelta(text=text, output_tokens_so_far=num_tokens)
            yield pb.StreamGenerateResponse(sequence=sequence, token_delta=delta)
        finish = pb.Finish(usage=pb.Usage(output_tokens=num_tokens))
        yield pb.StreamGenerateResponse(sequence=sequence + 1, finish=finish)


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans and drops them."""

    async def Export(self, request, context):  # noqa: N802
        return trace_service_pb2.ExportTraceServiceResponse()


def _prompt(spec: pb.GenerationSpec) -> str:
    return spec.chat.messages[-1].content if spec.HasField("chat") else spec.text


async def serve(directory: Path) -> None:
    engine = ShapedEngine(directory / "upstream.sock")
    await engine.start()
    server = grpc.aio.server()
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(DirectService(), server)
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Collector(), server)
    direct = f"unix:{directory / 'direct.sock'}"
    server.add_insecure_port(direct)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    addresses = {"engine": engine.address, "direct": direct, "direct_tcp": f"127.0.0.1:{port}"}
    print(json.dumps(addresses), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)
    await engine.stop()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
