"""An engine process that a gateway can talk text with: `python -m tests.ledger.engine_process FLAGS`.

Its model is a fake with one token per byte; the n-th output token of every request is FIRST_TOKEN + n.
"""

import sys
from dataclasses import replace
from types import SimpleNamespace

from engine.commands.engine import app
from engine.server import backend
from engine.server.backend import Backend
from tests.engine.fake_runner import CONFIG, MODEL, FakeRunner
from tests.gateway.fake_engine import CHAT_TEMPLATE, END_TOKEN, VOCABULARY_SIZE, byte_tokenizer_json

STEP_S = 0.004
FAKE_MODEL = SimpleNamespace(
    **vars(MODEL)
    | {
        "tokenizer_json": byte_tokenizer_json(),
        "chat_template": CHAT_TEMPLATE,
        "vocabulary_size": VOCABULARY_SIZE,
        "eos_token_ids": (END_TOKEN,),
        "bos_token_id": None,
        "unk_token_id": None,
    }
)
FAKE_CONFIG = replace(CONFIG, max_num_seqs=16, num_device_blocks=1024)

if __name__ == "__main__":
    backend.load_backend = lambda settings, on_progress: Backend(FakeRunner(STEP_S), FAKE_MODEL, FAKE_CONFIG)
    app(sys.argv[1:])
