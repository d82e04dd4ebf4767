"""Output text that is watched while it is made, for the span that tells of it at the end."""

import time
from collections import abc

from gateway.tokenizer import OutputText, TextDelta


class WatchedText:
    """An OutputText that notes when text was made, what that took and, where `keeps_text`, the text. Times in ns."""

    def __init__(self, text: OutputText, *, keeps_text: bool, max_characters: int) -> None:
        self.first_at: int | None = None
        self.busy_ns = self.num_chunks = self.num_characters = 0
        self._text = text
        self._kept: list[str] | None = [] if keeps_text else None
        self._room = max_characters

    @property
    def kept(self) -> str:
        """The text so far, up to the most that is kept."""
        return "".join(self._kept or ())

    def push(self, token_ids: abc.Sequence[int]) -> TextDelta:
        """See OutputText."""
        began_at = time.time_ns()
        delta = self._text.push(token_ids)
        self.num_chunks += 1
        self._note(delta.text, began_at)
        return delta

    def finish(self) -> str:
        """See OutputText."""
        began_at = time.time_ns()
        rest = self._text.finish()
        if rest:
            self._note(rest, began_at)
        return rest

    def _note(self, text: str, began_at: int) -> None:
        if self.first_at is None:
            self.first_at = began_at
        self.busy_ns += time.time_ns() - began_at
        self.num_characters += len(text)
        if self._kept is not None and self._room > 0:
            self._kept.append(text[: self._room])
            self._room -= len(text)
