"""An engine process with a tokenizer of bytes and no model: `python -m tests.telemetry.engine_process FLAGS`.

Real in everything that the metrics tell of: loop, scheduler, pools. Its pool is small, so that requests give way.
"""

import sys
from dataclasses import replace
from types import SimpleNamespace

from engine.commands.engine import app
from engine.server import backend
from engine.server.backend import Backend
from tests.engine.fake_runner import CONFIG, MODEL, FakeRunner
from tests.gateway.fake_engine import END_TOKEN, VOCABULARY_SIZE, byte_tokenizer_json

STEP_S = 0.002


def load() -> Backend:
    own = {"tokenizer_json": byte_tokenizer_json(), "vocabulary_size": VOCABULARY_SIZE, "eos_token_ids": (END_TOKEN,)}
    config = replace(CONFIG, num_device_blocks=24, num_host_blocks=64)
    return Backend(FakeRunner(STEP_S), SimpleNamespace(**{**vars(MODEL), **own}), config)


if __name__ == "__main__":
    backend.load_backend = lambda settings, on_progress: load()
    app(sys.argv[1:])
