"""What may follow a beam: its likeliest next tokens, for all beams of a step together. Knows no search."""

from collections import abc
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.core.plan import Candidate, TokenLogprobs
from engine.runner.row_table import NO_LOGPROBS, RowTable


@dataclass(frozen=True, slots=True)
class Found:
    """By row: its candidates, the likeliest first, and for those that want them the log-probabilities of each."""

    candidates: abc.Mapping[int, tuple[Candidate, ...]]
    logprobs: abc.Mapping[int, tuple[TokenLogprobs, ...]]


def are_searched(rows: NDArray[np.int64], table: RowTable) -> NDArray[np.bool_]:
    """[R]: which of `rows` tell candidates instead of a drawn token."""
    searched: NDArray[np.bool_] = table.num_candidates[rows] > 0
    return searched


def find_candidates(logits: Tensor, adjusted: Tensor, rows: NDArray[np.int64], table: RowTable) -> Found:
    """Of logits [R, V] float32 of `rows`, and what penalties, biases and masks have made of them; -inf is no candidate.

    The probabilities of candidates are those of `adjusted`, so that they sum up to 1 over what is allowed. Those that
    are told as logprobs are the model's own, of `logits`.
    """
    numbers = table.num_candidates[rows].tolist()
    top = adjusted.log_softmax(-1).topk(min(max(numbers), adjusted.shape[1]))
    found: dict[int, tuple[Candidate, ...]] = {}
    for row, number, ids, values in zip(rows.tolist(), numbers, top.indices.tolist(), top.values.tolist(), strict=True):
        pairs = zip(ids[:number], values[:number], strict=True)
        found[row] = tuple([Candidate(token_id, value) for token_id, value in pairs if value != -np.inf])
    wanted = np.flatnonzero(table.sampling["num_logprobs"][rows] != NO_LOGPROBS)
    return Found(found, _logprobs(logits, top.indices, rows, wanted, table, found) if len(wanted) else {})


def _logprobs(
    logits: Tensor,
    token_ids: Tensor,
    rows: NDArray[np.int64],
    wanted: NDArray[np.int64],
    table: RowTable,
    found: abc.Mapping[int, tuple[Candidate, ...]],
) -> dict[int, tuple[TokenLogprobs, ...]]:
    index = torch.from_numpy(wanted).to(logits.device)
    logprobs = logits[index].log_softmax(-1)
    own = logprobs.gather(1, token_ids[index]).tolist()
    num_top = table.sampling["num_logprobs"][rows[wanted]].tolist()
    top = logprobs.topk(min(max(num_top), logits.shape[1]))
    told = {}
    columns = zip(rows[wanted].tolist(), num_top, own, top.indices.tolist(), top.values.tolist(), strict=True)
    for row, number, values, ids, top_values in columns:
        likeliest = tuple(zip(ids[:number], top_values[:number], strict=True))
        told[row] = tuple([TokenLogprobs(value, likeliest) for value in values[: len(found[row])]])
    return told
