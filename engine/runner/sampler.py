"""Draws the next token of every row at once.

A row keeps the tokens that top-k leaves, of these the smallest set that holds `top_p` of their mass, and of these the
ones at least `min_p` times as likely as the likeliest; ties at a border are kept. Each filter is a smallest value that
is kept, so no row is ever sorted whole unless its distribution is nearly flat. The draw inverts the distribution
function over the vocabulary in order of token id, so it does not depend on how a filter was computed.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.runner.random_draws import uniform

_NUCLEUS_WIDTH = 512  # likeliest tokens that are ranked first for top-p
_WIDENING = 8  # times as many are ranked again for a row whose nucleus reaches beyond them


@dataclass(frozen=True, slots=True)
class _Filters:
    """One entry per row: tokens allowed by rank (the whole vocabulary if not limited), and the mass to keep."""

    num_allowed: Tensor
    top_p: Tensor

    def take(self, index: Tensor) -> "_Filters":
        return _Filters(self.num_allowed[index], self.top_p[index])


def sample(logits: Tensor, settings: NDArray[np.void], positions: NDArray[np.int64]) -> Tensor:
    """The token ids [R] drawn from finite `logits` [R, V] float32, one for each row of `settings` and `positions`."""
    token_ids = logits.argmax(-1)
    drawing = np.flatnonzero(settings["temperature"] > 0)
    if len(drawing):
        index = torch.from_numpy(drawing).to(logits.device)
        token_ids[index] = _draw(logits[index], settings[drawing], positions[drawing])
    return token_ids


def _draw(logits: Tensor, settings: NDArray[np.void], positions: NDArray[np.int64]) -> Tensor:
    temperature = torch.from_numpy(settings["temperature"].copy()).to(logits.device)
    # The likeliest token is at 0, so the smallest temperature overflows towards -inf only.
    scaled = (logits - logits.amax(-1, keepdim=True)) / temperature[:, None]
    weights = scaled.exp().masked_fill_(scaled < _smallest_kept(scaled, settings)[:, None], 0.0)
    # On a CPU torch adds up in float64 and rounds each sum to float32: no token is off by more than 2^-24 of the whole.
    # A GPU adds up in float32. Asking for float64 would double the time of a draw.
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1:]
    draws = torch.from_numpy(uniform(settings["seed"], positions)).to(logits.device)[:, None]
    target = torch.minimum(draws * total, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True)[:, 0]


def _smallest_kept(scaled: Tensor, settings: NDArray[np.void]) -> Tensor:
    """[R]: tokens below this value of `scaled`, whose largest is 0, are filtered out."""
    vocabulary_size = scaled.shape[1]
    min_p = torch.from_numpy(settings["min_p"].copy()).to(scaled.device)
    smallest = min_p.log()  # -inf where it is off
    num_allowed = np.where(settings["top_k"] > 0, np.minimum(settings["top_k"], vocabulary_size), vocabulary_size)
    ranked = np.flatnonzero((num_allowed < vocabulary_size) | (settings["top_p"] < 1))
    if len(ranked):
        index = torch.from_numpy(ranked).to(scaled.device)
        filters = _Filters(
            torch.from_numpy(num_allowed[ranked]).to(scaled.device),
            torch.from_numpy(settings["top_p"][ranked]).to(scaled.device),
        )
        width = int(num_allowed[num_allowed < vocabulary_size].max(initial=_NUCLEUS_WIDTH))
        by_rank = _smallest_by_rank(scaled[index], filters, min(width, vocabulary_size))
        smallest[index] = torch.maximum(smallest[index], by_rank)
    return smallest


def _smallest_by_rank(scaled: Tensor, filters: _Filters, width: int) -> Tensor:
    """[R]: the smallest value that top-k and top-p keep, ranking the `width` likeliest tokens first."""
    vocabulary_size = scaled.shape[1]
    values = scaled.topk(width).values
    rank = torch.arange(width, device=scaled.device)
    weights = values.exp().masked_fill_(rank >= filters.num_allowed[:, None], 0.0)
    is_open = filters.num_allowed > width  # more tokens are allowed than were ranked
    total = torch.where(is_open, scaled.exp().sum(-1), weights.sum(-1))
    mass_before = weights.cumsum(-1) - weights
    is_kept = (mass_before < (filters.top_p * total)[:, None]) & (rank < filters.num_allowed[:, None])
    num_kept = is_kept.sum(-1).clamp_(min=1)
    smallest = values.gather(1, num_kept[:, None] - 1)[:, 0]
    unfinished = torch.nonzero(is_open & (num_kept == width))[:, 0]
    if len(unfinished) and width < vocabulary_size:
        wider = min(width * _WIDENING, vocabulary_size)
        smallest[unfinished] = _smallest_by_rank(scaled[unfinished], filters.take(unfinished), wider)
    return smallest
