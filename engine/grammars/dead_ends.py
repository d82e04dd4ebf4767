"""Why nothing may follow in an output that is held to something: the words for it, and whose request is to blame. Pure.

The words follow the name of a field, as those of InvalidFieldError do. They quote nothing of the output.
"""

from enum import StrEnum

from engine.core.types import SamplingParams
from engine.grammars.matcher import Constraint

LIST_FIELD = "sampling.allowed_token_ids"


class DeadEnd(StrEnum):
    """Why an output cannot go on, by what its client asked for. It is told from a fault of ours by its type."""

    NOTHING_ALLOWED = "leaves no token that may follow what has been written"
    TOO_COMPLEX = "cannot be held to any longer: what has been written leaves too much open at once"


# A fault of ours: only tokens are drawn that the grammar lets follow.
OUTPUT_LEFT = "is not what has been written"


def fields_to_blame(error: str | None, sampling: SamplingParams) -> tuple[str, ...]:
    """The wire's names of what a request with `sampling` should not have asked for, if it ended with `error`."""
    if not isinstance(error, DeadEnd):
        return ()
    assert isinstance(sampling.constraint, Constraint), "only what is held to something comes to a dead end"
    is_listed = error is DeadEnd.NOTHING_ALLOWED and sampling.allowed_token_ids is not None
    return (sampling.constraint.grammar.field, *((LIST_FIELD,) if is_listed else ()))
