"""A stack from start to end under signals: SIGINT and SIGTERM end it in order, a second one at once."""

import asyncio
import signal
from collections import abc
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console

from gateway.cli.display import Board
from gateway.cli.errors import CliError, ExitCode
from gateway.cli.parts import MonotonicClock, PartError
from gateway.cli.stack import Stack, StackSettings
from gateway.cli.supervisor import RestartPolicy, Supervisor
from gateway.private_files import PrivateFileError
from gateway.store.errors import StoreError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Session:
    """A stack that is not up yet, what keeps it, and where its state is shown."""

    stack: Stack
    supervisor: Supervisor
    board: Board
    console: Console


async def run_stack(
    settings: StackSettings, console: Console, work: abc.Callable[[Session], abc.Awaitable[None]]
) -> bool:
    """`work` was done on a stack of its own, which it brings up, and all parts have ended.

    Returns False if a signal cut it short. Raises CliError, with the end of the part's log, if a part was given up.
    """
    board = Board(console)
    supervisor = Supervisor(RestartPolicy(), MonotonicClock(), board.change)
    try:
        with _signals(supervisor) as stop:
            async with supervisor:
                stack = Stack(settings, supervisor, board.detail)
                return await _unless(stop, work(Session(stack, supervisor, board, console)))
    except PartError as error:
        code = ExitCode.USAGE if error.refuses_settings else ExitCode.REFUSED
        raise CliError(str(error), code, hint=_log_tail(settings, error)) from error
    except (StoreError, PrivateFileError) as error:
        raise CliError(str(error)) from error


async def _unless(stop: asyncio.Event, work: abc.Awaitable[None]) -> bool:
    """`work` was done, or cancelled because of `stop`: False."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        working.result()
        return True
    finally:
        working.cancel()
        stopping.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


@contextmanager
def _signals(supervisor: Supervisor) -> abc.Iterator[asyncio.Event]:
    """The event is set by the first signal; the second one kills the parts."""
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            supervisor.kill()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        yield stop
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


def _log_tail(settings: StackSettings, error: PartError) -> str:
    if not error.tail:
        return ""
    return "\n  ".join((f"the end of {settings.data_dir.log(error.part)}:", *error.tail))
