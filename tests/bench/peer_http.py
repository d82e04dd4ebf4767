"""The HTTP side of `gateway_peer`, run by the peer's own Python: it needs aiohttp, which comes with the peer.

`serve`: an OpenAI chat completions server with the delays and token counts of `fake_upstream`; tells its address in a
line of JSON and ends with its stdin. `load`: calls as `load_loops` says; a job is one of `grpc_load`.
"""

import asyncio
import json
import sys
import time
from collections import abc
from contextlib import asynccontextmanager

from aiohttp import ClientSession, TCPConnector, web

from tests.bench.load_loops import Answer, Ask, serve_jobs
from tests.bench.load_shape import Shape

MODEL = "bytes"
PATH = "/v1/chat/completions"


async def complete(request: web.Request) -> web.Response:
    """The answer that the last message asks for."""
    prompt = (await request.json())["messages"][-1]["content"]
    shape = Shape.read(prompt)
    text = "".join([chunk async for chunk in shape.chunks()])
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}
    usage = {
        "prompt_tokens": len(prompt),
        "completion_tokens": shape.num_tokens,
        "total_tokens": len(prompt) + shape.num_tokens,
    }
    answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL}
    return web.json_response({**answer, "choices": [choice], "usage": usage})


async def serve() -> None:
    application = web.Application()
    application.router.add_post(PATH, complete)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(json.dumps({"address": f"http://127.0.0.1:{runner.addresses[0][1]}"}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


@asynccontextmanager
async def asker(job: dict) -> abc.AsyncIterator[Ask]:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": job["prompt"]}],
        "max_tokens": job["max_tokens"],
    }
    headers = {"authorization": f"Bearer {job['key']}"} if job["key"] else {}
    url = job["address"] + PATH
    async with ClientSession(headers=headers, connector=TCPConnector(limit=0)) as session:

        async def ask() -> Answer:
            async with session.post(url, json=body) as response:
                answer = await response.json()
            num_tokens = answer["usage"]["completion_tokens"] if response.ok else None
            if num_tokens != job["max_tokens"]:
                raise RuntimeError(f"{response.status}: {answer}")
            return Answer(time.monotonic(), num_tokens)

        yield ask


if __name__ == "__main__":
    asyncio.run(serve() if sys.argv[1] == "serve" else serve_jobs(asker))
