"""Which tokens each row may draw: those of its list, those that its grammar lets follow, or both.

A mask is one bit per token. Masks of a step are computed and applied together, for the rows that have any; each row's
grammar moves along with what it sampled. A row whose mask is empty ends with an error, and no other row does.
"""

from collections import abc

import numpy as np
import torch
from llguidance import LLExecutor
from numpy.typing import NDArray
from torch import Tensor

from engine.core.plan import RowStart
from engine.grammars.matcher import BITS_PER_WORD, Constraint, OutputMatcher, fill_masks

NOTHING_ALLOWED = "no token may follow: what the output is held to cannot go on"
GRAMMAR_FAILED = "what the output is held to cannot go on: it is too complex for its limits, or was left"


class TokenMasks:
    """The masks of one batch's rows. Raises AssertionError for a constraint that `engine.grammars` did not make."""

    def __init__(self, num_rows: int, vocabulary_size: int) -> None:
        self._vocabulary_size = vocabulary_size
        self._num_words = -(-vocabulary_size // BITS_PER_WORD)
        self._is_masked = np.zeros(num_rows, dtype=np.bool_)
        self._allowed: dict[int, NDArray[np.int32]] = {}
        self._matchers: dict[int, OutputMatcher] = {}
        self._executor: LLExecutor | None = None

    def stop(self, rows: abc.Iterable[int]) -> None:
        """What these rows are held to is forgotten."""
        for row in rows:
            self._is_masked[row] = False
            self._allowed.pop(row, None)
            self._matchers.pop(row, None)

    def start(self, started: abc.Iterable[RowStart]) -> None:
        """These rows are held to what their new sequences are; their outputs so far are behind them."""
        for start in started:
            self.stop((start.row,))
            allowed, constraint = start.sampling.allowed_token_ids, start.sampling.constraint
            self._is_masked[start.row] = allowed is not None or constraint is not None
            if allowed is not None:
                self._allowed[start.row] = self._packed(allowed)
            if constraint is not None:
                assert isinstance(constraint, Constraint), "a constraint is made by engine.grammars"
                self._matchers[start.row] = constraint.begin(start.token_ids[start.num_prompt_tokens :])

    def follows(self, row: int) -> bool:
        """Whether the row's mask changes with each of its tokens."""
        return row in self._matchers

    def apply(self, logits: Tensor, rows: NDArray[np.int64]) -> tuple[Tensor, dict[int, str]]:
        """`logits` [R, V] with -inf for what may not be drawn, a new tensor if any row has a mask; and by index of row,
        why nothing may be drawn, where that is so: such a row is as it was."""
        masked = np.flatnonzero(self._is_masked[rows])
        if not len(masked):
            return logits, {}
        words, problems = self._words(rows[masked].tolist())
        stuck = {int(masked[place]): problem for place, problem in problems.items()}
        is_open = np.array([int(index) not in stuck for index in masked], dtype=np.bool_)
        index = torch.from_numpy(masked[is_open]).to(logits.device)
        bits = np.unpackbits(words[is_open].view(np.uint8), axis=1, count=self._vocabulary_size, bitorder="little")
        is_allowed = torch.from_numpy(bits).to(logits.device, torch.bool)
        kept = logits[index].masked_fill_(~is_allowed, -torch.inf)
        return logits.index_copy(0, index, kept), stuck

    def record(self, rows: NDArray[np.int64], token_ids: NDArray[np.int64]) -> frozenset[int]:
        """Each row has sampled a token. Returns the rows whose output is complete with it."""
        if not self._matchers:
            return frozenset()
        complete = set()
        for index in np.flatnonzero(self._is_masked[rows]).tolist():
            row = int(rows[index])
            matcher = self._matchers.get(row)
            if matcher is None:
                continue
            matcher.push((int(token_ids[index]),))
            if matcher.is_complete:
                complete.add(row)
        return frozenset(complete)

    def _words(self, rows: abc.Sequence[int]) -> tuple[NDArray[np.int32], dict[int, str]]:
        """The masks of these rows, and by place among them why one cannot be had."""
        words = np.full((len(rows), self._num_words), -1, dtype=np.int32)
        problems: dict[int, str] = {}
        places = [place for place, row in enumerate(rows) if row in self._matchers]
        if places:
            matchers = [self._matchers[rows[place]] for place in places]
            filled = np.empty((len(places), self._num_words), dtype=np.int32)
            fill_masks(self._ready_executor(), matchers, filled)
            words[places] = filled
            for place, matcher in zip(places, matchers, strict=True):
                if matcher.problem:  # in the library's words, which quote the output: they are not for logs
                    problems[place] = GRAMMAR_FAILED
        for place, row in enumerate(rows):
            if row in self._allowed:
                words[place] &= self._allowed[row]
            if place not in problems and not words[place].any():
                problems[place] = NOTHING_ALLOWED
        return words, problems

    def _packed(self, token_ids: abc.Sequence[int]) -> NDArray[np.int32]:
        bits = np.zeros(self._num_words * BITS_PER_WORD, dtype=np.uint8)
        bits[np.array(token_ids, dtype=np.int64)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def _ready_executor(self) -> LLExecutor:
        if self._executor is None:
            self._executor = LLExecutor(torch.get_num_threads())
        return self._executor
