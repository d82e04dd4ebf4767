"""What one generation says, numbered from 1, for readers that come, go and come back.

Messages are numbered when the first reader takes them; until then adjacent deltas become one, so that a reader who is
slow gets larger messages and not more of them; an output that a beam search found is a message of its own. A numbered
message never changes: whoever comes back with the number of the last one goes on behind it, with no gap and no
duplicate. What is kept is bounded in tokens: of the numbered messages the oldest go first, and where too much waits for
a reader to take it, `hold` is asked to stop the source. Where there is no reader nobody is waited for: what is new is
numbered as it comes.
"""

import asyncio
from collections import abc, deque
from dataclasses import dataclass

from gateway.errors_requests import ReplayExpiredError
from gateway.servicer.outcome import Delta, Event, Queued
from gateway.servicer.packed import PackedEvents


@dataclass(frozen=True, slots=True)
class JournalSizes:
    """In tokens. unread: held for readers that are slower than the source; replay: kept for those that come back.

    Without a reader, messages of about `unread` tokens are made.
    """

    unread: int
    replay: int


class Journal:
    """The messages of one generation. Filled by its task, emptied by `JournalReader`s of the same event loop."""

    def __init__(self, sizes: JournalSizes, hold: abc.Callable[[bool], None]) -> None:
        self._sizes = sizes
        self._hold = hold
        self._numbered: deque[Event] | PackedEvents = deque()
        self._num_gone = 0
        self._open: deque[Event | list[Delta]] = deque()
        self._num_open_tokens = 0
        self._readers: set[JournalReader] = set()
        self._is_held = False
        self._num_numbered_tokens = 0
        self.has_ended = False

    @property
    def last_sequence(self) -> int:
        """The number of the last message that has one."""
        return self._num_gone + len(self._numbered)

    @property
    def oldest_sequence(self) -> int:
        """The number behind which every message is kept."""
        return self._num_gone

    @property
    def num_readers(self) -> int:
        return len(self._readers)

    @property
    def has_unread(self) -> bool:
        """Whether there are messages that no reader has taken."""
        return bool(self._open)

    @property
    def num_kept_tokens(self) -> int:
        """Of all messages that are kept."""
        return self._num_numbered_tokens + self._num_open_tokens

    def append(self, event: Event) -> None:
        """`event` happened after all others."""
        last = self._open[-1] if self._open else None
        if isinstance(event, Queued) and isinstance(last, Queued):
            self._open[-1] = event  # the older position says nothing any more
            return
        self._num_open_tokens += _size(event)
        if not isinstance(event, Delta):
            self._open.append(event)
        elif isinstance(last, list) and event.found is None and last[-1].found is None:
            last.append(event)
        else:
            self._open.append([event])
        if not self._readers and self._num_open_tokens >= self._sizes.unread:
            self._number_all()
        self._hold_or_let_go()
        self._wake()

    def end(self) -> None:
        """Nothing follows. What is kept stays as long as somebody refers to it."""
        self.has_ended = True
        self._hold = _nobody_to_hold
        self._wake()
        self._pack()

    def read(self, after_sequence: int = 0, *, whole: bool = False) -> "JournalReader":
        """A reader behind that message, which is attached until it is closed.

        `whole`: it takes nothing before the end, and nobody is held for it. Raises ReplayExpiredError where messages
        behind `after_sequence` are gone, or it has not been reached.
        """
        self._check(after_sequence)
        reader = JournalReader(self, after_sequence, whole=whole)
        self._readers.add(reader)
        self._hold_or_let_go()
        return reader

    def take(self, after_sequence: int) -> Event | None:
        """The message behind that one, None if there is none yet. Raises ReplayExpiredError."""
        index = after_sequence - self._num_gone
        if index < 0:
            raise ReplayExpiredError(self._num_gone)
        if index < len(self._numbered):
            return self._numbered[index]
        if not self._open:
            return None
        event = self._number_next()
        self._hold_or_let_go()
        return event

    def leave(self, reader: "JournalReader") -> None:
        self._readers.discard(reader)
        self._hold_or_let_go()
        self._pack()

    def _pack(self) -> None:
        """What nobody reads and nobody adds to is kept small."""
        if not self.has_ended or self._readers or isinstance(self._numbered, PackedEvents):
            return
        self._number_all()
        self._numbered = PackedEvents(self._numbered)

    def _number_all(self) -> None:
        while self._open:
            self._number_next()

    def _check(self, after_sequence: int) -> None:
        if not self._num_gone <= after_sequence <= self.last_sequence:
            raise ReplayExpiredError(self._num_gone)

    def _number_next(self) -> Event:
        first = self._open.popleft()
        event = _joined(first) if isinstance(first, list) else first
        size = _size(event)
        assert isinstance(self._numbered, deque), "a packed journal has ended"
        self._numbered.append(event)
        self._num_open_tokens -= size
        self._num_numbered_tokens += size
        # The newest one stays, however large: its reader may be cut off while it is being sent.
        while self._num_numbered_tokens > self._sizes.replay and len(self._numbered) > 1 and not self._is_wanted_whole:
            self._num_numbered_tokens -= _size(self._numbered.popleft())
            self._num_gone += 1
        return event

    @property
    def _is_wanted_whole(self) -> bool:
        return any(reader.is_whole for reader in self._readers)

    def _hold_or_let_go(self) -> None:
        must_hold = self._has_too_much()
        if must_hold is not self._is_held:
            self._is_held = must_hold
            self._hold(must_hold)

    def _has_too_much(self) -> bool:
        """Once held, the source goes on when a reader has taken everything."""
        # A reader that waits takes everything at the loop's next turn, however much came at once.
        if not self._readers or any(reader.is_waiting for reader in self._readers):
            return False
        return self._num_open_tokens >= (1 if self._is_held else self._sizes.unread)

    def _wake(self) -> None:
        for reader in self._readers:
            reader.wake()


