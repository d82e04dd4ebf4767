"""Victims by arrival: the latest, which has computed least, loses its blocks first. Source: Kwon et al. 2023, §4.5.

Only those that arrived after the claimant give way, so the first to arrive is never preempted and always gets on.
O(resident log resident).
"""

from collections import abc

from engine.core.policy import SequenceView, Standing
from engine.core.types import Nanos


class LatestArrival:
    """The later a sequence came, the sooner it gives way."""

    def victims(
        self, resident: abc.Sequence[SequenceView], claimant: SequenceView, standing: Standing, now: Nanos
    ) -> abc.Iterator[SequenceView]:
        later = [seq for seq in resident if seq.arrival_index > claimant.arrival_index]
        later.sort(key=lambda seq: seq.arrival_index, reverse=True)
        return iter(later)
