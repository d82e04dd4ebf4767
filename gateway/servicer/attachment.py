"""One call's hold on a generation: the reader that it has, and what the generation does when the call is gone."""

from collections import abc
from contextlib import contextmanager
from dataclasses import dataclass

from gateway.servicer.journal import JournalReader
from gateway.servicer.outcome import Outcome
from gateway.servicer.relay import Generation
from gateway.servicer.transcript import Transcript


@dataclass(frozen=True, slots=True)
class Served:
    """A generation that this gateway has, running or ended. `is_replay`: an earlier call made it."""

    generation: Generation | None
    transcript: Transcript
    is_replay: bool

    @classmethod
    def found(cls, found: Generation | Transcript) -> "Served":
        """What an earlier call made."""
        if isinstance(found, Generation):
            return cls(found, found.transcript, is_replay=True)
        return cls(None, found, is_replay=True)

    @contextmanager
    def reading(self, after_sequence: int = 0, *, whole: bool = False) -> abc.Iterator[JournalReader]:
        """A reader behind that message. If it was the last one that a running generation had, that one may end."""
        reader = self.transcript.journal.read(after_sequence, whole=whole)
        try:
            yield reader
        finally:
            reader.close()
            if self.generation is not None:
                self.generation.left()

    def abandon(self) -> None:
        """No reader will come: as if one had been there and left."""
        if self.generation is not None:
            self.generation.left()


def result_of(served: Served) -> Outcome:
    """The end of a generation whose messages are all read. Raises the error that stands for a result, as the last word
    to whoever repeats a request that was billed."""
    outcome = served.transcript.outcome
    assert outcome is not None, "its messages have ended"
    if outcome.error is None:
        return outcome
    raise outcome.error.as_final() if served.is_replay and outcome.usage.num_billed_tokens else outcome.error
