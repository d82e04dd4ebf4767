"""An engine in this process, over a real Unix socket, with everything real but the model."""

import contextlib

import grpc
import pytest

from engine.server.backend import Backend
from engine.server.engine_server import EngineServer
from engine.server.serve import load_policies
from engine.settings import read_settings
from evenflow.engine.v1 import engine_pb2_grpc
from tests.engine.fake_runner import CONFIG, MODEL, FakeRunner


@contextlib.asynccontextmanager
async def running(runner, tmp_path, tracing=None):
    """An EngineServer that serves on `tmp_path`/e.sock."""
    settings = read_settings({"listen": f"unix:{tmp_path}/e.sock"})
    server = EngineServer(settings, load_policies(settings), tracing)
    await server.listen()
    await server.open(lambda: Backend(runner, MODEL, CONFIG))
    try:
        yield server
    finally:
        runner.release()
        await server.close()


@contextlib.asynccontextmanager
async def connected(tmp_path):
    """A channel of its own to the engine of `tmp_path`."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/e.sock", options) as channel:
        yield channel


@contextlib.asynccontextmanager
async def serving(runner, tmp_path, tracing=None):
    """A stub of an engine that serves; drained at the end."""
    async with running(runner, tmp_path, tracing) as server, connected(tmp_path) as channel:
        yield engine_pb2_grpc.EngineServiceStub(channel)
        await server.drain(grace_s=5)


@pytest.fixture
def runner():
    return FakeRunner()


@pytest.fixture
async def server(runner, tmp_path):
    async with running(runner, tmp_path) as server:
        yield server


@pytest.fixture
async def channel(server, tmp_path):
    async with connected(tmp_path) as channel:
        yield channel


@pytest.fixture
def stub(channel):
    return engine_pb2_grpc.EngineServiceStub(channel)
