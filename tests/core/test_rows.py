"""Rows of the runner's batch."""

from engine.core.rows import Rows


def test_the_lowest_free_row_is_taken_first():
    rows = Rows(4)
    assert [rows.take() for _ in range(3)] == [0, 1, 2]

    rows.stop(2)
    rows.stop(0)

    assert [rows.take() for _ in range(3)] == [0, 2, 3]


def test_the_runner_is_told_once_of_each_row_that_it_knew_and_that_was_stopped():
    rows = Rows(2)
    rows.tell([rows.take()])
    rows.stop(0)

    assert rows.tell([]) == (0,)
    assert rows.tell([]) == ()


def test_a_row_that_was_never_computed_is_none_of_the_runners_business():
    rows = Rows(2)
    rows.take()
    assert 0 not in rows.known
    rows.stop(0)

    assert rows.tell([]) == ()


def test_a_row_is_known_until_it_is_stopped_whoever_has_it_then():
    rows = Rows(1)
    rows.tell([rows.take()])
    assert 0 in rows.known

    rows.stop(0)
    rows.take()

    assert 0 not in rows.known
    assert rows.tell([0]) == (0,)
    assert 0 in rows.known
