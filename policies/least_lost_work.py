"""Victims by loss: whoever would have to compute least again, for each block that the claimant gains by it.

A victim that is computed again loses all its computed tokens, whether one of its blocks is needed or all, so a block
gained costs computed tokens / min(its blocks, blocks needed). A claimant that has blocks needs one more; one that has
none needs room for all its known tokens, estimated from the tokens that a block of the residents holds. With swap
nothing is lost, and the same order moves the least.

No bound for any one sequence: the youngest lose again and again, until the core's cap on preemptions protects them.
O(resident log resident).
"""

from collections import abc

from engine.core.policy import SequenceView, Standing
from engine.core.types import Nanos


class LeastLostWork:
    """The cheaper a block of a sequence is to take, the sooner it gives way; of equals, the latest arrival."""

    def victims(
        self, resident: abc.Sequence[SequenceView], claimant: SequenceView, standing: Standing, now: Nanos
    ) -> abc.Iterator[SequenceView]:
        num_needed = _num_needed_blocks(resident, claimant)

        def loss(seq: SequenceView) -> tuple[float, int]:
            num_gained = min(seq.num_device_blocks, num_needed)
            return (seq.num_computed_tokens / max(1, num_gained), -seq.arrival_index)

        return iter(sorted(resident, key=loss))


def _num_needed_blocks(resident: abc.Sequence[SequenceView], claimant: SequenceView) -> int:
    if claimant.num_device_blocks:
        return 1
    fullest = max((-(-seq.num_computed_tokens // max(1, seq.num_device_blocks)) for seq in resident), default=0)
    return -(-claimant.num_tokens // max(1, fullest))
