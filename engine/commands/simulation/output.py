"""Where results and mistakes of `evenflow sim` go."""

import os
from collections import abc
from contextlib import contextmanager
from json import dumps
from pathlib import Path

import typer
from rich.console import Console

from engine.errors import StartError
from engine.model.errors import ModelError
from engine.plugins import PolicyError
from engine.sim.errors import ScenarioError, SimulationError

EXIT_USAGE = 2
FILE_COLUMNS = 160  # of a table that no terminal limits


def table_console() -> Console:
    """Stdout, as wide as the terminal; wide enough for several runs where it is none."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=FILE_COLUMNS)


def write_json(path: Path | None, content: object) -> None:
    """Where there is a path; `-` is stdout."""
    if path is not None:
        write_text(path, dumps(content, indent=1, sort_keys=True) + "\n")


def write_text(path: Path, text: str) -> None:
    """Raises ScenarioError if the file cannot be written."""
    if str(path) == "-":
        typer.echo(text, nl=False)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def told_in_one_line(command: str) -> abc.Iterator[None]:
    """What the user got wrong ends the process with code 2 and one line on stderr."""
    try:
        yield
    except (SimulationError, PolicyError, StartError, ModelError) as error:
        typer.echo(f"evenflow sim {command}: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from None
