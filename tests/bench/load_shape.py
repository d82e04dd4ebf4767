"""What an answer is to be like, told in the prompt: every fake upstream gives the same. Standard library only."""

import asyncio
import re
from collections import abc
from dataclasses import dataclass

FILLER = "the quick brown fox jumps over the lazy dog " * 4
PATTERN = re.compile(r"shape=(\d+),(\d+),(\d+),(\d+);")


@dataclass(frozen=True, slots=True)
class Shape:
    """So many ms to the first chunk and between two, so many chunks, each of so many tokens."""

    first_ms: int
    gap_ms: int
    num_chunks: int
    chunk_tokens: int = 1

    @property
    def num_tokens(self) -> int:
        return self.num_chunks * self.chunk_tokens

    @property
    def prompt(self) -> str:
        """A text that asks for it."""
        return f"shape={self.first_ms},{self.gap_ms},{self.num_chunks},{self.chunk_tokens}; {FILLER}"

    @classmethod
    def read(cls, prompt: str) -> "Shape":
        found = PATTERN.search(prompt)
        if found is None:
            raise ValueError("the prompt does not say what the answer is to be like")
        return cls(*(int(number) for number in found.groups()))

    async def chunks(self) -> abc.AsyncIterator[str]:
        """Texts of one byte per token, each when it is due."""
        text = "x" * self.chunk_tokens
        for number in range(self.num_chunks):
            delay_ms = self.gap_ms if number else self.first_ms
            if delay_ms:
                await asyncio.sleep(delay_ms / 1e3)
            yield text
