"""Verifies drafts: which of the tokens that a step sampled are accepted.

The logits behind each draft say what follows it if it is right. So a token is sampled at every position of the chunk,
each with the number that belongs to its seed and position (see `random_draws`), and a row keeps them up to the first
one that is not the draft that stands there: that token is what the model says instead. What is accepted is therefore
the very token that would have been drawn one by one, from the same distribution by the same number: drafts change
nothing but the pace, greedy or sampled, whatever proposed them. An arithmetic that rounds by the number of rows may
still resolve a tie of two logits in another way, as it does in another batch.

A draft d is right with probability p(d). Rejection sampling accepts as many of a proposer that always names one token,
and more of one that draws from its own distribution q, but then the output depends on the drafts. Source: Leviathan et
al. 2023, §2.3, for the rule that this one replaces; Daliri et al. 2025, drafter-invariant speculative decoding, for
models that draw by one shared number, which is what `DraftModel` does.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NO_DRAFT = -1


@dataclass(frozen=True, slots=True)
class Drafted:
    """Which logits of a step judge which drafts.

    firsts     [R], the first of the logits of each row that samples
    token_ids  [P], the draft that the token of each of the logits is held against; NO_DRAFT at the last of each row
    """

    firsts: NDArray[np.int64]
    token_ids: NDArray[np.int64]

    def kept(self, token_ids: NDArray[np.int64], is_good: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Indices into the P sampled tokens of those that are accepted, in order.

        A token that is not good, because its logits are not finite or its grammar allows none, is never accepted, nor
        is what follows it in its row; a row whose first one is not good has none.
        """
        index = np.arange(len(token_ids))
        ends_row = (token_ids != self.token_ids) | ~is_good
        last = np.minimum.reduceat(np.where(ends_row, index, len(index)), self.firsts)
        counts = np.diff(self.firsts, append=len(index))
        last_by_index = np.repeat(last, counts)
        return np.flatnonzero((index < last_by_index) | ((index == last_by_index) & is_good))

    def before(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pairs of an index into the P logits and a draft of its row that stands before it."""
        index = np.arange(len(self.token_ids))
        firsts = np.repeat(self.firsts, np.diff(self.firsts, append=len(index)))
        num_before = index - firsts
        of = np.repeat(index, num_before)
        nth = np.arange(len(of)) - np.repeat(np.cumsum(num_before) - num_before, num_before)
        return of, self.token_ids[firsts[of] + nth]
