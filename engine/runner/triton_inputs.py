"""A step's inputs for the Triton kernels: sent in one copy, and padded where a recording may run them."""

import bisect

import numpy as np
import torch

from engine.core.config import SchedulerConfig
from engine.core.plan import StepPlan
from engine.model.forward_batch import ForwardBatch
from engine.model.info import LoadedModel
from engine.runner.chunks import Chunks, Slots
from engine.runner.inputs import StepArrays, StepInputs, step_arrays
from engine.runner.kv_cache import KvCache
from engine.runner.row_table import RowTable
from engine.runner.step_columns import StepColumns
from engine.runner.triton_planner import TritonPlanner, num_columns

_NOBODY = np.zeros(0, dtype=np.int64)


class TritonInputs:
    """`planner` is public for the launches that it may be given.

    `sizes`, ascending, are numbers of tokens to which steps are padded that only decode; none: nothing is padded.
    """

    def __init__(
        self,
        model: LoadedModel,
        kv_cache: KvCache,
        rows: RowTable,
        config: SchedulerConfig,
        sizes: tuple[int, ...] = (),
    ) -> None:
        capacity = num_columns(config.max_num_seqs, config.max_num_batched_tokens, sizes)
        self._columns = StepColumns(capacity, model.device)
        self.planner = TritonPlanner(model, kv_cache, rows, self._columns)
        self._rows = rows
        self._block_size = config.block_size
        self._sizes = sizes
        self._no_blocks = torch.zeros(0, dtype=torch.int64, device=model.device)

    def build(self, plan: StepPlan) -> StepInputs:
        """As `InputBuilder.build`. No block has to be cleared, because no kernel reads behind a sequence's last key."""
        arrays = step_arrays(plan, self._rows, self._block_size)
        size = self._padded_size(arrays)
        batch = self._batch(arrays, size)
        return StepInputs(
            batch=batch,
            chunks=arrays.chunks,
            entered_blocks=self._no_blocks,
            sampled_rows=arrays.sampled_rows,
            sampled_positions=arrays.sampled_positions,
            padded_size=size,
            drafted=arrays.drafted,
        )

    def padding(self, size: int) -> ForwardBatch:
        """A step of `size` tokens that see and leave nothing, where `build` puts those that are padded to it."""
        return self._batch(StepArrays(Chunks(*[_NOBODY] * 4), _NOBODY, _NOBODY, Slots(_NOBODY, _NOBODY), _NOBODY), size)

    def _batch(self, arrays: StepArrays, size: int) -> ForwardBatch:
        """`size` 0: as it is, without padding."""
        self._columns.begin()
        num_tokens = len(arrays.positions)
        num_padding = max(0, size - num_tokens)
        token_ids = self._columns.put(np.pad(arrays.token_ids, (0, num_padding)))
        positions = self._columns.put(np.pad(arrays.positions, (0, num_padding)))
        sampled = np.concatenate((arrays.sampled_index, np.arange(num_tokens, num_tokens + num_padding)))
        sampled_index = self._columns.put(sampled)
        attention = self.planner.plan(arrays.chunks, arrays.slots, num_padding)
        self.planner.put_new_blocks()
        self._columns.send()
        self.planner.update_tables()
        is_padding_only = not num_tokens
        return ForwardBatch(
            token_ids=token_ids,
            positions=positions,
            attention=attention,
            sampled_index=sampled_index if is_padding_only else sampled_index[: len(arrays.sampled_index)],
        )

    def _padded_size(self, arrays: StepArrays) -> int:
        """The least of the sizes that holds a step of decodes which all sample; 0 for any other step."""
        num_tokens, num_chunks = len(arrays.positions), len(arrays.chunks.rows)
        if num_tokens != num_chunks or len(arrays.sampled_index) != num_tokens:
            return 0
        index = bisect.bisect_left(self._sizes, num_tokens)
        return self._sizes[index] if index < len(self._sizes) else 0
