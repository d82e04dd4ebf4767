"""Outcomes as one PNG: a column a run, the same axes in each row, so that runs compare at a glance.

Rows: service by tenant, the largest gap between backlogged siblings, the distribution of the time to first token, and
blocks swapped. matplotlib is imported when a picture is asked for, not before. Equal outcomes are equal bytes.
"""

from collections import abc
from pathlib import Path
from typing import TYPE_CHECKING

from engine.sim.errors import SimulationError
from engine.sim.metrics import Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN_INCHES, CROWDED_COLUMN_INCHES = 5.2, 4.2
DPI = 110


class PictureError(SimulationError):
    """There is nothing to draw, nothing to draw with, or the file cannot be written."""


def write_picture(outcomes: abc.Sequence[Outcome], path: Path, *, title: str = "") -> None:
    """A PNG at `path`. Raises PictureError."""
    if not outcomes:
        raise PictureError("there is no run to draw")
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        from engine.sim.report.panels import draw_panels
    except ImportError as error:
        raise PictureError("a picture needs matplotlib: pip install matplotlib") from error
    with mpl.rc_context():
        mpl.rcdefaults()  # whatever the user's own settings are, equal outcomes are equal bytes
        width = len(outcomes) * CROWDED_COLUMN_INCHES if len(outcomes) > 3 else max(2, len(outcomes)) * COLUMN_INCHES
        figure = Figure(figsize=(width, width), dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        draw_panels(figure, outcomes, title)
        _save(figure, path)


def _save(figure: "Figure", path: Path) -> None:
    try:
        figure.savefig(path, format="png", metadata={"Software": None})
    except OSError as error:
        raise PictureError(f"{path}: {error.strerror or error}") from error
