"""What the server makes of settings that concern neither the wire nor the model."""

import asyncio
import json
import stat
from types import SimpleNamespace

import pytest

from engine.core.events import Finished
from engine.errors import SettingsError
from engine.loop_messages import Submit
from engine.server.backend import Backend
from engine.server.engine_server import EngineServer, Policies
from engine.server.serve import load_policies
from engine.settings import read_settings
from tests.engine.fake_runner import CONFIG, MODEL, FakeRunner
from tests.engine.loop_bench import Outlet, make_request


def make_settings(tmp_path, **flags):
    return read_settings({"listen": f"unix:{tmp_path}/e.sock", "scheduling_policy": "fcfs"} | flags)


class Ringing(Outlet):
    """Says when its request has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.has_finished = asyncio.Event()

    def put(self, update, at) -> None:
        super().put(update, at)
        if isinstance(update, Finished):
            self.has_finished.set()


async def open_server(settings):
    server = EngineServer(settings, load_policies(settings), None)
    await server.listen()
    await server.open(lambda: Backend(FakeRunner(), MODEL, CONFIG))
    return server


async def test_decision_log_is_the_owners_alone_and_complete_when_the_server_has_closed(tmp_path):
    path = tmp_path / "decisions.jsonl"
    server = await open_server(make_settings(tmp_path, decision_log=str(path)))
    outlet = Ringing()
    server._loop.submit(Submit(outlet, make_request("a", server._loop.now(), prompt_token_ids=(77, 78, 79))))
    async with asyncio.timeout(10):
        await outlet.has_finished.wait()
    await server.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    header, *lines = map(json.loads, path.read_text().splitlines())
    assert header["scheduling_policy"] == {"name": "fcfs", "options": {}}
    assert header["config"]["num_device_blocks"] == CONFIG.num_device_blocks
    kinds = [line["e"] for line in lines]
    added = kinds.index("add")  # the engine may have looked for work before there was any
    assert kinds[:added] == ["plan"] * added
    assert kinds[added + 1] == "plan"
    assert "77, 78" not in json.dumps(lines[added]["request"])


async def test_decision_log_that_cannot_be_written_is_refused_before_the_model_is_loaded(tmp_path):
    settings = make_settings(tmp_path, decision_log=str(tmp_path / "missing" / "decisions.jsonl"))
    server = EngineServer(settings, load_policies(settings), None)
    await server.listen()
    with pytest.raises(SettingsError, match=r"^decision_log cannot be written"):
        await server.open(lambda: pytest.fail("the model is loaded"))
    await server.close()


def test_pair_of_policies_that_do_not_go_together_is_refused(tmp_path):
    strict, never = SimpleNamespace(requires_preemption=True), SimpleNamespace(preempts=False)
    with pytest.raises(SettingsError, match=r"^preemption_policy cannot be taken"):
        EngineServer(make_settings(tmp_path), Policies(strict, never), None)
