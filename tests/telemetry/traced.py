"""A gateway and an engine in this process, real but for the model, whose spans go to a collector over OTLP."""

import re
from collections import Counter, abc
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine import semconv as engine_semconv
from engine.core.config import SchedulerConfig
from engine.server.backend import Backend
from engine.server.engine_server import EngineServer
from engine.server.serve import load_policies
from engine.settings import read_settings
from engine.telemetry import start_tracing
from gateway import semconv
from gateway.store.db import Database
from gateway.telemetry import start_telemetry
from tests.engine.fake_runner import FakeRunner
from tests.gateway.world import World, eventually
from tests.ledger.engine_process import FAKE_CONFIG, FAKE_MODEL
from tests.telemetry.collector import Collector, Received, Tree

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
TRACED = (("traceparent", f"00-{TRACE_ID}-{PARENT_ID}-01"),)
NAMES = {value for module in (semconv, engine_semconv) for value in vars(module).values() if isinstance(value, str)}
# By the conventions: of an RPC its method, of a request verb and route, of a generation operation and model.
COMPOSED_NAMES = re.compile(r"evenflow\.\w+\.v1\.\w+/\w+|(GET|POST) /\S*|(chat|text_completion) \S+")


@dataclass
class Traced:
    """The parts of one test. `server` is the engine's."""

    world: World
    server: EngineServer
    runner: FakeRunner
    collector: Collector

    async def tree(self, *names: str, trace_id: str = TRACE_ID) -> Tree:
        """The trace, once it has as many spans of each name as are named. Every name in it is one of ours."""

        def spans() -> list[Received]:
            return [span for span in self.collector.spans if span.trace_id == trace_id]

        await eventually(lambda: Counter(names) <= Counter(span.name for span in spans()))
        require_known_names(spans())
        return Tree(spans())


@asynccontextmanager
async def traced(
    database: Database, database_url: str, collector: Collector, directory: Path, **options: object
) -> abc.AsyncIterator[Traced]:
    """Both, as the environment says that traces leave them. `config` is the engine's, other options the gateway's."""
    config = options.pop("config", FAKE_CONFIG)
    assert isinstance(config, SchedulerConfig)
    runner, tracing = FakeRunner(), start_tracing()
    settings = read_settings({"listen": f"unix:{directory}/e.sock"})
    server = EngineServer(settings, load_policies(settings), tracing)
    await server.listen()
    await server.open(lambda: Backend(runner, FAKE_MODEL, config))
    telemetry = start_telemetry()
    world = World(SimpleNamespace(address=settings.listen), database, database_url, telemetry, directory / "data")
    world.options = options
    await world.open()
    await world.serving()
    try:
        yield Traced(world, server, runner, collector)
    finally:
        runner.release()
        await world.close()
        await server.close()
        telemetry.close()
        tracing.shutdown()


def small_pool(**options: object) -> SchedulerConfig:
    """A pool that two requests of five blocks each do not fit into."""
    return replace(FAKE_CONFIG, num_device_blocks=8, growth_reserve_tokens=0, max_model_len=32, **options)


def require_known_names(spans: abc.Iterable[Received]) -> None:
    """Every name that was emitted is in one of the two modules."""
    for span in spans:
        assert span.name in NAMES or COMPOSED_NAMES.fullmatch(span.name), span.name
        for name in (*span.attributes, *span.events):
            assert re.sub(r"\.\d+\.", ".{}.", name) in NAMES, (span.name, name)


def export_to(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What starts after this exports there, at once."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
