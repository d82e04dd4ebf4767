"""Blocks of which a prompt finds only the first tokens: copied into a block of its own, where it goes on behind them.

Such a block is the last one of the same prompt, which ends within it, or one in which two prompts part. It is found by
the block before it, which stands for the salt and for all tokens up to there, and its tokens are compared one by one.
Nobody shares it, because its finder writes it at once: copy-on-write, with the write known beforehand.

Only prompt tokens are compared, those of outputs never: what is found follows from what a log may tell of prompts.
"""

from engine.core.block_names import BlockName, name_after
from engine.core.cached_blocks import CachedBlocks, Label
from engine.core.costs import StepCosts
from engine.core.sequence import Sequence, Tail
from engine.core.types import BlockId


class Tails:
    """Of the blocks in `cached`. `costs` are those of a step, by which waiting is weighed against computing."""

    def __init__(self, cached: CachedBlocks[BlockId], block_size: int) -> None:
        self.costs = StepCosts()
        self._cached = cached
        self._size = block_size

    def find(self, seq: Sequence, num_blocks: int) -> Tail | None:
        """What there is of the prompt of `seq` behind its first `num_blocks` blocks, which have names; not its last
        token."""
        start = num_blocks * self._size
        end = min(start + self._size, seq.num_prompt_tokens, seq.num_tokens - 1)
        if start >= end:
            return None
        common = self._cached.continuations.most_common(
            previous_name(seq, num_blocks), seq.compared_token_ids[start:end]
        )
        return Tail(common.block_id, common.num_tokens) if common is not None and common.num_tokens else None

    def label(self, seq: Sequence) -> None:
        """The block in which the prompt of `seq` ends is found, if that is computed and the block is not full."""
        index, num_tokens = divmod(seq.num_prompt_tokens, self._size)
        is_computed = seq.num_computed_tokens >= seq.num_prompt_tokens and seq.is_sound
        if not num_tokens or not is_computed or seq.num_computed_tokens // self._size != index:
            return
        block_id, name = seq.block_table.device[index], end_name(seq, self._size)
        if self._cached.label(block_id) is None and self._cached.find(name) is None:
            self._cached.name(block_id, label_of(seq, index, name, self._size)._replace(is_full=False))

    def awaited(self, seq: Sequence, num_blocks: int, num_found: int) -> BlockName | None:
        """The name of what is left of the prompt of `seq` behind its first `num_blocks` blocks, if that ends within the
        next block, and it pays to wait for another that computes the same: else one step more takes longer than the
        tokens. `num_found` tokens need not be computed anyway."""
        num_saved = seq.num_prompt_tokens - 1 - num_found
        is_last = (seq.num_prompt_tokens - 1) // self._size == num_blocks and seq.num_tokens == seq.num_prompt_tokens
        if not is_last or num_saved <= 0 or self.costs.chunk_ns(num_found, num_saved) < self.costs.base_ns:
            return None
        return name_at(seq, num_blocks, self._size)


def previous_name(seq: Sequence, index: int) -> BlockName:
    """The name of the block before that at `index`."""
    return seq.block_names[index - 1] if index else seq.root_name


def name_at(seq: Sequence, index: int, block_size: int) -> BlockName | None:
    """The name of the block at `index`, the one in which the prompt ends included; None: it is not known."""
    if index < len(seq.block_names):
        return seq.block_names[index]
    is_end = index == seq.num_prompt_tokens // block_size and seq.num_prompt_tokens % block_size
    return end_name(seq, block_size) if is_end else None


def end_name(seq: Sequence, block_size: int) -> BlockName:
    """The name of what the prompt of `seq` has in the block in which it ends, where it does not fill it."""
    if seq.end_name is None:
        index = seq.num_prompt_tokens // block_size
        seq.end_name = name_after(previous_name(seq, index), seq.compared_token_ids[index * block_size :])
    return seq.end_name


def label_of(seq: Sequence, index: int, name: BlockName, block_size: int) -> Label:
    """Of the full block of this name at `index`, with those of its tokens that are of the prompt."""
    token_ids = tuple(seq.compared_token_ids[index * block_size : (index + 1) * block_size])
    return Label(name, seq.tenant_id, previous_name(seq, index), token_ids)
