"""Pieces of a stream in which only the text differs: worded once by their types, and then filled."""

from collections import abc

from pydantic_core import to_json

# No model and no tenant is called this.
_MARK = "1d6f0c8a52e94b3c8f07c9be6a1e4d70"


class Pieces:
    """`make` words the piece of a choice with that text, as one event. A stream has thousands, and each is two copies
    where the types would make three objects."""

    def __init__(self, make: abc.Callable[[int, str], bytes]) -> None:
        self._make = make
        self._ends_by_choice: dict[int, tuple[bytes, bytes]] = {}

    def piece(self, choice: int, text: str) -> bytes:
        """What `make` would return."""
        ends = self._ends_by_choice.get(choice)
        if ends is None:
            before, mark, behind = self._make(choice, _MARK).partition(to_json(_MARK))
            assert mark, "the text is in the piece as it is"
            ends = self._ends_by_choice[choice] = before, behind
        return ends[0] + to_json(text) + ends[1]
