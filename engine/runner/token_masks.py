"""Which tokens each row may draw: those of its list, those that its grammar lets follow, or both.

A mask is one bit per token. Masks of a step are computed and applied together, for the rows that have any; each row's
grammar moves along with what it sampled. Behind drafts it is moved along with these, and taken back before it is known
which of them are right. A row whose mask is empty ends with an error, and no other row does.
"""

from collections import Counter, abc

import numpy as np
import torch
from llguidance import LLExecutor
from numpy.typing import NDArray
from torch import Tensor

from engine.core.plan import RowStart
from engine.grammars.dead_ends import OUTPUT_LEFT, DeadEnd
from engine.grammars.matcher import BITS_PER_WORD, Constraint, OutputMatcher, fill_masks
from engine.runner.verification import NO_DRAFT, Drafted


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

    def following(self, rows: NDArray[np.int64]) -> list[int]:
        """Indices of those of `rows` that are held to a grammar: their masks change with each of their tokens."""
        if not self._matchers:
            return []
        return [index for index, row in enumerate(rows.tolist()) if row in self._matchers]

    def apply(
        self, logits: Tensor, rows: NDArray[np.int64], drafted: Drafted | None = None
    ) -> tuple[Tensor, dict[int, str]]:
        """`logits` [R, V] with -inf for what may not be drawn, a new tensor if any row has a mask; and by index of row,
        why nothing may be drawn, where that is so: such a row is as it was. Logits behind drafts have the mask that
        these lead to."""
        masked = np.flatnonzero(self._is_masked[rows])
        if not len(masked):
            return logits, {}
        drafts = [NO_DRAFT] * len(masked) if drafted is None else drafted.token_ids[masked].tolist()
        words, problems = self._words(rows[masked].tolist(), drafts)
        stuck = {int(masked[place]): problem for place, problem in problems.items()}
        is_open = np.array([int(index) not in stuck for index in masked], dtype=np.bool_)
        index = torch.from_numpy(masked[is_open]).to(logits.device)
        bits = np.unpackbits(words[is_open].view(np.uint8), axis=1, count=self._vocabulary_size, bitorder="little")
        is_allowed = torch.from_numpy(bits).to(logits.device, torch.bool)
        kept = logits[index].masked_fill_(~is_allowed, -torch.inf)
        return logits.index_copy(0, index, kept), stuck

    def record(self, rows: NDArray[np.int64], token_ids: NDArray[np.int64]) -> frozenset[int]:
        """Each row has sampled a token, or several in order. Returns the rows whose output is complete with it."""
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

    def push_drafts(self, row: int, token_ids: list[int]) -> int:
        """The grammar of `row` moves along with the first of these tokens, up to one that the row may not draw or that
        completes its output. Returns how many those are; `take_back` undoes it."""
        return self._matchers[row].push_while_open(token_ids[: self._num_listed(row, token_ids)])

    def push_forced(self, row: int, limit: int) -> list[int]:
        """As `push_drafts`, with at most `limit` tokens in which the output goes on if its grammar leaves no choice."""
        token_ids = self._matchers[row].forced_token_ids[:limit] if limit > 0 else []
        return token_ids[: self.push_drafts(row, token_ids)]

    def take_back(self, row: int, num_tokens: int) -> None:
        """The grammar of `row`, if it has one, stands before the last `num_tokens` that it was moved along with."""
        if row in self._matchers:
            self._matchers[row].take_back(num_tokens)

    def _words(self, rows: abc.Sequence[int], drafts: abc.Sequence[int]) -> tuple[NDArray[np.int32], dict[int, str]]:
        """The masks of these rows, and by place among them why one cannot be had. A row stands there once for each of
        its logits, with the draft that its token is held against."""
        words = np.full((len(rows), self._num_words), -1, dtype=np.int32)
        problems = self._fill(words, rows, drafts) if self._matchers else {}
        for place, row in enumerate(rows):
            if row in self._allowed:
                words[place] &= self._allowed[row]
            if row in self._matchers:
                self._matchers[row].keep_open(words[place])
            if place not in problems and not words[place].any():
                problems[place] = DeadEnd.NOTHING_ALLOWED
        return words, problems

    def _fill(self, words: NDArray[np.int32], rows: abc.Sequence[int], drafts: abc.Sequence[int]) -> dict[int, str]:
        """The masks by grammar: first of all rows, then of all rows behind their first draft, and so on."""
        problems: dict[int, str] = {}
        num_pushed: Counter[int] = Counter()
        is_first = [place == 0 or drafts[place - 1] == NO_DRAFT for place in range(len(rows))]
        places = [place for place, row in enumerate(rows) if is_first[place] and row in self._matchers]
        while places:
            matchers = [self._matchers[rows[place]] for place in places]
            filled = np.empty((len(places), self._num_words), dtype=np.int32)
            fill_masks(self._ready_executor(), matchers, filled)
            words[places] = filled
            ahead = []
            for place, matcher in zip(places, matchers, strict=True):
                if matcher.problem:  # in the library's words, which quote the output: they are not for logs
                    problem = DeadEnd.TOO_COMPLEX if matcher.is_too_complex else OUTPUT_LEFT
                    problems |= dict.fromkeys(_to_end(place, drafts), problem)
                elif drafts[place] != NO_DRAFT:
                    matcher.push((drafts[place],))
                    num_pushed[rows[place]] += 1
                    if matcher.is_complete:
                        problems |= dict.fromkeys(_to_end(place + 1, drafts), DeadEnd.NOTHING_ALLOWED)
                    else:
                        ahead.append(place + 1)
            places = ahead
        for row, count in num_pushed.items():
            self.take_back(row, count)
        return problems

    def _num_listed(self, row: int, token_ids: abc.Sequence[int]) -> int:
        """How many of the first of these tokens are on the row's list, if it has one."""
        allowed = self._allowed.get(row)
        if allowed is None:
            return len(token_ids)
        bits = allowed.view(np.uint32)
        for nth, token_id in enumerate(token_ids):
            word, bit = divmod(token_id, BITS_PER_WORD)
            if not bits[word] >> np.uint32(bit) & np.uint32(1):
                return nth
        return len(token_ids)

    def _packed(self, token_ids: abc.Sequence[int]) -> NDArray[np.int32]:
        bits = np.zeros(self._num_words * BITS_PER_WORD, dtype=np.uint8)
        bits[np.array(token_ids, dtype=np.int64)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def _ready_executor(self) -> LLExecutor:
        if self._executor is None:
            self._executor = LLExecutor(torch.get_num_threads())
        return self._executor


def _to_end(place: int, drafts: abc.Sequence[int]) -> range:
    """The places of one row from `place` on: its last one has no draft."""
    end = place
    while drafts[end] != NO_DRAFT:
        end += 1
    return range(place, end + 1)
