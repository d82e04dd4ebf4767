"""What somebody wrote into a form, read field by field; whatever is wrong is told beside its field. Pure.

All fields are read before anything is refused, so that a form comes back with every mistake in it and not one by one.
"""

import re
from collections import abc
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from gateway.durations import parse_duration

WHOLE = re.compile(r"\d+", re.ASCII)
NUMBER = re.compile(r"\d+(\.\d+)?", re.ASCII)
SEPARATORS = str.maketrans("", "", " ,_'\u00a0\u202f")  # between thousands, as people paste them
MAX_DIGITS = 15
LOCAL_TIME = "%Y-%m-%dT%H:%M"  # as `<input type="datetime-local">` sends it

Fields = abc.Mapping[str, str]
"""What a form shows or has sent, by field."""
Value = TypeVar("Value")


class FormReader:
    """One form as it was sent. `errors`: what is wrong, by field. Mutated by itself only."""

    def __init__(self, form: Fields) -> None:
        self._form = form
        self.errors: dict[str, str] = {}

    def text(self, name: str) -> str:
        """Without spaces around it; empty where the field was not sent."""
        return self._form.get(name, "").strip()

    def flag(self, name: str) -> bool:
        """Whether the box was ticked."""
        return name in self._form

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number from 0; `1,000,000` too. 0 where it is wrong; `default` where nothing was written."""
        text = self.text(name).translate(SEPARATORS)
        if not text and default is not None:
            return default
        if not WHOLE.fullmatch(text):
            return self.refuse(name, "must be a whole number, such as 100000", 0)
        return int(text) if len(text) <= MAX_DIGITS else self.refuse(name, "is too large a number", 0)

    def number(self, name: str) -> float:
        """A number from 0, with a point where it has a fraction."""
        text = self.text(name)
        if not NUMBER.fullmatch(text) or len(text) > 2 * MAX_DIGITS:
            return self.refuse(name, "must be a number, not below 0, with a point before its fraction: 2 or 0.5", 0.0)
        return float(text)

    def length(self, name: str) -> timedelta | None:
        """A length of time such as `90s`; None where nothing was written."""
        text = self.text(name).replace(" ", "")
        if not text:
            return None
        try:
            return parse_duration(text)
        except ValueError:
            return self.refuse(name, "must be a number and ms, s, m, h or d, such as 90s", None)

    def moment(self, name: str) -> datetime | None:
        """A time in UTC; None where nothing was written."""
        text = self.text(name)
        if not text:
            return None
        try:
            return datetime.strptime(text[:16], LOCAL_TIME).replace(tzinfo=UTC)
        except ValueError:
            return self.refuse(name, "must be a date and a time, such as 2026-12-31T18:00", None)

    def choice(self, name: str, choices: abc.Mapping[str, Any], default: Any = None) -> Any:  # Any: an enum's values
        """What the chosen word stands for; `default` where nothing was chosen, if there is one."""
        text = self.text(name)
        if not text and default is not None:
            return default
        return choices[text] if text in choices else self.refuse(name, "choose one of the list", None)

    def rows(self, group: str) -> list[int]:
        """The numbers of the rows `<group>-<number>-…` that were sent, in order."""
        found = {match[1] for name in self._form if (match := re.fullmatch(rf"{group}-(\d{{1,5}})-[a-z]+", name))}
        return sorted(map(int, found))

    def refuse(self, name: str, text: str, instead: Value) -> Value:
        """`instead`, with `text` beside the field unless something is there already."""
        self.errors.setdefault(name, text)
        return instead
