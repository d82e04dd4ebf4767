"""What the prefix cache keeps, on its way between the pools: down before it is evicted, and back when it is found.

Down to the host go the blocks that would be evicted next, while fewer are empty than a step can take. Up come those
that a head finds behind what it finds on the device: it comes in and waits for the copy, like one that was swapped out.
Both are copies like any other, and fence what they move.
"""

from engine.core.config import SchedulerConfig
from engine.core.costs import Prices
from engine.core.events import DispatchReason
from engine.core.lifecycle import Lifecycle
from engine.core.plan import CopyDirection
from engine.core.policy import LeaveReason
from engine.core.preemption import Preemptions
from engine.core.sequence import Sequence
from engine.core.types import Nanos, SequenceStatus

HEADROOM = 1 / 8  # of the pool, which stays to be had while blocks move down


class Tiers:
    """Moves cached blocks of one scheduler."""

    def __init__(self, config: SchedulerConfig, lifecycle: Lifecycle, preemptions: Preemptions) -> None:
        self._config = config
        self._lifecycle = lifecycle
        self._blocks = lifecycle.blocks
        self._preemptions = preemptions
        self._low_water = -(-config.max_num_batched_tokens // config.block_size) + config.max_num_seqs

    def price(self, prices: Prices) -> None:
        """Blocks are brought from the host where that is sooner than to compute them."""
        if self._blocks.prefixes is not None:
            block_ns = prices.step.chunk_ns(0, self._config.block_size)
            self._blocks.prefixes.price(prices.step, fetches=prices.copy_in_block_ns <= block_ns)

    def stay_idle(self, num_blocks: int) -> bool:
        """True if nothing moves down while so many more blocks are taken, whatever else does not change."""
        prefixes = self._blocks.prefixes
        if prefixes is None or not self._config.num_host_blocks or not prefixes.num_demotable:
            return True
        return self._blocks.pool.num_empty - num_blocks >= self._low_water

    def demote(self, now: Nanos) -> None:
        """Some kept blocks are on their way to the host if room is short. Nobody lacks any in the plan that is made."""
        blocks, prefixes = self._blocks, self._blocks.prefixes
        if prefixes is None or not self._config.num_host_blocks or blocks.in_flight:
            return
        num_left = blocks.num_free - int(HEADROOM * self._config.num_device_blocks) - 1
        num_blocks = min(self._low_water - blocks.pool.num_empty, prefixes.num_demotable, num_left)
        if num_blocks <= 0 or not self._preemptions.is_link_free(CopyDirection.OUT, now):
            return
        copy = blocks.demote(num_blocks)
        if copy is not None:
            self._lifecycle.copies.append(copy)
            self._preemptions.note_copy(CopyDirection.OUT, len(copy.device_block_ids), now)

    def fetch(self, seq: Sequence, reason: DispatchReason, now: Nanos) -> bool:
        """True if what `seq`, a head, found is in its table or on its way there. Its blocks are free; the link may not
        be."""
        lifecycle, account = self._lifecycle, seq.flow.account
        if not self._preemptions.is_link_free(CopyDirection.IN, now):
            return False
        copy = self._blocks.fetch(seq)  # and others wait for it
        lifecycle.policy.on_leave(seq, LeaveReason.ADMITTED, now)
        lifecycle.set_status(seq, SequenceStatus.SWAPPING_IN)
        if seq.timeline.started_at is None:
            lifecycle.begin_service(seq, now, reason)
        account.num_copied_blocks += len(copy.host_block_ids)
        lifecycle.copies.append(copy)
        self._preemptions.note_copy(CopyDirection.IN, len(copy.host_block_ids), now)
        return True
