"""What a decision log has of blocks of tokens: numbers that are equal where the blocks are, and tell nothing else.

They are made with a key that nobody else has, so that no guess of a text can be tried on them.
"""

import hashlib
import secrets
from collections import abc
from typing import Any

from engine.core.block_names import BlockName, names_after
from engine.core.plan import StepOutput
from engine.core.scheduler import Scheduler
from engine.core.sequence import Sequence

KEY_BYTES = 32
NUMBER_BYTES = 6  # exact in any reader of JSON

Emitting = abc.Sequence[tuple[int, Sequence, int]]
"""By row, each sequence that emits tokens, and how many it had before."""


class LoggedBlocks:
    """Numbers for the full blocks of a scheduler's sequences; none where it caches no prefixes."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._key = secrets.token_bytes(KEY_BYTES)

    def add_prompt(self, line: dict[str, Any]) -> None:  # any JSON object
        """To the line of a request that has just been added."""
        seq = self._scheduler.lifecycle.by_generation.get(line["id"])
        if seq is not None and seq.block_names:
            line["blocks"] = self._numbers(seq.block_names)

    def emitting(self, output: StepOutput) -> Emitting:
        """Who `output`, which is about to be committed, has tokens for."""
        if self._scheduler.lifecycle.blocks.prefixes is None:
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
                filled[row] = self._numbers(names[first:])
        if filled:
            line["blocks"] = filled

    def _numbers(self, names: abc.Iterable[BlockName]) -> list[int]:
        digests = [hashlib.blake2b(name, key=self._key, digest_size=NUMBER_BYTES).digest() for name in names]
        return [int.from_bytes(digest, "big") for digest in digests]
