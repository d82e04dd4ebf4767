"""An engine in this process with a model, a very small one: with grammars, blocks and tokens that are real."""

import contextlib
from collections import abc
from pathlib import Path

from engine.core.config import SchedulerConfig
from engine.model.info import LoadedModel
from engine.model.loader import load_model
from engine.runner.model_runner import ModelRunner
from engine.server.backend import Backend
from engine.server.engine_server import EngineServer
from engine.server.serve import load_policies
from engine.settings import read_settings
from evenflow.engine.v1 import engine_pb2_grpc
from tests.engine.conftest import connected
from tests.model import tiny_llama

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
CONFIG = SchedulerConfig(
    max_num_seqs=16, max_num_batched_tokens=128, block_size=4, num_device_blocks=128, max_model_len=128
)


def small_model(folder: Path) -> LoadedModel:
    tiny_llama.write_folder(folder, tiny_llama.make_model(**SIZES, num_key_value_heads=1))
    return load_model(folder, dtype="float32", device="cpu")


@contextlib.asynccontextmanager
async def serving_model(model: LoadedModel, tmp_path: Path, config: SchedulerConfig = CONFIG) -> abc.AsyncIterator:
    """The server, and a stub of it."""
    settings = read_settings({"listen": f"unix:{tmp_path}/e.sock", "metrics_listen": "off"})
    server = EngineServer(settings, load_policies(settings), None)
    await server.listen()
    try:
        await server.open(lambda: Backend(ModelRunner(model, config), model.info, config))
        async with connected(tmp_path) as channel:
            yield server, engine_pb2_grpc.EngineServiceStub(channel)
        await server.drain(grace_s=5)
    finally:
        await server.close()
