"""The embedded database as a part that the supervisor keeps."""

import asyncio
from pathlib import Path

from gateway.cli.parts import Exit, PartError
from gateway.embedded import EmbeddedPostgres, EmbeddedPostgresError, ServerStartError

NAME = "postgres"


class PostgresPart:
    """`url` leads to the database from the first successful start on; it stays the same from start to start."""

    name = NAME

    def __init__(self, data_dir: Path) -> None:
        self._server = EmbeddedPostgres(data_dir)
        self.url = ""

    async def start(self) -> "RunningPostgres":
        """Raises PartError; a directory that cannot be used is not tried again."""
        try:
            self.url = await self._server.start()
        except EmbeddedPostgresError as error:
            fatal = not isinstance(error, ServerStartError)
            raise PartError(NAME, f"cannot start: {error}", fatal=fatal) from error
        return RunningPostgres(self._server)


class RunningPostgres:
    """A started server."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self._server = server
        # Whoever asked for the end and whoever noticed it both stop the server; it takes one at a time.
        self._stopping = asyncio.Lock()

    async def ready(self) -> None:
        """`start` returns only when it serves."""

    async def wait(self) -> Exit:
        return Exit(await self._server.wait())

    async def stop(self) -> None:
        """Its data is safe on disk."""
        async with self._stopping:
            await self._server.stop()

    def kill(self) -> None:
        """Left to `stop`, whose fast shutdown takes less than a second: killing it would cost a recovery."""
