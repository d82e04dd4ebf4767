"""Which choices of an answer a generation makes: one, as it is made, or those of a beam search, which come whole."""

from collections import abc
from dataclasses import dataclass, replace
from typing import Protocol

from pydantic import BaseModel

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.http.refusals import ErrorObject
from gateway.servicer.outcome import Delta, Found, Outcome


@dataclass(frozen=True, slots=True)
class Result:
    """The whole output of one choice, and its end. `score`: of one that a beam search found."""

    choice: int
    deltas: tuple[Delta, ...]
    outcome: Outcome
    score: float | None = None

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)


class Wording(Protocol):
    """How a path words its answers. The stream's pieces are whole events; the choices are counted from 0."""

    def whole(self, results: abc.Sequence[Result], outcomes: abc.Sequence[Outcome]) -> BaseModel:
        """The answer in one piece; `outcomes` are the generations', whose usage it tells."""
        ...

    def opening(self, choice: int) -> bytes:
        """A choice has begun."""
        ...

    def delta(self, choice: int, delta: Delta) -> bytes:
        """A choice goes on."""
        ...

    def ending(self, choice: int, outcome: Outcome, score: float | None = None) -> bytes:
        """A choice has ended."""
        ...

    def closing(self, outcomes: abc.Sequence[Outcome]) -> bytes:
        """All have ended well."""
        ...

    def failure(self, error: ErrorObject) -> bytes:
        """The stream ends here, for a reason that came too late for a status."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """A generation's first choice. Those of a search are as many as it finds, and one where it finds none."""

    first: int
    is_search: bool

    def results(self, deltas: tuple[Delta, ...], outcome: Outcome) -> list[Result]:
        """Of a generation that has ended."""
        found = [(delta, delta.found) for delta in deltas if delta.found is not None]
        if not found:
            return [Result(self.first, deltas, outcome)]
        return [Result(self.first + each.rank, (delta,), _end_of(each, outcome), each.score) for delta, each in found]


def places(specs: abc.Iterable[pb.GenerationSpec]) -> list[Place]:
    """Of each spec's generation; as many choices lie between two as are wanted of the first."""
    found, first = [], 0
    for spec in specs:
        is_search = spec.HasField("beam_search")
        found.append(Place(first, is_search))
        first += max(1, spec.beam_search.num_returned) if is_search else 1
    return found


class ChoiceStream:
    """The pieces of one generation's choices, in the order of its messages."""

    def __init__(self, place: Place, wording: Wording) -> None:
        self._place = place
        self._wording = wording
        self._kept: list[Delta] = []

    def started(self) -> bytes:
        """The generation is in the engine's queue. How many choices a search has is not known yet."""
        return b"" if self._place.is_search else self._wording.opening(self._place.first)

    def went_on(self, delta: Delta) -> bytes:
        """What `delta` adds; of a search nothing is told before its end."""
        if not self._place.is_search:
            return self._wording.delta(self._place.first, delta)
        self._kept.append(delta)
        return b""

    def ended(self, outcome: Outcome) -> bytes:
        """The end of the generation, and all of a search."""
        if not self._place.is_search:
            return self._wording.ending(self._place.first, outcome)
        return b"".join(self._whole(result) for result in self._place.results(tuple(self._kept), outcome))

    def _whole(self, result: Result) -> bytes:
        pieces = [self._wording.delta(result.choice, delta) for delta in result.deltas]
        ending = self._wording.ending(result.choice, result.outcome, result.score)
        return b"".join([self._wording.opening(result.choice), *pieces, ending])


def _end_of(found: Found, outcome: Outcome) -> Outcome:
    return replace(outcome, finish_reason=found.finish_reason)
