"""What is shown of the parts."""

import io

from rich.console import Console

from gateway.cli.display import Board
from gateway.cli.parts import Change, Phase


def board_on(console: Console) -> tuple[Board, list[float]]:
    """A board, and the time it reads, which a test can change."""
    now_s = [0.0]
    return Board(console, lambda: now_s[0]), now_s


def test_each_change_is_a_line_where_there_is_no_terminal():
    shown = io.StringIO()
    board, now_s = board_on(Console(file=shown, width=200))

    with board:
        board.change(Change("engine", Phase.STARTING))
        board.detail("engine", "loading the model, 50 %")
        board.detail("engine", "loading the model, 50 %")
        now_s[0] = 3.0
        board.change(Change("engine", Phase.READY))
        board.detail("engine", "loading the model, 75 %")
        board.change(Change("engine", Phase.WAITING, "engine ended by signal 9; starting again in 0.5 s"))

    assert shown.getvalue().splitlines() == [
        "engine    starting",
        "engine    loading the model, 50 %",
        "engine    ready after 3.0 s",
        "engine    down: engine ended by signal 9; starting again in 0.5 s",
    ]


def test_terminal_keeps_one_line_for_each_part():
    shown = io.StringIO()
    board, now_s = board_on(Console(file=shown, width=80, force_terminal=True, color_system=None))

    with board:
        for part in ("postgres", "engine"):
            board.change(Change(part, Phase.STARTING))
        now_s[0] = 2.0
        for part in ("postgres", "engine"):
            board.change(Change(part, Phase.READY))
        now_s[0] = 9.0

    last_frame = shown.getvalue().rpartition("✓ postgres")[2]
    assert "ready after 2.0 s" in last_frame
    assert "✓ engine   ready after 2.0 s" in last_frame
