"""A door in front of the test's Postgres that can be shut: connections break, new ones are refused, as in an outage."""

import asyncio
import contextlib
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

from gateway.accepting import stop_accepting

SOCKET = ".s.PGSQL.5432"
TURNS = 10  # of the event loop, more than asyncio takes to close a transport


class PostgresProxy:
    """Listens in `directory` as Postgres does in its own."""

    def __init__(self, database_url: str, directory: Path) -> None:
        parts = urlsplit(database_url)
        self._target = Path(parse_qs(parts.query)["host"][0]) / SOCKET
        self._path = directory / SOCKET
        self.url = f"postgresql://{parts.netloc}{parts.path}?host={quote(str(directory), safe='')}&port=5432"
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._forward, self._path)

    async def shut(self) -> None:
        """Everything that is connected breaks; nobody can connect."""
        if self._server is None:
            return
        self._path.unlink()
        await stop_accepting(self._server)
        self._server = None
        for pipe in self._pipes:
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)
        await _turns()

    async def _forward(self, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pipes.add(task)
        writers = [client_writer]
        copies: list[asyncio.Task[None]] = []
        try:
            reader, writer = await asyncio.open_unix_connection(self._target)
            writers.append(writer)
            copies += [
                asyncio.ensure_future(copy(client_reader, writer)),
                asyncio.ensure_future(copy(reader, client_writer)),
            ]
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # shut
        finally:
            self._pipes.discard(task)
            for each in copies:
                each.cancel()
            for each in writers:
                each.transport.abort()


async def _turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
