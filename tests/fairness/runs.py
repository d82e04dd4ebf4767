"""Traffic as data, and the loop that plays it on a scheduler, or on the model of one, before an observer's eyes."""

from collections import abc
from dataclasses import dataclass
from typing import Protocol

from tests.fairness.ledger import Key
from tests.fairness.observer import Committed, Observer, Planned, Report, Seen


class World(Protocol):
    """What plays the rules. Commands come between two steps; a step is `plan`, then `commit`."""

    def add(self, name: str, leaf: Key, num_prompt_tokens: int, max_output_tokens: int) -> None: ...
    def cancel(self, name: str) -> None: ...
    def hold(self, name: str, *, is_held: bool) -> None: ...
    def set_weight(self, key: Key, weight: float) -> None: ...
    def plan(self) -> list[Planned]: ...
    def commit(self) -> list[Committed]: ...
    def seen(self) -> list[Seen]: ...
    def leads(self) -> dict[Key, float]: ...


@dataclass(frozen=True, slots=True)
class Flood:
    """A tenant that always has `num_unfinished` requests, from one step to another, with pauses in between if asked."""

    leaf: Key
    num_prompt_tokens: int
    max_output_tokens: int
    num_unfinished: int = 4
    start: int = 0
    stop: int = 1_000_000

    def names(self, step: int, alive: abc.Sequence[str]) -> abc.Iterator[tuple[str, Key, int, int]]:
        prefix = f"{'/'.join(self.leaf)}:{self.num_prompt_tokens}:{self.max_output_tokens}:{self.start}"
        num_alive = sum(name.startswith(prefix + "#") for name in alive)
        if self.start <= step < self.stop:
            for serial in range(self.num_unfinished - num_alive):
                yield f"{prefix}#{step}.{serial}", self.leaf, self.num_prompt_tokens, self.max_output_tokens


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request."""

    step: int
    leaf: Key
    num_prompt_tokens: int
    max_output_tokens: int
    name: str = ""
    while_open: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """`verb` is cancel, hold, let_go or weight. `target` picks the nth unfinished request, or is a name, or a node.

    With `while_open` it comes between plan and commit.
    """

    step: int
    verb: str
    target: int | str | Key
    value: float = 0.0
    while_open: bool = False


Source = Flood | Arrival | Command


def drive(world: World, traffic: abc.Sequence[Source], observer: Observer, num_steps: int) -> Report:
    """Play `traffic` for so many steps."""
    floods = [source for source in traffic if isinstance(source, Flood)]
    due: dict[int, list[Source]] = {}
    due_open: dict[int, list[Source]] = {}
    for source in traffic:
        if not isinstance(source, Flood):
            (due_open if source.while_open else due).setdefault(source.step, []).append(source)
    for step in range(num_steps):
        for serial, source in enumerate(due.get(step, ())):
            _apply(world, source, f"{step}.{serial}")
        alive = [seq.name for seq in world.seen()]
        for flood in floods:
            for request in flood.names(step, alive):
                world.add(*request)
        seqs = world.seen()
        observer.before_plan(seqs)
        *empty, planned = world.plan()
        for _ in empty:
            observer.after_empty_plan(seqs)
            observer.before_plan(seqs)
        observer.after_plan(world.seen(), planned, world.leads())
        for serial, source in enumerate(due_open.get(step, ())):
            _apply(world, source, f"{step}.open.{serial}")
        observer.after_commit(world.commit(), world.leads())
    return observer.report


def _apply(world: World, source: Source, name: str) -> None:
    if isinstance(source, Arrival):
        world.add(source.name or name, source.leaf, source.num_prompt_tokens, source.max_output_tokens)
    elif isinstance(source, Command) and source.verb == "weight":
        assert isinstance(source.target, tuple)
        world.set_weight(source.target, source.value)
    elif isinstance(source, Command):
        alive = [seq.name for seq in world.seen()]
        if isinstance(source.target, int) and alive:
            _command(world, source.verb, alive[source.target % len(alive)])
        elif isinstance(source.target, str) and source.target in alive:
            _command(world, source.verb, source.target)


def _command(world: World, verb: str, name: str) -> None:
    if verb == "cancel":
        world.cancel(name)
    else:
        world.hold(name, is_held=verb == "hold")
