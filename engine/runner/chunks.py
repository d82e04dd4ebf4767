"""The chunks of a step in columns, as every planner of attention reads them."""

from collections import abc
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of a step, one entry each: row, first position, number of tokens, first token in the step, and how
    many of its last tokens are drafts; None: no chunk has any."""

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    num_tokens: NDArray[np.int64]
    offsets: NDArray[np.int64]
    num_drafts: NDArray[np.int64] | None = None

    @property
    def num_keys(self) -> NDArray[np.int64]:
        """Tokens that the last query of each chunk sees, itself included."""
        return self.starts + self.num_tokens

    def take(self, members: abc.Sequence[int] | NDArray[np.int64]) -> "Chunks":
        index = np.asarray(members)
        num_drafts = None if self.num_drafts is None else self.num_drafts[index]
        return Chunks(self.rows[index], self.starts[index], self.num_tokens[index], self.offsets[index], num_drafts)


@dataclass(frozen=True, slots=True)
class Slots:
    """Where the tokens of a step are kept, one entry each: the block, and the place in it."""

    blocks: NDArray[np.int64]
    places: NDArray[np.int64]
