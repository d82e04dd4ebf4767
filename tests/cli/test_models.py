"""A model's tokenizer, written for other tools."""

import json
from collections import abc
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from evenflow.inference.v1 import model_pb2
from tests.cli.command_line import CommandLine
from tests.cli.inference_server import InferenceServer, serve_inference
from tests.gateway.fake_engine import CHAT_TEMPLATE, byte_tokenizer_json

FILES = {"tokenizer.json", "tokenizer_config.json"}


@pytest_asyncio.fixture
async def server(monkeypatch: pytest.MonkeyPatch, command_line: CommandLine) -> abc.AsyncIterator[InferenceServer]:
    """A server with one model, which the command line finds."""
    tokenizer = model_pb2.GetTokenizerResponse(
        name="bytes",
        tokenizer_json=byte_tokenizer_json(),
        chat_template=CHAT_TEMPLATE,
        bos_token_id=257,
        eos_token_ids=[256],
        context_tokens=4096,
    )
    async with serve_inference(InferenceServer(tokenizer=tokenizer)) as running:
        monkeypatch.setenv("EVENFLOW_ADDRESS", running.address)
        monkeypatch.setenv("EVENFLOW_API_KEY", "ef_live_test")
        yield running


async def test_a_tokenizer_is_exported_as_a_folder(server: InferenceServer, command_line: CommandLine, tmp_path: Path):
    folder = tmp_path / "new" / "tokenizer"

    ran = await command_line("model", "export-tokenizer", str(folder))

    assert (ran.exit_code, ran.stdout) == (0, "")
    assert f"The tokenizer of bytes is in {folder}." in ran.stderr
    assert {path.name for path in folder.iterdir()} == FILES
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"], config["model_max_length"]) == ("<|begin|>", "<|end|>", 4096)
    assert config["chat_template"] == CHAT_TEMPLATE
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).encode("hi").ids == [104, 105]


async def test_a_tokenizer_that_is_there_is_replaced_only_by_force(
    server: InferenceServer, command_line: CommandLine, tmp_path: Path
):
    (tmp_path / "tokenizer.json").write_text("mine")

    refused = await command_line("model", "export-tokenizer", str(tmp_path))
    before = (tmp_path / "tokenizer.json").read_text()
    forced = await command_line("model", "export-tokenizer", str(tmp_path), "--force")

    assert (refused.exit_code, before, forced.exit_code) == (1, "mine", 0)
    assert f"{tmp_path / 'tokenizer.json'} exists" in refused.stderr
    assert (tmp_path / "tokenizer.json").read_text() != "mine"


async def test_a_folder_that_cannot_be_written_is_an_error_in_one_line(
    server: InferenceServer, command_line: CommandLine, tmp_path: Path
):
    (tmp_path / "file").touch()

    ran = await command_line("model", "export-tokenizer", str(tmp_path / "file" / "below"))

    assert (ran.exit_code, ran.stderr) == (1, f"error: cannot write to {tmp_path}/file/below: Not a directory\n")


async def test_a_model_that_is_not_there_is_told(server: InferenceServer, command_line: CommandLine, tmp_path: Path):
    server.refusal = (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND", 0.0)

    ran = await command_line("model", "export-tokenizer", str(tmp_path / "x"), "--model", "gpt-9")

    assert (ran.exit_code, (tmp_path / "x").exists()) == (1, False)
    assert "MODEL_NOT_FOUND" in ran.stderr
