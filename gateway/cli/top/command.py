"""`evenflow top`: the overview, live on a terminal, once into a pipe."""

import sys
import time
from typing import Annotated

import typer

from gateway.cli.command import OpenAdmin, connecting_command
from gateway.cli.errors import CliError, ExitCode
from gateway.cli.output import stdout
from gateway.cli.top.figures import Figures, History, Sample, SortKey
from gateway.cli.top.frame import frame
from gateway.cli.top.polling import Away, Poller, Reported

PIPE_WIDTH = 132


@connecting_command
def top(
    open_admin: OpenAdmin,
    interval_s: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.2, max=60, help="Between two reports.")
    ] = 1.0,
    sort: Annotated[SortKey, typer.Option("--sort", help="What teams are in order of.")] = SortKey.SHARE,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Print one frame and end; so does a pipe. Its rates and shares are of one interval only."
        ),
    ] = False,
) -> None:
    """Watch tokens per second, queue, memory and every team's share against its weight.

    Keys: q quits; s, l, t, w and n sort by share, lead, tokens per second, waiting requests and name, r the other way
    round; + and - change the pace; the arrows scroll.
    """
    poller = Poller(open_admin)
    try:
        first = poller.ask()
        if isinstance(first, Away):
            raise CliError(first.reason, ExitCode.UNREACHABLE)
        if once or not (sys.stdin.isatty() and sys.stdout.isatty()):
            _print_frame(poller, first, interval_s, sort)
        else:
            _watch(poller, interval_s, sort)
    finally:
        poller.close()


def _print_frame(poller: Poller, first: Reported, interval_s: float, sort: SortKey) -> None:
    """Of two reports, so that it has rates."""
    history = History()
    history.add(Sample(time.monotonic(), first.status))
    time.sleep(interval_s)
    second = poller.ask()
    if isinstance(second, Away):
        raise CliError(second.reason, ExitCode.UNREACHABLE)
    figures: Figures = history.add(Sample(time.monotonic(), second.status))
    console = stdout()
    width = console.width if sys.stdout.isatty() else PIPE_WIDTH
    console.print(frame(figures, second.address, width, sort), soft_wrap=False)


def _watch(poller: Poller, interval_s: float, sort: SortKey) -> None:
    # It takes longer to load than all other commands together.
    from gateway.cli.top.app import TopApp

    app = TopApp(poller.ask, interval_s=interval_s, key=sort, at_quit=poller.close)
    failed = app.run()
    if failed is not None:
        raise failed
