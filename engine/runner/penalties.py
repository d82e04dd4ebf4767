"""Repetition, presence and frequency penalties, from counts that are kept per row.

Counting costs one addition per sampled token; nothing is counted again. The tables span rows x vocabulary, but the
operating system hands out their memory only where a row with penalties touches it.
"""

from collections import abc

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.core.plan import RowStart
from engine.core.types import SamplingParams
from engine.runner.verification import Drafted

_UNPENALIZED = (1.0, 0.0, 0.0)
_ONE = torch.ones((), dtype=torch.int32)


class PenaltyTable:
    """Which tokens each row's prompt holds and how often its output held each token. [rows, vocabulary] both."""

    def __init__(self, num_rows: int, vocabulary_size: int, device: torch.device) -> None:
        shape = (num_rows, vocabulary_size)  # numpy's zeros touch no memory, torch's touch all of it
        self._in_prompt = torch.from_numpy(np.zeros(shape, dtype=np.bool_)).to(device)
        self._num_in_output = torch.from_numpy(np.zeros(shape, dtype=np.int32)).to(device)
        self._is_penalized = np.zeros(num_rows, dtype=np.bool_)

    def start(self, started: abc.Iterable[RowStart]) -> None:
        """Count anew for these rows, from all the tokens that each one brings."""
        for start in started:
            self._is_penalized[start.row] = _penalties(start.sampling) != _UNPENALIZED
            if self._is_penalized[start.row]:
                prompt, output = (
                    torch.tensor(token_ids, dtype=torch.int64, device=self._in_prompt.device)
                    for token_ids in (
                        start.token_ids[: start.num_prompt_tokens],
                        start.token_ids[start.num_prompt_tokens :],
                    )
                )
                self._in_prompt[start.row].zero_().index_fill_(0, prompt, value=True)
                self._num_in_output[start.row] = torch.bincount(output, minlength=self._num_in_output.shape[1])

    def record_chosen(self, chosen: abc.Sequence[tuple[int, int]]) -> None:
        """Count tokens that were chosen for rows, (row, token)."""
        if chosen and self._is_penalized[[row for row, _ in chosen]].any():
            rows, token_ids = np.array(chosen, dtype=np.int64).T
            self.record(rows, torch.from_numpy(token_ids.copy()).to(self._in_prompt.device))

    def record(self, rows: NDArray[np.int64], token_ids: Tensor) -> None:
        """Count output tokens. token_ids [R] int64, one for each of `rows`, where a row may come several times."""
        penalized = np.flatnonzero(self._is_penalized[rows])
        if len(penalized):
            row_index = torch.from_numpy(rows[penalized]).to(token_ids.device)
            counted = token_ids[torch.from_numpy(penalized).to(token_ids.device)]
            self._num_in_output.index_put_((row_index, counted), _ONE.to(token_ids.device), accumulate=True)

    def adjust(
        self, logits: Tensor, rows: NDArray[np.int64], settings: NDArray[np.void], drafted: Drafted | None = None
    ) -> Tensor:
        """Finite `logits` [R, V] with the penalties of `settings`, finite still: a new tensor if any row has one.

        A token of the prompt or output is pushed away from the top by division or multiplication (Keskar et al.
        2019), then the ones of the output lose `presence` once and `frequency` for each time. Logits behind drafts
        count these as output.
        """
        penalized = np.flatnonzero(self._is_penalized[rows])
        if not len(penalized):
            return logits
        index = torch.from_numpy(penalized).to(logits.device)
        row_index = torch.from_numpy(rows[penalized]).to(logits.device)
        repetition, presence, frequency = (
            torch.from_numpy(settings[name][penalized]).to(logits.device)[:, None]
            for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")
        )
        counts = self._num_in_output[row_index]
        if drafted is not None:
            _count_drafts(counts, penalized, drafted)
        plain = logits[index]
        repeated = torch.where(plain > 0, plain / repetition, plain * repetition)
        adjusted = torch.where(self._in_prompt[row_index] | (counts > 0), repeated, plain)
        adjusted -= frequency * counts + presence * (counts > 0)
        # A penalty near 0 overflows; an infinite logit would make every probability of its row NaN.
        limits = torch.finfo(adjusted.dtype)
        return logits.index_copy(0, index, adjusted.clamp_(limits.min, limits.max))


def _count_drafts(counts: Tensor, penalized: NDArray[np.int64], drafted: Drafted) -> None:
    """To counts [n, V], one row for each of the logits in `penalized`, the drafts before it are added."""
    of, token_ids = drafted.before()
    place = np.searchsorted(penalized, of)
    is_counted = penalized[np.minimum(place, len(penalized) - 1)] == of
    index = (
        torch.from_numpy(place[is_counted]).to(counts.device),
        torch.from_numpy(token_ids[is_counted]).to(counts.device),
    )
    counts.index_put_(index, _ONE.to(counts.device), accumulate=True)


def _penalties(sampling: SamplingParams) -> tuple[float, float, float]:
    return sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty
