"""Log-probabilities of prompts' own tokens, chunk by chunk as they are computed.

Each token is judged by the logits of the token before it. Logits are made for a slice of a chunk at a time and dropped
again, so that a long prompt's never exist together.
"""

from collections import abc
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.core.plan import TokenLogprobs
from engine.runner.chunks import Chunks
from engine.runner.row_table import NO_LOGPROBS, RowTable

SLICE_TOKENS = 64  # whose logits exist at a time: 12 MB with 49,152 tokens in the vocabulary


@dataclass(frozen=True, slots=True)
class PromptScores:
    """By row: one entry for each token behind the chunk's first that is still prompt; or what is wrong."""

    logprobs: abc.Mapping[int, tuple[TokenLogprobs, ...]]
    errors: abc.Mapping[int, str]


def has_wanted(chunks: Chunks, rows: RowTable) -> bool:
    """Whether a chunk says something of a prompt whose log-probabilities are wanted."""
    is_wanted = rows.sampling["num_prompt_logprobs"][chunks.rows] != NO_LOGPROBS
    return bool(is_wanted.any()) and bool((_num_wanted(chunks, rows) > 0).any())


LogitsOf = abc.Callable[[int, int], Tensor]
"""[S, V] float32 of the tokens of a step from one place to before another."""


def score_prompts(logits_of: LogitsOf, chunks: Chunks, rows: RowTable, non_finite: str) -> PromptScores:
    """The rows' prompts as far as `chunks` tell. A row whose logits are not finite has the error `non_finite`."""
    logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
    errors: dict[int, str] = {}
    num_wanted = _num_wanted(chunks, rows)
    for chunk in np.flatnonzero(num_wanted > 0).tolist():
        row, start, offset = (int(column[chunk]) for column in (chunks.rows, chunks.starts, chunks.offsets))
        targets = rows.token_ids[row, start + 1 : start + 1 + int(num_wanted[chunk])]
        num_top = int(rows.sampling["num_prompt_logprobs"][row])
        entries: list[TokenLogprobs] = []
        for begin in range(0, len(targets), SLICE_TOKENS):
            judged = targets[begin : begin + SLICE_TOKENS]
            entries += _entries(logits_of(offset + begin, offset + begin + len(judged)), judged, num_top)
        if all(np.isfinite(entry.logprob) for entry in entries):
            logprobs[row] = tuple(entries)
        else:
            errors[row] = non_finite
    return PromptScores(logprobs, errors)


def _num_wanted(chunks: Chunks, rows: RowTable) -> NDArray[np.int64]:
    """[chunks]: how many tokens behind the first one of each are judged."""
    is_wanted = rows.sampling["num_prompt_logprobs"][chunks.rows] != NO_LOGPROBS
    last = np.minimum(chunks.num_keys, rows.num_prompt_tokens[chunks.rows] - 1)
    return np.where(is_wanted, np.maximum(0, last - chunks.starts), 0)


def _entries(logits: Tensor, targets: NDArray[np.int64], num_top: int) -> list[TokenLogprobs]:
    logprobs = logits.log_softmax(-1)
    of_targets = logprobs.gather(1, torch.from_numpy(targets).to(logits.device)[:, None])[:, 0].tolist()
    top = logprobs.topk(min(num_top, logits.shape[1]))
    return [
        TokenLogprobs(logprob, tuple(zip(ids, values, strict=True)))
        for logprob, ids, values in zip(of_targets, top.indices.tolist(), top.values.tolist(), strict=True)
    ]
