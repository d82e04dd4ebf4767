"""How far a simulation is, for whoever waits for it: told to a listener of the same task, if there is one."""

from collections import abc
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum


class Stage(StrEnum):
    """What is being done now, in this order."""

    WAITING = "WAITING"  # until another simulation has ended
    READING = "READING"
    CURRENT = "CURRENT"
    PROPOSED = "PROPOSED"


@dataclass(frozen=True, slots=True)
class Progress:
    """`num_requests` and `num_denials` are those of the past, known from CURRENT on."""

    stage: Stage
    num_requests: int = 0
    num_denials: int = 0


Listener = abc.Callable[[Progress], None]

_listener: ContextVar[Listener | None] = ContextVar("evenflow_what_if_listener", default=None)


@contextmanager
def followed_by(listener: Listener) -> abc.Iterator[None]:
    """What runs inside tells `listener` how far it is."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(progress: Progress) -> None:
    """The listener knows, if somebody follows."""
    listener = _listener.get()
    if listener is not None:
        listener(progress)