class JournalReader:
    """One reader's place in a journal. `close` it."""

    def __init__(self, journal: Journal, after_sequence: int, *, whole: bool) -> None:
        self._journal = journal
        self._position = after_sequence
        self.is_whole = whole
        self._changed = asyncio.Event()
        self.is_waiting = whole

    async def messages(self) -> abc.AsyncGenerator[tuple[int, Event], None]:
        """Number and message of each, in order, to the end. Raises ReplayExpiredError if it fell too far behind."""
        while self.is_whole and not self._journal.has_ended:
            await self._wait()
        while True:
            while (event := self._journal.take(self._position)) is not None:
                self._position += 1
                yield self._position, event
            if self._journal.has_ended:
                return
            await self._wait()

    def wake(self) -> None:
        if not self.is_whole or self._journal.has_ended:
            self._changed.set()

    def close(self) -> None:
        """It reads no more. Idempotent."""
        self._journal.leave(self)

    async def _wait(self) -> None:
        self._changed.clear()
        self.is_waiting = True
        try:
            await self._changed.wait()
        finally:
            self.is_waiting = self.is_whole and not self._journal.has_ended


def _joined(deltas: list[Delta]) -> Delta:
    if len(deltas) == 1:
        return deltas[0]
    return Delta(
        text="".join([delta.text for delta in deltas]),
        token_ids=tuple([token_id for delta in deltas for token_id in delta.token_ids]),
        logprobs=tuple([entry for delta in deltas for entry in delta.logprobs]),
        num_tokens=sum(delta.num_tokens for delta in deltas),
        num_output_tokens=deltas[-1].num_output_tokens,
        prompt=tuple([token for delta in deltas for token in delta.prompt]),
    )


def _size(event: Event) -> int:
    """In tokens, where a token with its log-probabilities weighs as much as all that are told of."""
    if not isinstance(event, Delta):
        return 1
    num_of_prompt = sum(1 if scored.logprobs is None else 1 + len(scored.logprobs.top) for scored in event.prompt)
    return event.num_tokens + sum(len(entry.top) for entry in event.logprobs) + num_of_prompt


def _nobody_to_hold(_is_held: bool) -> None:
    """The source has ended."""
