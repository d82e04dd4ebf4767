"""`evenflow` called as a person calls it, and what came of it."""

import asyncio
import functools
import json
from dataclasses import dataclass

from typer import testing

from gateway.cli.main import build_app

# Making the commands takes longer than most of them run, and they keep nothing from one run to the next.
testing._get_command = functools.lru_cache(maxsize=8)(testing._get_command)
OWN_COMMANDS = build_app(())


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
        app = build_app(self._plugins) if self._plugins else OWN_COMMANDS
        result = testing.CliRunner(env=self._environment).invoke(app, arguments, input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)
