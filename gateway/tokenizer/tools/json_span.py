"""Where a JSON object or list ends in a text that arrives in pieces. Looks at each character once."""

import re

_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')


class JsonSpan:
    """Of one value, which begins with its first character. What is no JSON may have no end."""

    def __init__(self) -> None:
        self._position = 0
        self._depth = 0
        self._is_in_string = False

    def length(self, text: str) -> int | None:
        """How long the value is; None: its end has not come. `text` is the one of the last call, gone on."""
        while True:
            found = (_IN_STRING if self._is_in_string else _STRUCTURE).search(text, self._position)
            if found is None:
                self._position = max(self._position, len(text))
                return None
            character, self._position = found[0], found.end()
            if character == "\\":
                if self._position == len(text):
                    self._position -= 1  # what it escapes has not come
                    return None
                self._position += 1
            elif character == '"':
                self._is_in_string = not self._is_in_string
            elif self._moved(character) == 0:
                return self._position

    def _moved(self, bracket: str) -> int:
        self._depth += 1 if bracket in "{[" else -1
        return self._depth
