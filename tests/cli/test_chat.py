"""Talking with a model: one answer, a conversation, Ctrl-C, and refusals that can be read."""

import asyncio
import os
import pty
import signal
import subprocess
import sys
from collections import abc
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.cli.chat import TOP_P
from tests.cli.command_line import CommandLine
from tests.cli.inference_server import InferenceServer, serve_inference

ROOT = Path(__file__).parents[2]
KEY = "ef_live_test"


@pytest_asyncio.fixture
async def server(monkeypatch: pytest.MonkeyPatch, command_line: CommandLine) -> abc.AsyncIterator[InferenceServer]:
    """A scripted server that the command line finds."""
    async with serve_inference(InferenceServer()) as running:
        monkeypatch.setenv("EVENFLOW_ADDRESS", running.address)
        monkeypatch.setenv("EVENFLOW_API_KEY", KEY)
        yield running


async def test_answer_is_streamed_to_stdout_and_nothing_else(server: InferenceServer, command_line: CommandLine):
    ran = await command_line("chat", "Hi there")

    assert (ran.exit_code, ran.stdout, ran.stderr) == (0, "Hello, you\n", "")
    (spec,) = server.specs
    assert list(spec.chat.messages) == [pb.ChatMessage(role="user", content="Hi there")]
    assert server.credentials == [f"Bearer {KEY}"]


async def test_options_are_part_of_the_request(server: InferenceServer, command_line: CommandLine):
    options = ("--system", "Be brief", "--model", "m", "--max-tokens", "7", "--temperature", "0", "--seed", "5")

    await command_line("chat", "Hi", *options, "--class", "batch")

    (spec,) = server.specs
    assert [message.role for message in spec.chat.messages] == ["system", "user"]
    assert (spec.model, spec.stopping.max_output_tokens, spec.admission.priority_class) == ("m", 7, "batch")
    assert (spec.sampling.temperature, spec.sampling.HasField("temperature"), spec.sampling.seed) == (0.0, True, 5)
    assert spec.sampling.top_p == TOP_P


async def test_input_from_a_pipe_is_one_prompt(server: InferenceServer, command_line: CommandLine):
    await command_line("chat", stdin="two\nlines")

    assert server.specs[0].chat.messages[0].content == "two\nlines"


async def test_terminal_commands_in_an_answer_are_not_printed(server: InferenceServer, command_line: CommandLine):
    server.pieces, server.token_ids = ("a\x1b[2J", "b\x07\tc\n", "é😀\u200d"), ((1,), (2,), (3,))

    ran = await command_line("chat", "Hi")

    assert ran.stdout == "a[2Jb\tc\né😀\u200d\n"


async def test_refusal_tells_the_reason_and_the_wait(server: InferenceServer, command_line: CommandLine):
    server.refusal = (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED", 12.5)

    ran = await command_line("chat", "Hi")

    assert ran.exit_code == 1
    assert ran.stderr == "error: RATE_LIMITED: no more for now (try again in 12.5 s)\n"


async def test_refused_key_is_told_with_where_it_is_from_and_how_to_make_another(
    server: InferenceServer, command_line: CommandLine
):
    server.refusal = (grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_INVALID", 0)

    ran = await command_line("chat", "Hi")

    assert "the key is from the variable EVENFLOW_API_KEY; make another one: evenflow keys create" in ran.stderr
    assert "--save" in ran.stderr


async def test_part_that_is_away_is_refused_not_unreachable(server: InferenceServer, command_line: CommandLine):
    server.refusal = (grpc.StatusCode.UNAVAILABLE, "NO_ENGINE", 1.0)

    ran = await command_line("chat", "Hi")

    assert ran.exit_code == 1
    assert "NO_ENGINE" in ran.stderr


async def test_prompt_that_is_no_text_is_wrong_usage(server: InferenceServer, command_line: CommandLine):
    ran = await command_line("chat", "\udcff")

    assert ran.exit_code == 2
    assert server.specs == []


class Terminal:
    """`evenflow chat` on a pseudo-terminal."""

    def __init__(self) -> None:
        self._ours, theirs = pty.openpty()
        argv = [sys.executable, "-m", "gateway.cli.main", "chat"]
        environment = {**os.environ, "TERM": "dumb"}
        self.process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=environment)
        os.close(theirs)
        self._seen = ""

    async def until(self, text: str) -> str:
        """Everything printed up to `text`, which is then forgotten."""
        async with asyncio.timeout(60):
            while text not in self._seen:
                self._seen += (await asyncio.to_thread(os.read, self._ours, 4096)).decode()
        before, _, self._seen = self._seen.partition(text)
        return before

    def type(self, line: str) -> None:
        os.write(self._ours, f"{line}\n".encode())

    async def end(self) -> int:
        """Ctrl-D, and the exit code."""
        await self.until("> ")  # what is typed before the prompt may be dropped when the line editor starts
        os.write(self._ours, b"\x04")
        code = await asyncio.to_thread(self.process.wait, 90)
        os.close(self._ours)
        return code


async def test_ctrl_c_cancels_the_answer_on_the_server_and_keeps_the_conversation(server: InferenceServer):
    server.is_endless = True
    terminal = Terminal()
    await terminal.until("> ")
    terminal.type("Tell me everything")
    await server.has_begun.wait()
    await terminal.until("Hello, you")

    terminal.process.send_signal(signal.SIGINT)

    async with asyncio.timeout(20):
        await server.was_cancelled.wait()
    await terminal.until("(stopped)")
    server.is_endless = False
    await terminal.until("> ")
    terminal.type("And then?")
    await terminal.until("2 tokens")
    assert await terminal.end() == 0
    said = [(message.role, message.content) for message in server.specs[-1].chat.messages]
    assert said == [("user", "Tell me everything"), ("assistant", "Hello, you"), ("user", "And then?")]


async def test_refused_question_leaves_the_conversation_as_it_was(server: InferenceServer):
    server.refusal = (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED", 2.0)
    terminal = Terminal()
    await terminal.until("> ")
    terminal.type("Too soon")
    await terminal.until("(try again in 2.0 s)")
    server.refusal = None
    await terminal.until("> ")
    terminal.type("Again")
    await terminal.until("2 tokens")
    await terminal.until("> ")
    terminal.type("/reset")
    await terminal.until("> ")
    terminal.type("Anew")
    await terminal.until("2 tokens")

    assert await terminal.end() == 0
    asked = [[message.content for message in spec.chat.messages] for spec in server.specs]
    assert asked == [["Too soon"], ["Again"], ["Anew"]]


async def test_interrupted_single_answer_ends_with_130(server: InferenceServer):
    server.is_endless = True
    argv = (sys.executable, "-m", "gateway.cli.main", "chat", "Hi")
    process = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stdout=subprocess.DEVNULL)
    await server.has_begun.wait()

    process.send_signal(signal.SIGINT)

    async with asyncio.timeout(20):
        await server.was_cancelled.wait()
        assert await process.wait() == 130
