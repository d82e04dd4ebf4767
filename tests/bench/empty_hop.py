"""A process that does nothing but forward: what one more hop costs before a gateway does anything.

`python -m tests.bench.empty_hop TARGET` tells its address in a line of JSON, forwards the two calls that generate as
bytes, and ends with its stdin.
"""

import asyncio
import json
import sys

import grpc

SERVICE = "evenflow.inference.v1.GenerationService"


def handlers(channel: grpc.aio.Channel) -> grpc.GenericRpcHandler:
    """Both calls, without a serializer on either side."""
    unary = channel.unary_unary(f"/{SERVICE}/Generate")
    stream = channel.unary_stream(f"/{SERVICE}/StreamGenerate")

    async def generate(request: bytes, context):
        return await unary(request)

    async def stream_generate(request: bytes, context):
        async for response in stream(request):
            yield response

    by_name = {
        "Generate": grpc.unary_unary_rpc_method_handler(generate),
        "StreamGenerate": grpc.unary_stream_rpc_method_handler(stream_generate),
    }
    return grpc.method_handlers_generic_handler(SERVICE, by_name)


async def serve(target: str) -> None:
    async with grpc.aio.insecure_channel(target) as channel:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((handlers(channel),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(json.dumps({"address": f"127.0.0.1:{port}"}), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await server.stop(0)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
