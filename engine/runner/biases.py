"""What requests add to the logits of tokens of their choice. Costs what it holds: nothing where no row has any."""

from collections import abc

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.core.plan import RowStart


class BiasTable:
    """Per row, token ids and what is added to each one's logit."""

    def __init__(self, num_rows: int) -> None:
        self._is_biased = np.zeros(num_rows, dtype=np.bool_)
        self._token_ids: dict[int, NDArray[np.int64]] = {}
        self._biases: dict[int, NDArray[np.float32]] = {}

    def start(self, started: abc.Iterable[RowStart]) -> None:
        """These rows have the biases of their new sequences."""
        for start in started:
            pairs = start.sampling.logit_biases
            self._is_biased[start.row] = bool(pairs)
            if pairs:
                self._token_ids[start.row] = np.array([token_id for token_id, _ in pairs], dtype=np.int64)
                self._biases[start.row] = np.array([bias for _, bias in pairs], dtype=np.float32)

    def adjust(self, logits: Tensor, rows: NDArray[np.int64]) -> Tensor:
        """Finite `logits` [R, V] with the rows' biases, finite still: a new tensor if any row has one."""
        biased = np.flatnonzero(self._is_biased[rows])
        if not len(biased):
            return logits
        token_ids = [self._token_ids[row] for row in rows[biased].tolist()]
        index = np.repeat(biased, [len(each) for each in token_ids])
        at = tuple(torch.from_numpy(each).to(logits.device) for each in (index, np.concatenate(token_ids)))
        added = np.concatenate([self._biases[row] for row in rows[biased].tolist()])
        adjusted = logits.index_put(at, torch.from_numpy(added).to(logits.device), accumulate=True)
        limits = torch.finfo(adjusted.dtype)
        return adjusted.clamp_(limits.min, limits.max)
