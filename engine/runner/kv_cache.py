"""The paged KV cache: one tensor for all layers, and the scratch memory that gathered blocks go through.

A block is cleared in the step that writes its first slot. So what attention reads around a sequence's tokens (the
end of its last block, the null block that padding points to) is zeros and never another sequence's leftovers.
"""

import torch
from torch import Tensor

from engine.core.config import SchedulerConfig
from engine.model.info import LoadedModel

GATHERED_BYTES = 8 << 20  # of one layer, for one attention call: what it gathers should stay in the last-level cache


class KvCache:
    """blocks      [layers, num_device_blocks + 1, block_size, 2, KH, D], keys and values
    null_block  the last of them, always zeros, which no sequence owns
    gathered    [blocks, block_size, 2, KH, D], scratch memory for an attention group; holds the longest request
    """

    def __init__(self, model: LoadedModel, config: SchedulerConfig) -> None:
        per_block = (config.block_size, 2, model.config.num_kv_heads, model.config.head_dim)
        shape = (model.config.num_layers, config.num_device_blocks + 1, *per_block)
        self.blocks = torch.zeros(shape, dtype=model.dtype, device=model.device)
        self.null_block = config.num_device_blocks
        block_bytes = self.blocks[0, 0].nbytes
        num_longest = -(-config.max_request_tokens // config.block_size)
        num_gathered = max(num_longest, GATHERED_BYTES // block_bytes)
        self.gathered = torch.zeros((num_gathered, *per_block), dtype=model.dtype, device=model.device)

    def clear(self, block_ids: Tensor) -> None:
        """Fill the blocks with zeros. block_ids [n] int64."""
        self.blocks.index_fill_(1, block_ids, 0.0)
