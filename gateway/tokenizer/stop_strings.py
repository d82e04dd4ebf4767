"""Finds the first stop string in a text that arrives in pieces, and holds back no more than could begin one.

Knows text only. The stop string whose last character comes first wins; of several that end there, the longest. So the
result depends on the text alone, never on where the pieces were cut. Source: Knuth, Morris, Pratt 1977, for several
patterns as in Aho, Corasick 1975; what is held is the automaton's state, spelled out.
"""

import re
from collections import abc


class StopStringFinder:
    """`push` returns what is certain not to belong to a stop string; once one is `found`, nothing more comes."""

    def __init__(self, stop_strings: abc.Sequence[str]) -> None:
        """Raises ValueError if a stop string is empty."""
        if "" in stop_strings:
            raise ValueError("a stop string cannot be empty")
        self._stop_strings = tuple(sorted(set(stop_strings), key=len, reverse=True))
        self._prefixes = frozenset(stop[:end] for stop in self._stop_strings for end in range(1, len(stop) + 1))
        self._first = re.compile("[" + "".join(re.escape(stop[0]) for stop in self._stop_strings) + "]")
        self.held = ""
        self.found = False

    def push(self, text: str) -> str:
        """The text that can be shown now; all of it before the stop string, if that is completed here."""
        if self.found:
            return ""
        buffer, position, state = self.held + text, len(self.held), self.held
        while position < len(buffer):
            if not state:
                begin = self._first.search(buffer, position)
                if begin is None:
                    break
                position = begin.start()
            state = self._advance(state + buffer[position])
            position += 1
            if state.endswith(self._stop_strings):
                return self._stop_at(buffer[:position])
        self.held = state
        return buffer[: len(buffer) - len(state)]

    def finish(self) -> str:
        """What was held back: the text ended before it became a stop string."""
        held, self.held = self.held, ""
        return held

    def resume(self, held: str) -> None:
        """Go back to when `held` was held and no stop string was found."""
        self.held, self.found = held, False

    def _advance(self, state: str) -> str:
        """The longest end of `state` that begins a stop string."""
        while state and state not in self._prefixes:
            state = state[1:]
        return state

    def _stop_at(self, text: str) -> str:
        self.held, self.found = "", True
        # Sorted by length: the first one that matches is the longest.
        stop = next(stop for stop in self._stop_strings if text.endswith(stop))
        return text[: len(text) - len(stop)]
