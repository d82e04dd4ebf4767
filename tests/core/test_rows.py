"""Rows of the runner's batch."""

from engine.core.rows import Rows


def test_the_lowest_free_row_is_taken_first():
    rows = Rows(4)
    assert [rows.take() for _ in range(3)] == [0, 1, 2]

    rows.stop(2)
    rows.stop(0)

    assert [rows.take() for _ in range(3)] == [0, 2, 3]


def test_the_runner_is_told_once_of_each_stopped_row():
    rows = Rows(2)
    rows.take()
    rows.stop(0)

    assert rows.take_stopped() == (0,)
    assert rows.take_stopped() == ()
