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

from engine.kernels.ops import draw, likeliest
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
    drawing = np.flatnonzero(settings["temperature"] > 0)
    if len(drawing) == len(logits):
        return _draw(logits, settings, positions)
    token_ids = likeliest(logits)
    if len(drawing):
        index = torch.from_numpy(drawing).to(logits.device)
        token_ids[index] = _draw(logits[index], settings[drawing], positions[drawing])
    return token_ids


def sample_apart(logits: Tensor, settings: NDArray[np.void], positions: NDArray[np.int64]) -> Tensor:
    """As `sample`, but each row is drawn by itself: no sum is taken in an order that depends on the rows beside it."""
    token_ids = likeliest(logits)
    for row in np.flatnonzero(settings["temperature"] > 0).tolist():
        only = slice(row, row + 1)
        token_ids[only] = _draw(logits[only], settings[only], positions[only])
    return token_ids


def _draw(logits: Tensor, settings: NDArray[np.void], positions: NDArray[np.int64]) -> Tensor:
    smallest = _smallest_kept(logits, settings)
    return draw(logits, settings["temperature"].copy(), smallest, uniform(settings["seed"], positions))


def _scaled(logits: Tensor, settings: NDArray[np.void]) -> Tensor:
    """Distances to the likeliest token, which is at 0, so that the smallest temperature overflows towards -inf only."""
    temperature = torch.from_numpy(settings["temperature"].copy()).to(logits.device)
    return (logits - logits.amax(-1, keepdim=True)) / temperature[:, None]


def _smallest_kept(logits: Tensor, settings: NDArray[np.void]) -> Tensor:
    """[R]: tokens whose logit is below are filtered out; -inf where no filter is on."""
    vocabulary_size = logits.shape[1]
    smallest = torch.full((len(logits),), -torch.inf, device=logits.device)
    num_allowed = np.where(settings["top_k"] > 0, np.minimum(settings["top_k"], vocabulary_size), vocabulary_size)
    filtered = np.flatnonzero((num_allowed < vocabulary_size) | (settings["top_p"] < 1) | (settings["min_p"] > 0))
    if len(filtered):
        index = torch.from_numpy(filtered).to(logits.device)
        scaled = _scaled(logits[index], settings[filtered])
        least = torch.from_numpy(settings["min_p"][filtered]).to(logits.device).log()  # -inf where it is off
        ranked = np.flatnonzero((num_allowed < vocabulary_size) | (settings["top_p"] < 1))
        if len(ranked):
            within = torch.from_numpy(np.searchsorted(filtered, ranked)).to(logits.device)
            filters = _Filters(
                torch.from_numpy(num_allowed[ranked]).to(logits.device),
                torch.from_numpy(settings["top_p"][ranked]).to(logits.device),
            )
            width = int(num_allowed[num_allowed < vocabulary_size].max(initial=_NUCLEUS_WIDTH))
            by_rank = _smallest_by_rank(scaled[within], filters, min(width, vocabulary_size))
            least[within] = torch.maximum(least[within], by_rank)
        # Said in logits, so that nothing is filtered by how a quotient was rounded.
        smallest[index] = logits[index].masked_fill_(scaled < least[:, None], torch.inf).amin(-1)
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
