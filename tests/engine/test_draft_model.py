"""A draft model beside the model, from the settings to the wire; and one that does not fit it."""

import json

import grpc
import pytest

from engine.errors import SettingsError
from engine.model.loader import load_model
from engine.server.backend import load_draft_model
from engine.settings import read_settings
from evenflow.engine.v1 import engine_pb2 as pb
from evenflow.engine.v1 import engine_pb2_grpc
from tests.engine.engine_process import engine_process
from tests.engine.wire import generate, start, until_blocks_are_free
from tests.model import tiny_llama

SMALLER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
FLAGS = ("--dtype", "float32", "--num-threads", "1", "--num-device-blocks", "32", "--max-num-seqs", "4")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The model, and one that is to draft for it."""
    folder = tmp_path_factory.mktemp("models")
    model = tiny_llama.write_folder(folder / "large", tiny_llama.make_model())
    return model, tiny_llama.write_folder(folder / "small", tiny_llama.make_model(**SMALLER, num_key_value_heads=1))


def drafting_settings(model, draft_model):
    flags = {"model": str(model), "draft_model": str(draft_model), "speculation": "draft", "dtype": "float32"}
    return read_settings({"listen": "unix:/tmp/e.sock", "device": "cpu"} | flags)


async def test_engine_serves_with_a_draft_model(folders, tmp_path):
    model, small = folders
    drafts = ("--speculation", "draft", "--draft-model", str(small), "--min-draft-acceptance", "0")
    with engine_process("engine", tmp_path, "--model", str(model), *FLAGS, *drafts) as process:
        process.wait_until_serving()
        async with grpc.aio.insecure_channel(process.target) as channel:
            stub = engine_pb2_grpc.EngineServiceStub(channel)
            sampling = {"temperature": 0.0, "ignore_eos": True}
            answers = [
                await generate(
                    stub, start(name, prompt=[5, 6, 7, 8], sampling=sampling, max_output_tokens=60, **fields)
                ).to_end()
                for name, fields in (("with", {}), ("without", {"speculation": False}))
            ]
            await until_blocks_are_free(stub)
            stats = await stub.GetStats(pb.GetStatsRequest())
    assert answers[0].token_ids == answers[1].token_ids
    assert len(answers[0].token_ids) == 60
    assert (stats.speculation, stats.draft_model, stats.num_draft_tokens) == ("draft", "small", 4)
    assert stats.drafted_tokens == answers[0].finished.usage.drafted_tokens
    assert stats.accepted_draft_tokens <= stats.drafted_tokens


def test_model_with_other_tokens_cannot_draft(folders, tmp_path):
    model, _ = folders
    other = tiny_llama.write_folder(tmp_path / "other", tiny_llama.make_model(**SMALLER, num_key_value_heads=1))
    document = json.loads((other / "tokenizer.json").read_text())
    vocabulary = document["model"]["vocab"]
    vocabulary["h"], vocabulary["e"] = vocabulary["e"], vocabulary["h"]
    (other / "tokenizer.json").write_text(json.dumps(document))
    target = load_model(model, dtype="float32", device="cpu")
    with pytest.raises(SettingsError, match="draft_model has another vocabulary than large"):
        load_draft_model(drafting_settings(model, other), target)


def test_model_that_drafts_is_computed_like_the_other(folders):
    model, small = folders
    target = load_model(model, dtype="float32", device="cpu")
    draft = load_draft_model(drafting_settings(model, small), target)
    assert draft is not None
    assert (draft.info.name, draft.dtype, draft.device) == ("small", target.dtype, target.device)
