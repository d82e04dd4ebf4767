"""Outcomes as JSON: sorted keys and rounded numbers, so that equal runs are equal bytes."""

import json
from collections import abc
from typing import Any

from engine.sim.metrics import Outcome

VERSION = 1  # of the document's shape; a field that changes its meaning or goes raises it


def to_json_text(outcomes: abc.Sequence[Outcome], *, config: abc.Mapping[str, Any] | None = None) -> str:
    """One document, with a line end. `config` is what the run was made with, of whatever JSON holds."""
    document = {
        "version": VERSION,
        "config": dict(config or {}),
        "runs": [outcome.to_json() for outcome in outcomes],
    }
    return json.dumps(document, sort_keys=True, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
