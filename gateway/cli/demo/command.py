"""`evenflow demo`: everything in a temporary directory, the same traffic under two policies, a report, and no trace."""

import asyncio
import os
import tempfile
from collections import abc
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gateway.cli.command import command
from gateway.cli.data_dir import DataDir
from gateway.cli.errors import ExitCode
from gateway.cli.output import stderr
from gateway.cli.up import command_name

FullOption = Annotated[bool, typer.Option("--full", help="24 requests of 1,024 and 256 tokens, however long it takes.")]
# What a user may have set for the engine that has nothing to do with the demo's question.
KEPT_VARIABLES = frozenset({f"EVENFLOW_ENGINE_{name}" for name in ("MODEL", "DTYPE", "DEVICE", "NUM_THREADS")})


@command
def demo(full: FullOption = False) -> None:
    """See what fair scheduling does: one tenant floods, another one chats, first without it, then with it.

    Takes about two minutes on two cores. Runs in a temporary directory and leaves nothing behind.
    """
    # Here, so that other commands do not wait for the database's packages.
    from gateway.cli.demo.session import play
    from gateway.cli.running import run_stack
    from gateway.cli.stack import StackSettings, listen_address

    console = stderr()
    with tempfile.TemporaryDirectory(prefix="evenflow-demo-") as path:
        directory = DataDir.at(Path(path))
        with directory.lock(), directory.socket_dir() as sockets:
            settings = StackSettings(
                data_dir=directory,
                sockets=sockets,
                listen=listen_address("127.0.0.1:0"),
                environment=demo_environment(os.environ),
            )
            was_played = asyncio.run(run_stack(settings, console, lambda session: play(session, full=full)))
    if not was_played:
        raise typer.Exit(ExitCode.INTERRUPTED)
    print_farewell(console)


def print_farewell(console: Console) -> None:
    """How to go on."""
    evenflow = command_name()
    console.print(f"\nTo go on, in one terminal:\n  {evenflow} up\nand in another:")
    for line in ("orgs create acme", "teams create acme/search", "keys create --team acme/search --save"):
        console.print(f"  {evenflow} {line}")
    console.print(f'  {evenflow} chat "Why is the sky blue?"')


def demo_environment(environment: abc.Mapping[str, str]) -> dict[str, str]:
    """Without the settings of another installation; the engine keeps its model and its place.

    Unless it was told otherwise it leaves a core to the clients and the gateway: a compute thread that shares its core
    makes the others wait at the end of every layer, and the figures jump.
    """
    kept = {
        name: value for name, value in environment.items() if not name.startswith("EVENFLOW_") or name in KEPT_VARIABLES
    }
    num_threads = max(1, (os.cpu_count() or 1) - 1)
    return {"EVENFLOW_ENGINE_NUM_THREADS": str(num_threads), **kept}
