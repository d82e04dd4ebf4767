"""`evenflow chat`: a conversation on the terminal, or one answer to one prompt.

Ctrl-C cancels the answer that is being written, on the server too, and leaves the conversation open.
"""

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import grpc
import typer

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.cli.command import AddressOption, DataDirOption, command
from gateway.cli.connection import Connection, Target, connect, find_address, find_api_key
from gateway.cli.conversation import Answer, Conversation, Options
from gateway.cli.data_dir import DataDir
from gateway.cli.errors import CliError, ExitCode, read_refusal
from gateway.cli.output import stderr
from gateway.cli.security import CaCertOption, ClientCertOption, ClientKeyOption, Security
from gateway.words import counted

PROMPT = "> "
# A conversation wants sense before variety, small models above all.
MAX_TOKENS = 512
TEMPERATURE = 0.2
TOP_P = 0.9
HELP = "/reset forgets the conversation, /quit or Ctrl-D ends it, Ctrl-C stops an answer."

ApiKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file",
        help="A file that holds the API key. Left out: EVENFLOW_API_KEY, or api.key in the data directory.",
    ),
]


class Screen:
    """Answers go to stdout as they come, everything else to stderr; figures are shown on a terminal only."""

    def __init__(self, conversation: Conversation, connection: Connection) -> None:
        self.conversation = conversation
        self._connection = connection
        self._notes = stderr()

    def answer(self, text: str) -> None:
        """The answer to `text` is on the screen and in the conversation. Raises CliError, KeyboardInterrupt."""
        began_s, first_s = time.monotonic(), 0.0
        answer = self.conversation.ask(text)
        try:
            for piece in answer:
                first_s = first_s or time.monotonic() - began_s
                sys.stdout.write(piece)
                sys.stdout.flush()
        except grpc.RpcError as error:
            if answer.text and read_refusal(error).is_unreachable:
                raise CliError("the gateway went away before the end of the answer", ExitCode.UNREACHABLE) from error
            raise self._connection.error(error) from error
        finally:
            answer.cancel()
            self.conversation.keep(text, answer)
            if answer.text:
                sys.stdout.write("\n")
        self._describe(answer, first_s, time.monotonic() - began_s)

    def note(self, text: str, style: str = "dim") -> None:
        self._notes.print(text, style=style)

    def _describe(self, answer: Answer, first_s: float, total_s: float) -> None:
        finish = answer.finish
        if finish is None or not self._notes.is_terminal:
            return
        num_tokens = finish.usage.output_tokens
        rate = (num_tokens - 1) / (total_s - first_s) if num_tokens > 1 and total_s > first_s else 0.0
        cut = ", cut at the output limit" if finish.finish_reason == pb.FINISH_REASON_LENGTH else ""
        self.note(f"{counted(num_tokens, 'token')}{cut} · first after {first_s:.2f} s · then {rate:.1f} tokens/s")


@command
def chat(
    prompt: Annotated[str | None, typer.Argument(help="Ask this and end. Without it: a conversation.")] = None,
    system: Annotated[str | None, typer.Option("--system", help="How the model should behave.")] = None,
    model: Annotated[str | None, typer.Option("--model", envvar="EVENFLOW_MODEL", help="Which model to ask.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Longest answer, in tokens.")] = MAX_TOKENS,
    temperature: Annotated[float, typer.Option("--temperature", help="0 always takes the likeliest.")] = TEMPERATURE,
    top_p: Annotated[float, typer.Option("--top-p", help="Sample from this share of the likeliest.")] = TOP_P,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="The same seed, the same answer.")] = None,
    priority_class: Annotated[str | None, typer.Option("--class", help="Priority class of the requests.")] = None,
    address: AddressOption = None,
    data_dir: DataDirOption = None,
    api_key_file: ApiKeyOption = None,
    ca_cert: CaCertOption = None,
    client_cert: ClientCertOption = None,
    client_key: ClientKeyOption = None,
) -> None:
    """Talk with a model. Input from a pipe is one prompt."""
    options = Options(system, model, priority_class, max_tokens, temperature, top_p, seed)
    target = Target(address, DataDir.at(data_dir), api_key_file, Security(ca_cert, client_cert, client_key))
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read()
    with connect(find_address(target), find_api_key(target), target.security) as connection:
        screen = Screen(Conversation(connection, options), connection)
        if prompt is not None:
            screen.answer(prompt)
        else:
            converse(screen)


def converse(screen: Screen) -> None:
    """Questions and answers until the end of input."""
    with suppress(ImportError):
        import readline  # noqa: F401 - gives `input` history and line editing where the platform has it
    screen.note(HELP)
    while True:
        try:
            text = input(PROMPT).strip()
        except EOFError:
            sys.stdout.write("\n")
            return
        except KeyboardInterrupt:
            screen.note("\n" + HELP)
            continue
        if text == "/quit":
            return
        if text == "/reset":
            screen.conversation.reset()
        elif text:
            exchange(screen, text)


def exchange(screen: Screen, text: str) -> None:
    """One question of a conversation, which goes on whatever becomes of it, unless the server is gone."""
    try:
        screen.answer(text)
    except KeyboardInterrupt:
        screen.note("(stopped)")
    except CliError as error:
        if error.exit_code is ExitCode.UNREACHABLE:
            raise
        screen.note(f"error: {error}", style="red")
        if error.hint:
            screen.note(f"  {error.hint}")
