"""`evenflow` called as a person calls it, and what came of it."""

import asyncio
import json
from dataclasses import dataclass

from typer.testing import CliRunner

from gateway.cli.main import build_app


@dataclass(frozen=True)
class Ran:
    """A finished command."""

    exit_code: int
    stdout: str
    stderr: str

    def json(self):
        assert self.exit_code == 0, self.stderr
        return json.loads(self.stdout)


class CommandLine:
    """Runs commands in a thread, so that a server in this process can answer them."""

    def __init__(self, plugins=(), environment=None) -> None:
        """`environment`: variables to set, or to leave out where the value is None."""
        self._plugins = plugins
        self._environment = environment

    async def __call__(self, *arguments: str, stdin: str = "") -> Ran:
        return await asyncio.to_thread(self.run, *arguments, stdin=stdin)

    def run(self, *arguments: str, stdin: str = "") -> Ran:
        result = CliRunner(env=self._environment).invoke(build_app(self._plugins), arguments, input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)
