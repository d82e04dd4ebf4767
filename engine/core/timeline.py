"""When a sequence got how far, and what preemptions did to its blocks."""

from dataclasses import dataclass, field

from engine.core.events import Move, MoveKind, Timings
from engine.core.types import Nanos

MAX_MOVES = 128  # told of one sequence; what gives way for ever must not remember each time


@dataclass(slots=True)
class Timeline:
    """When a sequence got how far. Written by Lifecycle, Scheduler and Committer.

    A sequence is *suspended* from a preemption or pause until it is computed again. Of `moves` the last one may be
    under way.
    """

    arrived_at: Nanos
    started_at: Nanos | None = None
    first_token_at: Nanos | None = None
    suspended_at: Nanos | None = None
    suspended_ns: int = 0
    num_prefill_steps: int = 0
    num_decode_steps: int = 0
    moves: list[Move] = field(default_factory=list)

    def suspend(self, now: Nanos) -> None:
        """Nothing changes for a sequence that is suspended already."""
        if self.suspended_at is None:
            self.suspended_at = now
            if self.moves and self.moves[-1].kind is MoveKind.RECOMPUTE:
                self.end_move(now)

    def begin_move(self, move: Move) -> None:
        """`move` is under way; beyond MAX_MOVES it is not told of."""
        if len(self.moves) < MAX_MOVES:
            self.moves.append(move)

    def end_move(self, now: Nanos) -> None:
        """What was under way has ended."""
        if self.moves and self.moves[-1].ended_at is None:
            self.moves[-1] = self.moves[-1]._replace(ended_at=now)

    def resume(self, now: Nanos) -> None:
        if self.suspended_at is not None:
            self.suspended_ns += now - self.suspended_at
            self.suspended_at = None

    def timings(self, ended_at: Nanos) -> Timings:
        """The lengths of the stages, those that the end cut short or prevented included."""
        started_at = ended_at if self.started_at is None else self.started_at
        first_token_at = ended_at if self.first_token_at is None else self.first_token_at
        open_ns = 0 if self.suspended_at is None else ended_at - self.suspended_at
        return Timings(
            queue_ns=Nanos(started_at - self.arrived_at),
            prefill_ns=Nanos(first_token_at - started_at),
            decode_ns=Nanos(ended_at - first_token_at),
            preempted_ns=Nanos(self.suspended_ns + open_ns),
            num_prefill_steps=self.num_prefill_steps,
            num_decode_steps=self.num_decode_steps,
        )
