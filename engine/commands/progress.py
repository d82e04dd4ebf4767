"""How far the model is loaded: a bar on a terminal, a line of the log every tenth elsewhere. Always on stderr."""

import contextlib
from collections import abc

import structlog
from rich.console import Console
from rich.progress import Progress

log = structlog.get_logger(__name__)

LINES = 10


@contextlib.contextmanager
def loading_progress(model: str) -> abc.Iterator[abc.Callable[[float], None]]:
    """A callable for the loaded part of `model`, 0 to 1, from any one thread."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _LogLines(model)
        return
    bar = Progress(console=console, transient=True)
    try:
        yield _Bar(bar, model)
    finally:
        bar.stop()


class _Bar:
    """Stands on the terminal from the first part to the last."""

    def __init__(self, bar: Progress, model: str) -> None:
        self._bar = bar
        self._task = bar.add_task(f"loading {model}", total=1.0)

    def __call__(self, part: float) -> None:
        self._bar.update(self._task, completed=part)
        if part < 1:
            self._bar.start()
        else:
            self._bar.stop()


class _LogLines:
    """Logs each tenth once."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._num_lines = -1

    def __call__(self, part: float) -> None:
        num_lines = int(part * LINES)
        if num_lines > self._num_lines:
            self._num_lines = num_lines
            log.info("loading model", model=self._model, percent=100 * num_lines // LINES)
