"""Compiled grammars, and where each output stands in its own.

A compiled grammar is shared by the outputs that are held to it and never moved along; each output has a copy.
"""

import re
from collections import abc
from dataclasses import dataclass

import numpy as np
from llguidance import LLExecutor, LLMatcher
from numpy.typing import NDArray

BITS_PER_WORD = 32
# What the library says first where one of its limits is met. That an output has left its grammar begins otherwise.
_TOO_COMPLEX = re.compile(
    r"(Parser Error: )?(Current row has|Too many items|lexer error|too many states|maximum relevance check fuel)"
)


@dataclass(frozen=True, slots=True, eq=False)
class CompiledGrammar:
    """A grammar for one vocabulary.

    end_token_ids  those that end outputs of the model
    field          what the wire calls the grammar
    first_mask     a bit for each token: whether an output may begin with it
    """

    prototype: LLMatcher
    end_token_ids: tuple[int, ...]
    field: str
    first_mask: bytes

    def has_first(self, token_ids: abc.Iterable[int]) -> bool:
        """Whether an output may begin with one of these."""
        return any(self.first_mask[token_id // 8] >> token_id % 8 & 1 for token_id in token_ids)


class OutputMatcher:
    """Where one output stands. Written by the runner, on its thread.

    It can be moved along by tokens that are only guessed at, and taken back. What the library makes of an output
    depends on its tokens alone, so that no guess is ever seen in what may follow.
    """

    def __init__(self, grammar: CompiledGrammar, *, ends_late: bool) -> None:
        self._grammar = grammar
        self._ends_late = ends_late
        self._matcher = grammar.prototype.deep_copy()
        self._token_ids: list[int] = []

    @property
    def inner(self) -> LLMatcher:
        """The library's."""
        return self._matcher

    @property
    def problem(self) -> str:
        """Why the output cannot go on; empty: it can, or it is complete."""
        return self._matcher.get_error() if self._matcher.is_error() else ""

    @property
    def is_too_complex(self) -> bool:
        """The output cannot go on, because the library would need too much for that."""
        return _TOO_COMPLEX.match(self.problem) is not None

    @property
    def is_complete(self) -> bool:
        """Nothing may follow, not even an end token."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def forced_token_ids(self) -> list[int]:
        """How the output goes on where its text can go on in one way only; empty where it can in several, or ends."""
        return [] if self._matcher.is_stopped() else self._matcher.compute_ff_tokens()

    def push(self, token_ids: abc.Sequence[int]) -> None:
        """The output goes on with these tokens. `problem` says so if it may not."""
        self._token_ids += token_ids
        self._matcher.consume_tokens(list(token_ids))

    def push_while_open(self, token_ids: abc.Sequence[int]) -> int:
        """The output goes on with the first of these tokens, up to one that may not follow or that would complete it.
        Returns how many those are."""
        if self._matcher.is_stopped():
            return 0
        num_pushed = self._matcher.try_consume_tokens(list(token_ids))
        self._token_ids += token_ids[:num_pushed]
        if num_pushed and self.is_complete:
            self.take_back(1)
            num_pushed -= 1
        return num_pushed

    def take_back(self, num_tokens: int) -> None:
        """The output is what it was before its last `num_tokens`, even if it could not go on behind them."""
        del self._token_ids[len(self._token_ids) - num_tokens :]
        if self._matcher.is_error() or not self._matcher.rollback(num_tokens):
            self._matcher = self._grammar.prototype.deep_copy()
            self._matcher.consume_tokens(self._token_ids)

    def keep_open(self, words: NDArray[np.int32]) -> None:
        """Where the request ignores ends, `words`, the output's whole mask, has no end token while it has anything
        else."""
        if not self._ends_late:
            return
        without = words.copy()
        for token_id in self._grammar.end_token_ids:
            word, bit = divmod(token_id, BITS_PER_WORD)
            without.view(np.uint32)[word] &= np.uint32(~(1 << bit) & 0xFFFFFFFF)
        if without.any():
            words[:] = without


@dataclass(frozen=True, slots=True, eq=False)
class Constraint:
    """What one request's outputs are held to. `ends_late`: an end token comes only where nothing else may."""

    grammar: CompiledGrammar
    ends_late: bool = False

    def begin(self, token_ids: abc.Sequence[int]) -> OutputMatcher:
        """The state behind an output that begins with `token_ids`."""
        matcher = OutputMatcher(self.grammar, ends_late=self.ends_late)
        if token_ids:
            matcher.push(token_ids)
        return matcher


def fill_masks(executor: LLExecutor, matchers: abc.Sequence[OutputMatcher], words: NDArray[np.int32]) -> None:
    """`words` [R, vocabulary / 32], contiguous: bit i of row r says whether token i may follow output r."""
    places = [(matcher.inner, index) for index, matcher in enumerate(matchers)]
    executor.unsafe_compute_mask_ptr(places, words.ctypes.data, words.shape[1] * words.itemsize, len(words))
