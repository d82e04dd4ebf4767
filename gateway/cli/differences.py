"""How a changed setting reads: the record of changes has JSON, people want limits as they write them."""

import json
import re
from datetime import timedelta

from gateway.durations import duration_text

MAX_CHARS = 160
IDENTITY = {"dimension": "", "calendar": "", "model": ""}
TIME = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.\d+)?\+00:00")


def value_text(value: object) -> str:
    """`value`, of a record of changes, in one line that is not too long."""
    if value is None:
        return "none"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        text = "[" + ", ".join(_item_text(item) for item in value) + "]"
    else:
        text = json.dumps(value, ensure_ascii=False)
    text = TIME.sub(r"\1 \2Z", text)
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"


def removed_texts(before: object, after: object) -> list[str]:
    """What is in the list `before` and no longer in `after`; another amount for the same thing removes nothing."""
    if not isinstance(before, list) or not isinstance(after, list):
        return []
    kept = [_identity(item) for item in after]
    return [_item_text(item) for item in before if _identity(item) not in kept]


def _identity(item: object) -> object:
    """What tells a limit, budget or price from its siblings; anything else is itself."""
    if not isinstance(item, dict) or not IDENTITY.keys() & item.keys():
        return item
    return {name: item.get(name) or absent for name, absent in IDENTITY.items()}


def _item_text(item: object) -> str:
    """`total_tokens=100000/1m:burst=20000` or `month=1000000`, as they are written, of a limit and of a budget;
    the names and values of anything else.
    """
    if not isinstance(item, dict):
        return json.dumps(item, ensure_ascii=False)
    if "calendar" in item and "amount" in item and not item.get("dimension"):
        text = f"{str(item['calendar']).lower()}={item['amount']}"
        return text + (f":model={item['model']}" if item.get("model") else "")
    if "dimension" not in item:
        return " ".join(f"{name}={value}" for name, value in item.items() if value is not None)
    text = f"{str(item['dimension']).lower()}={item['amount']}"
    if isinstance(item.get("period_ms"), int):
        text += f"/{duration_text(timedelta(milliseconds=item['period_ms']))}"
    if item.get("burst"):
        text += f":burst={item['burst']}"
    return text + (f":model={item['model']}" if item.get("model") else "")
