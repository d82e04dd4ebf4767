"""The rows of the batch: each running sequence's tokens, blocks and sampling settings, kept from step to step.

Arrays on the host, allocated once. A step reads and writes columns of them, so that nothing is sent or built anew
for the tokens that a sequence already has. Knows nothing of tensors.
"""

from collections import abc
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.config import SchedulerConfig
from engine.core.plan import RowStart, StepPlan
from engine.core.types import SamplingParams

SAMPLING_DTYPE = np.dtype(
    [
        ("temperature", np.float32),
        ("top_k", np.int64),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("repetition_penalty", np.float32),
        ("presence_penalty", np.float32),
        ("frequency_penalty", np.float32),
        ("seed", np.uint64),
        ("num_logprobs", np.int64),
        ("num_prompt_logprobs", np.int64),
    ]
)
"""`SamplingParams` as a row; the two numbers of logprobs are NO_LOGPROBS where none are wanted."""

NO_LOGPROBS = -1
_PLAIN = SamplingParams(temperature=0.0)
# What is nothing to who takes the likeliest token; log-probabilities of the prompt are no matter of its logits.
_OF_NO_ACCOUNT: dict[str, Any] = {  # Any: each setting has its own type
    name: getattr(_PLAIN, name) for name in ("top_k", "top_p", "min_p", "seed", "num_prompt_logprobs")
}
_SEED_MASK = (1 << 64) - 1


class RowTable:
    """Columns by row.

    token_ids  [rows, tokens of the longest request] int64; behind the known ones stand the proposed drafts
    block_ids  [rows, blocks of the longest request] int64, in token order
    sampling   [rows] of SAMPLING_DTYPE
    num_prompt_tokens [rows] int64
    num_blocks [rows], how many of `block_ids` are the row's
    stops      [rows], the tokens that end the row's output
    num_candidates [rows] int64, 0 where a token is drawn
    is_plain   [rows], whether all that the row asks of its logits is which one is the largest
    """

    def __init__(self, config: SchedulerConfig) -> None:
        num_rows = config.max_num_seqs
        num_blocks = -(-config.max_request_tokens // config.block_size)
        self.token_ids = np.zeros((num_rows, config.max_request_tokens), dtype=np.int64)
        self.block_ids = np.zeros((num_rows, num_blocks), dtype=np.int64)
        self.sampling = np.zeros(num_rows, dtype=SAMPLING_DTYPE)
        self.num_prompt_tokens = np.zeros(num_rows, dtype=np.int64)
        self.num_blocks = np.zeros(num_rows, dtype=np.int64)
        self.num_candidates = np.zeros(num_rows, dtype=np.int64)
        self.stops: list[frozenset[int]] = [frozenset()] * num_rows
        self.is_plain = np.zeros(num_rows, dtype=np.bool_)
        self._block_size = config.block_size
        self._changes: list[tuple[int, int, int]] | None = None

    def log_changes(self) -> None:
        """From now on `take_changes` tells of changed block ids: to be called by the one who takes them."""
        self._changes = []

    def take_changes(self) -> list[tuple[int, int, int]]:
        """(row, first of its blocks, number of blocks) whose ids were written since the last call."""
        changes, self._changes = self._changes or [], []
        return changes

    def apply(self, plan: StepPlan) -> None:
        """Take over who starts in which row, who got more blocks, and which tokens were chosen. A stopped row needs
        nothing: it is overwritten."""
        for start in plan.started:
            self._start(start)
        for row, block_ids in plan.new_blocks:
            self._append_blocks(row, block_ids)
        if plan.chosen:
            starts = dict(zip(plan.rows, plan.starts, strict=True))
            for row, token_id in plan.chosen:
                self.token_ids[row, starts[row]] = token_id

    def append_tokens(
        self, rows: NDArray[np.int64], positions: NDArray[np.int64], token_ids: NDArray[np.int64]
    ) -> None:
        """Keep each row's new tokens at their positions."""
        self.token_ids[rows, positions] = token_ids

    def num_until_stop(self, row: int, start: int, num_tokens: int) -> int:
        """Of the tokens [start, start + num_tokens) of a row, those up to the first that ends its output."""
        stops = self.stops[row]
        for nth, token_id in enumerate(self.token_ids[row, start : start + num_tokens].tolist() if stops else ()):
            if token_id in stops:
                return nth + 1
        return num_tokens

    def accept(
        self, rows: NDArray[np.int64], positions: NDArray[np.int64], token_ids: NDArray[np.int64], *, trims: bool
    ) -> None:
        """As `append_tokens`; with `trims`, each row has no blocks but those that hold its tokens now."""
        self.append_tokens(rows, positions, token_ids)
        if trims:
            num_blocks = -(-(positions + 1) // self._block_size)
            self.num_blocks[rows] = np.minimum(self.num_blocks[rows], num_blocks)

    def _start(self, start: RowStart) -> None:
        self.token_ids[start.row, : len(start.token_ids)] = start.token_ids
        self.sampling[start.row] = _sampling_row(start.sampling)
        self.num_prompt_tokens[start.row] = start.num_prompt_tokens
        self.num_blocks[start.row] = 0
        self.stops[start.row] = start.stop_token_ids
        self.num_candidates[start.row] = start.num_candidates
        asks_for_likeliest = replace(start.sampling, **_OF_NO_ACCOUNT) == _PLAIN
        self.is_plain[start.row] = asks_for_likeliest and not start.num_candidates
        self._append_blocks(start.row, start.block_ids)

    def _append_blocks(self, row: int, block_ids: abc.Sequence[int]) -> None:
        begin = self.num_blocks[row]
        self.block_ids[row, begin : begin + len(block_ids)] = block_ids
        if self._changes is not None:
            self._changes.append((row, int(begin), len(block_ids)))
        self.num_blocks[row] = begin + len(block_ids)


def _sampling_row(sampling: SamplingParams) -> tuple[float | int, ...]:
    return (
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        sampling.repetition_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
        sampling.seed & _SEED_MASK,
        NO_LOGPROBS if sampling.num_logprobs is None else sampling.num_logprobs,
        NO_LOGPROBS if sampling.num_prompt_logprobs is None else sampling.num_prompt_logprobs,
    )
