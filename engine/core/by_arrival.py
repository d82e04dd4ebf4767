"""Lists of sequences in order of arrival, whose ends are looked at in that order in every plan."""

from bisect import bisect_left, insort
from operator import attrgetter

from engine.core.sequence import Sequence

ARRIVAL = attrgetter("arrival_index")


def insert(seqs: list[Sequence], seq: Sequence) -> None:
    """`seq`, which is not in `seqs`, is at its place there."""
    insort(seqs, seq, key=ARRIVAL)


def remove(seqs: list[Sequence], seq: Sequence) -> None:
    """`seq` is no longer in `seqs`."""
    del seqs[bisect_left(seqs, seq.arrival_index, key=ARRIVAL)]
