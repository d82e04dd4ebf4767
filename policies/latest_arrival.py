"""Victims by arrival: the latest, which has computed least, loses its blocks first. Source: Kwon et al. 2023, §4.5."""

from collections import abc

from engine.core.policy import SequenceView
from engine.core.types import Nanos, TenantId


class LatestArrival:
    """Only those that arrived after the claimant give way to it, so the first to arrive is never preempted."""

    def victims(
        self,
        resident: abc.Sequence[SequenceView],
        claimant: SequenceView,
        standing: abc.Mapping[TenantId, float],
        now: Nanos,
    ) -> abc.Iterator[SequenceView]:
        later = [seq for seq in resident if seq.arrival_index > claimant.arrival_index]
        later.sort(key=lambda seq: seq.arrival_index, reverse=True)
        return iter(later)
