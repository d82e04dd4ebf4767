"""What the queues of the policies have in common: what a head still needs, and who comes next beside those passed."""

from collections import abc
from typing import TypeVar

from engine.core.policy import SequenceView
from engine.core.ranking import Ranking

Item = TypeVar("Item")


def num_uncached_tokens(seq: SequenceView) -> int:
    """Known tokens of a waiting sequence that must be computed when it comes in."""
    return seq.num_tokens - max(seq.num_computed_tokens, seq.num_cached_prompt_tokens)


def first_except(ranking: Ranking[Item], excluded: abc.Set[Item]) -> Item | None:
    """The item of lowest rank that is not excluded; the ranking is as before. O((1 + excluded) log n)."""
    skipped = []
    while (item := ranking.first()) is not None and item in excluded:
        skipped.append((item, ranking.rank_of(item)))
        ranking.discard(item)
    for skipped_item, rank in skipped:
        ranking.put(skipped_item, rank)
    return item


def first_not_passed(ranking: Ranking[SequenceView], passed: abc.Collection[SequenceView]) -> SequenceView | None:
    """The waiting sequence of lowest rank that was not passed. Ranks end in `arrival_index`, so no two are equal."""
    return first_except(ranking, frozenset(passed)) if passed else ranking.first()
