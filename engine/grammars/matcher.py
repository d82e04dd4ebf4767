"""Compiled grammars, and where each output stands in its own.

A compiled grammar is shared by the outputs that are held to it and never moved along; each output has a copy.
"""

from collections import abc
from dataclasses import dataclass

import numpy as np
from llguidance import LLExecutor, LLMatcher
from numpy.typing import NDArray

BITS_PER_WORD = 32


class OutputMatcher:
    """Where one output stands. Written by the runner, on its thread."""

    def __init__(self, matcher: LLMatcher, end_token_ids: tuple[int, ...], *, ends_late: bool) -> None:
        self._matcher = matcher
        self._end_token_ids = end_token_ids
        self._ends_late = ends_late

    @property
    def inner(self) -> LLMatcher:
        """The library's."""
        return self._matcher

    @property
    def problem(self) -> str:
        """Why the output cannot go on; empty: it can, or it is complete."""
        return self._matcher.get_error() if self._matcher.is_error() else ""

    @property
    def is_complete(self) -> bool:
        """Nothing may follow, not even an end token."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def push(self, token_ids: abc.Sequence[int]) -> None:
        """The output goes on with these tokens. `problem` says so if it may not."""
        self._matcher.consume_tokens(list(token_ids))

    def keep_open(self, words: NDArray[np.int32]) -> None:
        """Where the request ignores ends, `words`, the output's mask, has no end token while it has anything else."""
        if not self._ends_late:
            return
        without = words.copy()
        for token_id in self._end_token_ids:
            word, bit = divmod(token_id, BITS_PER_WORD)
            without.view(np.uint32)[word] &= np.uint32(~(1 << bit) & 0xFFFFFFFF)
        if without.any():
            words[:] = without


@dataclass(frozen=True, slots=True, eq=False)
class CompiledGrammar:
    """A grammar for one vocabulary. `end_token_ids` are those that end outputs of the model."""

    prototype: LLMatcher
    end_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Constraint:
    """What one request's outputs are held to. `ends_late`: an end token comes only where nothing else may."""

    grammar: CompiledGrammar
    ends_late: bool = False

    def begin(self, token_ids: abc.Sequence[int]) -> OutputMatcher:
        """The state behind an output that begins with `token_ids`."""
        copy = self.grammar.prototype.deep_copy()
        matcher = OutputMatcher(copy, self.grammar.end_token_ids, ends_late=self.ends_late)
        if token_ids:
            matcher.push(token_ids)
        return matcher


def fill_masks(executor: LLExecutor, matchers: abc.Sequence[OutputMatcher], words: NDArray[np.int32]) -> None:
    """`words` [R, vocabulary / 32], contiguous: bit i of row r says whether token i may follow output r."""
    places = [(matcher.inner, index) for index, matcher in enumerate(matchers)]
    executor.unsafe_compute_mask_ptr(places, words.ctypes.data, words.shape[1] * words.itemsize, len(words))
    for matcher, row in zip(matchers, words, strict=True):
        matcher.keep_open(row)
