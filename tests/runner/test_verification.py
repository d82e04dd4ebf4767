"""What is kept of sampled tokens, and what proposers find."""

import random

import numpy as np
import pytest

from engine.kernels.cpu.ngram import LONGEST, continue_rows
from engine.runner.verification import NO_DRAFT, Drafted


def drafted(*rows: list[int]) -> Drafted:
    """The drafts of each row; its last logits have none."""
    counts = [len(row) + 1 for row in rows]
    firsts = np.cumsum(counts) - counts
    return Drafted(firsts, np.array([token_id for row in rows for token_id in (*row, NO_DRAFT)]))


def kept(drafts: Drafted, *token_ids: int, bad: tuple[int, ...] = ()) -> list[int]:
    is_good = np.ones(len(token_ids), dtype=np.bool_)
    is_good[list(bad)] = False
    return drafts.kept(np.array(token_ids), is_good).tolist()


def test_right_drafts_are_kept_and_the_first_token_that_is_another():
    assert kept(drafted([7, 8, 9]), 7, 8, 5, 9) == [0, 1, 2]
    assert kept(drafted([7, 8, 9]), 7, 8, 9, 4) == [0, 1, 2, 3]
    assert kept(drafted([7, 8, 9]), 1, 8, 9, 4) == [0]


def test_each_row_is_judged_alone():
    assert kept(drafted([], [3], [4, 5]), 9, 3, 1, 0, 5, 6) == [0, 1, 2, 3]


def test_a_token_that_is_not_good_and_what_follows_it_in_its_row_are_not_kept():
    assert kept(drafted([7, 8], [1]), 7, 8, 2, 1, 1, bad=(1, 3)) == [0]
    assert kept(drafted([7, 8]), 7, 8, 2, bad=(2,)) == [0, 1]


def test_drafts_before_each_position_are_told():
    of, token_ids = drafted([7, 8], [], [9]).before()
    assert list(zip(of.tolist(), token_ids.tolist(), strict=True)) == [(1, 7), (2, 7), (2, 8), (5, 9)]


def naive_continuation(tokens: list[int], limit: int, shortest: int) -> list[int]:
    for length in range(min(LONGEST, len(tokens) - 1), shortest - 1, -1):
        for place in range(len(tokens) - 1, length - 1, -1):
            if tokens[place - length : place] == tokens[len(tokens) - length :]:
                text = list(tokens)
                for nth in range(limit):
                    text.append(text[place + nth])
                return text[len(tokens) :]
    return []


@pytest.mark.parametrize("shortest", [1, 2, 4])
def test_longest_and_latest_repetition_is_continued(shortest):
    rng = random.Random(shortest)
    for size in range(1, 60):
        rows = [[rng.randrange(4) for _ in range(size)] for _ in range(3)]
        limits = [rng.randrange(1, 7) for _ in rows]
        table = np.zeros((4, size + 8), dtype=np.int64)
        for row, tokens in enumerate(rows):
            table[row + 1, :size] = tokens
        ends = np.full(3, size)
        counts = continue_rows(table, np.arange(1, 4), ends, np.array(limits), shortest)
        for row, (tokens, limit) in enumerate(zip(rows, limits, strict=True)):
            expected = naive_continuation(tokens, limit, shortest)
            assert counts[row] == len(expected)
            assert table[row + 1, size : size + counts[row]].tolist() == expected
            assert table[row + 1, :size].tolist() == tokens
