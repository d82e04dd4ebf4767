"""What gateways are told of prompts that begin alike: usage, figures of the engine and its tenants, metrics."""

from dataclasses import replace

import pytest

from engine.server.backend import Backend
from engine.server.engine_server import EngineServer
from engine.server.serve import load_policies
from engine.settings import read_settings
from evenflow.engine.v1 import engine_pb2 as pb
from evenflow.engine.v1 import engine_pb2_grpc
from tests.engine.conftest import connected
from tests.engine.fake_runner import CONFIG, MODEL, FakeRunner
from tests.engine.wire import generate, start
from tests.telemetry.test_metric_engine import page_of

PROMPT = list(range(18))


@pytest.fixture
async def caching(tmp_path):
    """An engine that caches prefixes, and a stub of it."""
    settings = read_settings({"listen": f"unix:{tmp_path}/e.sock"})
    server = EngineServer(settings, load_policies(settings), None)
    await server.listen()
    await server.open(lambda: Backend(FakeRunner(), MODEL, replace(CONFIG, enable_prefix_caching=True)))
    async with connected(tmp_path) as channel:
        yield server, engine_pb2_grpc.EngineServiceStub(channel)
    await server.close()


async def cached_tokens(stub, generation_id: str, **fields: object) -> int:
    answer = generate(stub, start(generation_id, prompt=PROMPT, **fields))
    await answer.to_end()
    return answer.finished.usage.cached_prompt_tokens


async def test_a_prompt_that_came_before_is_found_under_its_own_salt_only(caching):
    _, stub = caching

    assert await cached_tokens(stub, "a", cache_salt=b"one") == 0
    assert await cached_tokens(stub, "b", cache_salt=b"two") == 0
    assert await cached_tokens(stub, "c", cache_salt=b"one") == 17


async def test_figures_and_metrics_tell_of_it(caching):
    server, stub = caching
    for name in "ab":
        await cached_tokens(stub, name)

    stats = await stub.GetStats(pb.GetStatsRequest())
    page = await page_of(server.metrics_address)

    assert stats.prefix_caching
    assert (stats.cached_prompt_tokens, stats.tenants[0].cached_prompt_tokens) == (17, 17)
    assert stats.computed_prompt_tokens == stats.tenants[0].prefill_tokens == 2 * len(PROMPT) - 17
    assert stats.cached_device_blocks == stats.tenants[0].cached_blocks == stats.shareable_device_blocks > 0
    assert stats.free_device_blocks == stats.num_device_blocks
    assert page["evenflow_engine_tokens_total", "cached"] == 17
    assert page["evenflow_engine_blocks", "device", "cached"] == stats.cached_device_blocks
    assert page["evenflow_engine_blocks", "device", "free"] == stats.num_device_blocks - stats.cached_device_blocks
    assert page["evenflow_engine_evicted_blocks_total",] == 0
