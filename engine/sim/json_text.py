"""JSON that a stranger wrote: read whole or refused in one line, with no error of the parser's own.

Beyond what the grammar asks, nesting that Python cannot follow is refused, so are numbers of more digits than it reads,
and halves of characters (`"\\ud800"`), which no output could hold.
"""

import json
from pathlib import Path
from typing import Any

MAX_FILE_BYTES = 16 * 2**20  # of what is read at once


def parse_json(text: str) -> Any:  # any JSON value: the caller judges it
    """The value. Raises ValueError, whose message says why there is none."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"this is not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except ValueError:
        raise ValueError("the JSON has a number of too many digits") from None
    if ("\\u" in text or not text.isascii()) and not is_text(_written(value)):
        raise ValueError("the JSON has half of a character (a lone surrogate)")
    return value


def read_json(path: Path) -> Any:  # see parse_json
    """The value in that file. Raises OSError, and ValueError where it is too large, no text or no JSON."""
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"it has more than {MAX_FILE_BYTES:,} bytes")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise ValueError("this is not text") from None
    return parse_json(text)


def is_text(text: str) -> bool:
    """False if `text` has a half of a character, which no file in UTF-8 can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _written(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
