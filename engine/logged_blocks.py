"""What a decision log has of blocks of tokens: numbers that are equal where the blocks are, and how many tokens two
prompts have in common where they part.

The numbers are made with a key that nobody else has, so that no guess of a text can be tried on them.
"""

import hashlib
import secrets
from collections import abc
from typing import Any, NamedTuple, cast

from engine.core.block_names import BlockName, name_after, names_after
from engine.core.continuations import Continuations
from engine.core.plan import StepOutput
from engine.core.prefix_cache import PrefixCache
from engine.core.scheduler import Scheduler
from engine.core.sequence import Sequence
from engine.core.tails import end_name

KEY_BYTES = 32
NUMBER_BYTES = 6  # exact in any reader of JSON
MIN_REMEMBERED = 4_096  # blocks; those that nobody can find any more are forgotten when these are doubled

Emitting = abc.Sequence[tuple[int, Sequence, int]]
"""By row, each sequence that emits tokens, and how many it had before."""


class _Told(NamedTuple):
    """A block of a prompt: what it follows, its tokens, its number."""

    previous: BlockName
    token_ids: tuple[int, ...]
    number: int


class LoggedBlocks:
    """Numbers for the blocks of a scheduler's sequences; none where it caches no prefixes."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._key = secrets.token_bytes(KEY_BYTES)
        self._texts: Continuations[int] = Continuations()
        self._told: dict[BlockName, _Told] = {}
        self._limit = MIN_REMEMBERED

    def add_prompt(self, line: dict[str, Any]) -> None:  # any JSON object
        """To the line of a request that has just been added: the numbers of its full blocks, of the one in which it
        ends, and (index, tokens, number, 0 or 1) of blocks that are new: how many tokens it has in common with the
        block of this number, and whether there are prompts in which others follow these."""
        seq, prefixes = self._scheduler.lifecycle.by_generation.get(line["id"]), self._prefixes
        if seq is None or prefixes is None:
            return
        if len(self._told) > self._limit:
            self._forget_gone(prefixes)
        size, names = self._scheduler.config.block_size, list(seq.block_names)
        if names:
            line["blocks"] = [self._number(name) for name in names]
        if seq.num_prompt_tokens % size:
            names.append(end_name(seq, size))
            line["end"] = self._number(names[-1])
        common = []
        for index, name in enumerate(names):
            if name not in self._told:
                token_ids = tuple(seq.request.prompt_token_ids[index * size : (index + 1) * size])
                common += self._tell(index, name, names[index - 1] if index else seq.root_name, token_ids)
        if common:
            line["common"] = common

    def emitting(self, output: StepOutput) -> Emitting:
        """Who `output`, which is about to be committed, has tokens for."""
        if self._prefixes is None:
            return ()
        rows = [(seq.row, seq) for seq in self._scheduler.open_sequences if seq.row is not None]
        return [(row, seq, seq.num_tokens) for row, seq in rows if row in output.accepted]

    def add_filled(self, line: dict[str, Any], emitting: Emitting) -> None:  # any JSON object
        """To the line of a commit: the blocks that it made full, by row."""
        size, filled = self._scheduler.config.block_size, {}
        for row, seq, num_before in emitting:
            first, end = num_before // size, seq.num_tokens // size
            if first < end:
                names = seq.block_names[:end]
                previous = names[-1] if names else seq.root_name
                names += names_after(previous, seq.tokens(len(names) * size, end * size), size)
                filled[row] = [self._number(name) for name in names[first:]]
        if filled:
            line["blocks"] = filled

    def offered(self, output: StepOutput) -> dict[int, list[int]]:
        """By row, where they are the last tokens of a block, the numbers of those that the candidates would fill."""
        size, numbers = self._scheduler.config.block_size, {}
        for seq in self._scheduler.open_sequences if self._prefixes is not None else ():
            candidates = output.candidates.get(-1 if seq.row is None else seq.row)
            if candidates is not None and (seq.num_tokens + 1) % size == 0:
                previous, begun = self._last_names(seq, seq.num_tokens + 1)
                names = [name_after(previous, (*begun, each.token_id)) for each in candidates]
                numbers[cast("int", seq.row)] = [self._number(name) for name in names]
        return numbers

    def _last_names(self, seq: Sequence, end: int) -> tuple[BlockName, abc.Sequence[int]]:
        """The name of the block before the one that ends there, and the tokens of that one as far as they are known."""
        size = self._scheduler.config.block_size
        start = end - size
        names = seq.block_names[: start // size]
        previous = names[-1] if names else seq.root_name
        names += names_after(previous, seq.tokens(len(names) * size, start), size)
        return (names[-1] if names else seq.root_name), seq.tokens(start, end)

    @property
    def _prefixes(self) -> PrefixCache | None:
        return self._scheduler.lifecycle.blocks.prefixes

    def _tell(self, index: int, name: BlockName, previous: BlockName, token_ids: tuple[int, ...]) -> list[list[int]]:
        told = _Told(previous, token_ids, self._number(name))
        like = self._texts.most_common(previous, token_ids)
        self._told[name] = told
        self._texts.put(*told)
        if like is None:
            return []
        return [[index, like.num_tokens, like.block_id, int(like.goes_on and like.num_tokens < len(token_ids))]]

    def _forget_gone(self, prefixes: PrefixCache) -> None:
        """Blocks that neither a pool nor a copy that is under way nor an unfinished request has are new if they come
        again."""
        lifecycle = self._scheduler.lifecycle
        copies = lifecycle.blocks.in_flight.values()
        labels = [label for _, label in prefixes.labels] + [label for copy in copies for label in copy.labels if label]
        needed = {*prefixes.host_names, *[label.name for label in labels]}
        for seq in lifecycle.unfinished:
            needed.update(seq.block_names, [] if seq.end_name is None else [seq.end_name])
        texts = {(label.previous, label.token_ids) for label in labels}
        for name in self._told.keys() - needed:
            if self._told[name][:2] not in texts:  # else an answer has filled the block
                self._texts.discard(*self._told.pop(name))
        self._limit = 2 * max(MIN_REMEMBERED, len(self._told))

    def _number(self, name: BlockName) -> int:
        digest = hashlib.blake2b(name, key=self._key, digest_size=NUMBER_BYTES).digest()
        return int.from_bytes(digest, "big")
