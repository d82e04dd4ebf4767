"""How a victim gives up blocks: moved to the host, all of them or the last ones, or dropped and computed again.

The choice is by the measured prices: a swap costs its way back, what of its way out is not hidden, and the bytes that
are queued on the link already; recomputation costs a prefill of everything known, which nobody else can use the step
for. Source of both ways: Kwon et al. 2023 (PagedAttention), §4.5; there the choice is fixed, here it is per victim.
"""

import math

from engine.core import by_arrival
from engine.core.config import PreemptionChoice, SchedulerConfig
from engine.core.events import Move, MoveKind, Preempted
from engine.core.lifecycle import Lifecycle
from engine.core.plan import CopyDirection
from engine.core.policy import LeaveReason
from engine.core.sequence import Sequence
from engine.core.types import CopyId, Nanos, PauseReason, PreemptionMode, SequenceStatus

MIN_SWAPPED_BLOCKS = 2  # below, a copy is not worth its launch and the wait for it


class Preemptions:
    """Takes blocks from sequences that no open plan and no copy uses, and brings back what was swapped out."""

    def __init__(self, config: SchedulerConfig, lifecycle: Lifecycle) -> None:
        self._config = config
        self._lifecycle = lifecycle
        self._blocks = lifecycle.blocks
        self._link_free_at = dict.fromkeys(CopyDirection, 0.0)

    def is_link_free(self, direction: CopyDirection, now: Nanos) -> bool:
        """True unless the last copy in this direction used up the link's share of the time until after `now`.

        Where nothing runs and nothing is copied, all would wait for a link that nobody uses: it is free.
        """
        is_unused = not self._lifecycle.running and not self._blocks.in_flight
        return self._config.link_share == 1 or now >= self._link_free_at[direction] or is_unused

    def note_copy(self, direction: CopyDirection, num_blocks: int, now: Nanos) -> None:
        """A copy begins, and takes the link for its time over the share that swaps may have."""
        prices = self._lifecycle.prices
        block_ns = prices.copy_out_block_ns if direction is CopyDirection.OUT else prices.copy_in_block_ns
        copy_ns = prices.copy_launch_ns + num_blocks * block_ns
        self._link_free_at[direction] = max(now, self._link_free_at[direction]) + copy_ns / self._config.link_share

    def can_swap(self, victim: Sequence, num_blocks: int) -> bool:
        """True if so many of its last device blocks can be moved, and the host has room for them."""
        return (
            0 < num_blocks <= self._blocks.num_movable(victim.block_table)
            and num_blocks <= self._blocks.host_pool.num_free
            and self._config.preemption_mode is not PreemptionChoice.RECOMPUTE
        )

    def num_moved(self, victim: Sequence, num_needed: int) -> int:
        """Blocks that a swap would move to yield `num_needed`: the last ones, or all that nobody shares."""
        num_movable = self._blocks.num_movable(victim.block_table)
        if not self._config.partial_swap:
            return num_movable
        return min(num_movable, max(num_needed, MIN_SWAPPED_BLOCKS))

    def prefers_swap(self, victim: Sequence, num_blocks: int) -> bool:
        """True if moving `num_blocks` is the cheaper way, or the only one that is allowed."""
        if self._config.preemption_mode is not PreemptionChoice.AUTO:
            return self._config.preemption_mode is PreemptionChoice.SWAP
        num_computed = victim.num_computed_tokens
        if self._blocks.num_blocks(num_computed) < MIN_SWAPPED_BLOCKS:
            return False
        prices = self._lifecycle.prices
        out_ns = prices.copy_launch_ns + num_blocks * prices.copy_out_block_ns
        in_ns = prices.copy_launch_ns + num_blocks * prices.copy_in_block_ns
        others_run = any(seq is not victim for seq in self._lifecycle.running)
        hidden_ns = prices.step.base_ns + prices.step.decode_ns if others_run else 0.0  # the copy runs beside a step
        swap_ns = in_ns + max(0.0, out_ns - hidden_ns) + self.queued_out_ns()
        # What is dropped frees every block: where one head waits behind the other, the price of each block counts.
        # Blocks that others use stay in the cache, and what is in them need not be computed again.
        num_shared = len(victim.block_table.device) - self._blocks.num_movable(victim.block_table)
        num_lost = max(0, num_computed - num_shared * self._config.block_size)
        num_dropped = max(num_blocks, len(victim.block_table.device) - num_shared)
        return swap_ns / num_blocks < prices.step.chunk_ns(num_computed - num_lost, num_lost) / num_dropped

    def queued_out_ns(self) -> float:
        """Time that the copies under way to the host still take, counted as if none had progressed."""
        price = self._lifecycle.prices.copy_out_block_ns
        copies = (entry.copy for entry in self._blocks.in_flight.values())
        return math.fsum(len(copy.host_block_ids) * price for copy in copies if copy.direction is CopyDirection.OUT)

    def swap_out(self, victim: Sequence, num_blocks: int, reason: PauseReason, now: Nanos, claimant: str = "") -> None:
        """The last `num_blocks` device blocks are on their way to the host, and fenced until the copy is complete.

        `claimant` is the request that they are taken for, if there is one.
        """
        lifecycle = self._lifecycle
        self._leave(victim, Preempted(victim.key, PreemptionMode.SWAP, reason, now, claimant))
        victim.timeline.begin_move(Move(MoveKind.SWAP_OUT, victim.num_preemptions, num_blocks, 0, now))
        lifecycle.set_status(victim, SequenceStatus.SWAPPING_OUT)
        lifecycle.copies.append(self._blocks.swap_out(victim, num_blocks))
        self.note_copy(CopyDirection.OUT, num_blocks, now)
        account = victim.flow.account
        account.num_swaps_out += 1
        lifecycle.num_swaps += 1
        account.num_copied_blocks += num_blocks

    def swap_in(self, seq: Sequence, now: Nanos) -> None:
        """A swapped sequence comes back. The caller has checked that its blocks are free."""
        lifecycle = self._lifecycle
        lifecycle.policy.on_leave(seq, LeaveReason.ADMITTED, now)
        lifecycle.leave_list(seq)
        lifecycle.set_status(seq, SequenceStatus.SWAPPING_IN)
        copy = self._blocks.swap_in(seq)
        num_blocks = len(copy.host_block_ids)
        lifecycle.copies.append(copy)
        self.note_copy(CopyDirection.IN, num_blocks, now)
        seq.flow.account.num_swaps_in += 1
        seq.flow.account.num_copied_blocks += num_blocks
        seq.timeline.begin_move(Move(MoveKind.SWAP_IN, seq.num_preemptions, num_blocks, 0, now))

    def complete_copy(self, copy_id: CopyId, now: Nanos) -> None:
        """A copy has ended: its sequence is swapped, or resident again, or gone. KeyError if it is not in flight."""
        lifecycle = self._lifecycle
        seq = self._blocks.complete(copy_id).seq
        if seq is None:
            return  # what nobody uses has moved
        seq.timeline.end_move(now)
        if seq.status is SequenceStatus.FINISHED:
            self._blocks.free(seq)
        elif seq.status is SequenceStatus.SWAPPING_OUT:
            lifecycle.set_status(seq, SequenceStatus.SWAPPED)
            by_arrival.insert(lifecycle.swapped, seq)
            if seq.hold_reason is None:
                lifecycle.policy.on_arrive(seq, now)
        else:
            seq.resident_since = lifecycle.num_plans
            lifecycle.set_status(seq, SequenceStatus.PAUSED)
            by_arrival.insert(lifecycle.paused if seq.hold_reason is None else lifecycle.held, seq)

    def recompute(self, victim: Sequence, reason: PauseReason, now: Nanos, claimant: str = "") -> None:
        """All its blocks are free; it waits, and will be computed again."""
        self._leave(victim, Preempted(victim.key, PreemptionMode.RECOMPUTE, reason, now, claimant))
        self._blocks.free(victim)
        victim.num_regained_tokens = max(victim.num_regained_tokens, victim.num_computed_tokens)
        victim.num_computed_tokens = 0
        self._lifecycle.wait(victim, now)

    def _leave(self, victim: Sequence, preempted: Preempted) -> None:
        lifecycle, now = self._lifecycle, preempted.at
        if victim.status is SequenceStatus.SWAPPED and victim.hold_reason is None:
            lifecycle.policy.on_leave(victim, LeaveReason.WITHDRAWN, now)
        if victim.status is not SequenceStatus.SWAPPED:  # what gives up the rest was preempted already
            victim.num_preemptions += 1
            victim.flow.account.num_preemptions += 1
            lifecycle.num_preemptions += 1
            lifecycle.tell(victim, preempted)
        lifecycle.leave_list(victim)
        lifecycle.leave_row(victim)
        victim.timeline.suspend(now)
