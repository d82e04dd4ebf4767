"""Who proposes drafts. What they say is verified, so it may be wrong, and changes nothing but the pace."""

from collections import abc
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.core.config import SchedulerConfig
from engine.core.plan import RowStart
from engine.kernels.cpu.ngram import continue_rows
from engine.model.info import LoadedModel
from engine.runner.draft_model import DraftModel
from engine.runner.row_table import RowTable
from engine.runner.token_masks import TokenMasks


@dataclass(frozen=True, slots=True)
class NgramDrafts:
    """Drafts are what followed the last tokens where at least `shortest` of them stood before in the sequence."""

    shortest: int


@dataclass(frozen=True, slots=True)
class ModelDrafts:
    """Drafts are what a smaller model with the same vocabulary says."""

    model: LoadedModel


DraftSource = NgramDrafts | ModelDrafts


class Proposer(Protocol):
    """Writes drafts into one table of rows."""

    def start(self, started: abc.Iterable[RowStart]) -> None:
        """These rows have changed hands."""

    def propose(
        self,
        rows: NDArray[np.int64],
        ends: NDArray[np.int64],
        limits: NDArray[np.int64],
        num_known: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Behind the tokens [0, end) of each row stand drafts, at most as many as its limit, which is above 0.

        rows, ends, limits [R]. num_known [R], how many of the tokens before the drafts are known: those from there on
        are forced, and to be verified like the drafts; together they are at most `num_draft_tokens`.
        Returns [R], how many.
        """


class NgramProposer:
    """Looks into the sequence itself."""

    def __init__(self, rows: RowTable, shortest: int) -> None:
        self._rows = rows
        self._shortest = shortest
        one = np.ones(1, dtype=np.int64)
        continue_rows(np.zeros((1, 2), dtype=np.int64), one - 1, one, one, shortest)  # compiled before it is needed

    def start(self, started: abc.Iterable[RowStart]) -> None:
        """It remembers nothing."""

    def propose(
        self,
        rows: NDArray[np.int64],
        ends: NDArray[np.int64],
        limits: NDArray[np.int64],
        num_known: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """See Proposer."""
        return continue_rows(self._rows.token_ids, rows, ends, limits, self._shortest)


def make_proposer(source: DraftSource, config: SchedulerConfig, rows: RowTable, masks: TokenMasks) -> Proposer:
    """The one that `source` describes, for this table and what its rows may draw."""
    if isinstance(source, NgramDrafts):
        return NgramProposer(rows, source.shortest)
    return DraftModel(source.model, config, rows, masks)
