"""Drafts of rows whose outputs are held to grammars: none that a grammar forbids, and all that it forces.

Where an output can go on in one way only, as in the names and marks of a JSON schema, that is proposed and nobody is
asked. Then the proposer is, behind it; its drafts are cut at the first that may not follow, and what is forced there
stands in its place. A draft that completes the output is left out: it is what the last draft's logits are for.

A grammar forces bytes, and the tokens that are proposed for them are one way of writing these: verification decides, as
for every draft.
"""

import numpy as np
from numpy.typing import NDArray

from engine.runner.proposers import Proposer
from engine.runner.row_table import RowTable
from engine.runner.token_masks import TokenMasks


class GuidedDrafts:
    """Reads `masks` and moves them along, but leaves them as they were; writes drafts into `rows`."""

    def __init__(self, rows: RowTable, masks: TokenMasks) -> None:
        self._rows = rows
        self._masks = masks

    def propose(
        self, proposer: Proposer, rows: NDArray[np.int64], ends: NDArray[np.int64], limits: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """As `proposer.propose`, which is asked for rows without a grammar, too. Returns beside how many drafts each
        row has [R] how many of the first ones its grammar forces [R]."""
        counts, guided = np.zeros(len(rows), dtype=np.int64), self._masks.following(rows)
        if not guided:
            return proposer.propose(rows, ends, limits, ends), counts
        for index in guided:
            counts[index] = self._force(int(rows[index]), int(ends[index]), int(limits[index]))
        num_forced, asking = counts.copy(), np.flatnonzero(counts < limits)
        if len(asking):
            begins, left = (ends + counts)[asking], (limits - counts)[asking]
            counts[asking] += proposer.propose(rows[asking], begins, left, ends[asking])
        for index in guided:
            row, end = int(rows[index]), int(ends[index])
            drafts = self._rows.token_ids[row, end + num_forced[index] : end + counts[index]].tolist()
            count = int(num_forced[index]) + self._masks.push_drafts(row, drafts)
            counts[index] = count + self._force(row, end + count, int(limits[index]) - count)
            self._masks.take_back(row, int(counts[index]))
        return counts, num_forced

    def _force(self, row: int, end: int, limit: int) -> int:
        """Behind the tokens [0, end) of a row stands what its grammar forces. Returns how many."""
        token_ids = self._masks.push_forced(row, limit)
        self._rows.token_ids[row, end : end + len(token_ids)] = token_ids
        return len(token_ids)
