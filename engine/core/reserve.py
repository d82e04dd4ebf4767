"""The most blocks that a set of sequences can come to need together, if each runs to its limit and then frees its own.

Source: the "future required memory" of LightLLM's past-future scheduler (Gong et al. 2025), limits for predictions.
"""

from collections import abc

from engine.core.block_manager import BlockManager
from engine.core.sequence import Sequence


def peak_num_blocks(seqs: abc.Iterable[Sequence], blocks: BlockManager) -> int:
    """Blocks beyond those that the sequences have, at the worst moment until the last of them ends.

    When the sequence with the k-th most output to come ends, it and all that come after it are still there, each grown
    by as many tokens: the peak is at one of these moments.
    """
    by_remaining = sorted(seqs, key=lambda seq: seq.num_tokens - seq.max_num_tokens)  # most output to come first
    peak = num_held = 0
    total = 0
    for count, seq in enumerate(by_remaining, start=1):
        num_held += len(seq.block_table.device)
        total += seq.num_tokens
        remaining = seq.max_num_tokens - seq.num_tokens
        peak = max(peak, blocks.num_blocks(total + remaining * count))
    return peak - num_held
