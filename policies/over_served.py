"""Victims by service: a lower class before a higher one, then whoever was served most, then the latest arrival.

`standing` compares flows from the organization on, so a team of an over-served organization gives way before one that
is ahead inside an organization that is behind. Under a scheduling policy that does not count, this is latest arrival
within a class. The claimant takes part at its own place: it loses its own blocks before those of anyone who stands
better. The first to arrive of the flow that was served least, in the highest class, is the last to give way, so it
always gets on. O(resident log resident).
"""

from collections import abc

from engine.core.policy import SequenceView, Standing
from engine.core.types import Nanos


class OverServed:
    """The further ahead of its share a sequence's tenant is, the sooner it gives way."""

    def victims(
        self, resident: abc.Sequence[SequenceView], claimant: SequenceView, standing: Standing, now: Nanos
    ) -> abc.Iterator[SequenceView]:
        def precedence(seq: SequenceView) -> tuple[int, tuple[float, ...], int]:
            return (seq.priority_class.rank, standing(seq.flow), seq.arrival_index)

        return iter(sorted(resident, key=precedence, reverse=True))
