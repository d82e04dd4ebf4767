"""The journal: whoever comes and goes, each reader gets every message once, in order, and what is kept is bounded."""

import asyncio
from contextlib import aclosing

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.engine_client import TokenLogprobs
from gateway.errors_requests import ReplayExpiredError
from gateway.servicer.journal import Journal, JournalSizes
from gateway.servicer.outcome import Continued, Delta, Event, Paused, Queued, Started
from gateway.servicer.packed import PackedEvents

UNREAD, REPLAY = 8, 24


def delta(number: int, num_tokens: int = 1) -> Delta:
    return Delta(f"<{number}>" * num_tokens, (), (), num_tokens, number)


class Readers(RuleBasedStateMachine):
    """Readers that take what they are given, leave, and come back with the number of their last message."""

    def __init__(self) -> None:
        super().__init__()
        self.holds: list[bool] = []
        self.journal = Journal(JournalSizes(UNREAD, REPLAY), self.holds.append)
        self.written = ""
        self.num_tokens = 0
        self.places: dict[int, tuple[object, int, str]] = {}
        self.num_readers = 0

    @initialize()
    def begin(self) -> None:
        self.journal.append(Started())

    @precondition(lambda self: not self.journal.has_ended and not (self.holds and self.holds[-1]))
    @rule(num_tokens=st.integers(1, 6))
    def write(self, num_tokens: int) -> None:
        self.num_tokens += num_tokens
        new = Delta("x" * num_tokens, (), (), num_tokens, self.num_tokens)
        self.written += new.text
        self.journal.append(new)

    @precondition(lambda self: not self.journal.has_ended and not (self.holds and self.holds[-1]))
    @rule()
    def pause(self) -> None:
        self.journal.append(Paused("fairness", "pause"))

    @rule()
    def come(self) -> None:
        if self.journal.oldest_sequence == 0:
            self.places[self.num_readers] = (self.journal.read(0), 0, "")
            self.num_readers += 1

    @precondition(lambda self: self.places)
    @rule(data=st.data())
    def take(self, data) -> None:
        name = data.draw(st.sampled_from(sorted(self.places)))
        reader, place, text = self.places[name]
        if place < self.journal.oldest_sequence:
            with pytest.raises(ReplayExpiredError):
                self.journal.take(place)
            reader.close()
            del self.places[name]
            return
        event = self.journal.take(place)
        if event is not None:
            text += event.text if isinstance(event, Delta) else ""
            self.places[name] = (reader, place + 1, text)

    @precondition(lambda self: self.places)
    @rule(data=st.data())
    def cut_and_come_back(self, data) -> None:
        name = data.draw(st.sampled_from(sorted(self.places)))
        reader, place, text = self.places[name]
        reader.close()
        if place < self.journal.oldest_sequence:
            with pytest.raises(ReplayExpiredError):
                self.journal.read(place)
            del self.places[name]
        else:
            self.places[name] = (self.journal.read(place), place, text)

    @precondition(lambda self: not self.journal.has_ended)
    @rule()
    def end(self) -> None:
        self.journal.end()

    @invariant()
    def each_reader_has_a_beginning_of_what_was_written(self) -> None:
        for _, _, text in self.places.values():
            assert self.written.startswith(text)

    @invariant()
    def what_is_kept_is_bounded(self) -> None:
        # One message may be as large as all that may wait, and the writer above stops only after its last write.
        assert self.journal.num_kept_tokens <= 2 * (REPLAY + 6) + UNREAD

    def teardown(self) -> None:
        if not self.journal.has_ended:
            self.journal.end()
        for reader, place, text in self.places.values():
            if place < self.journal.oldest_sequence:
                continue
            while (event := self.journal.take(place)) is not None:
                place += 1
                text += event.text if isinstance(event, Delta) else ""
            assert text == self.written
            assert place == self.journal.last_sequence
            reader.close()


TestReaders = Readers.TestCase


async def read(journal: Journal, after: int = 0, *, whole: bool = False) -> list[tuple[int, Event]]:
    reader = journal.read(after, whole=whole)
    try:
        async with aclosing(reader.messages()) as messages:
            return [message async for message in messages]
    finally:
        reader.close()


async def test_a_slow_reader_gets_one_message_for_all_that_gathered() -> None:
    journal = Journal(JournalSizes(UNREAD, REPLAY), lambda _: None)
    for number in range(1, 4):
        journal.append(delta(number))
    journal.end()

    assert await read(journal) == [(1, Delta("<1><2><3>", (), (), 3, 3))]


async def test_a_number_means_the_same_message_for_every_reader() -> None:
    journal = Journal(JournalSizes(UNREAD, REPLAY), lambda _: None)
    first = journal.read()
    journal.append(delta(1))
    assert journal.take(0) == delta(1)
    journal.append(delta(2))
    journal.append(delta(3))
    journal.end()
    first.close()

    assert await read(journal) == [(1, delta(1)), (2, Delta("<2><3>", (), (), 2, 3))]
    assert await read(journal, 1) == [(2, Delta("<2><3>", (), (), 2, 3))]


async def test_only_the_newest_place_in_the_queue_is_told() -> None:
    journal = Journal(JournalSizes(UNREAD, REPLAY), lambda _: None)
    for position in (9, 7, 3):
        journal.append(Queued(position, is_lower_bound=False, estimated_wait_ns=None))
    journal.end()

    assert [event.position for _, event in await read(journal)] == [3]


async def test_the_source_is_held_while_nobody_takes_and_goes_on_when_all_is_taken() -> None:
    holds: list[bool] = []
    journal = Journal(JournalSizes(2, 100), holds.append)
    journal.read()
    journal.append(delta(1))
    journal.append(Continued())
    journal.append(delta(2))
    assert holds == [True]
    journal.take(0)
    assert holds == [True]
    journal.take(1)
    journal.take(2)
    assert holds == [True, False]


async def test_without_a_reader_nobody_is_held_and_the_newest_is_kept() -> None:
    holds: list[bool] = []
    journal = Journal(JournalSizes(2, 5), holds.append)
    reader = journal.read()
    for number in range(1, 4):
        journal.append(delta(number))
    reader.close()
    assert holds == [True, False]
    for number in range(4, 1000):
        journal.append(delta(number))
        assert journal.num_kept_tokens <= 5 + 2
    journal.end()

    assert holds == [True, False]
    with pytest.raises(ReplayExpiredError):
        journal.read(0)
    kept = await read(journal, journal.oldest_sequence)
    assert "".join(event.text for _, event in kept) == "".join(f"<{number}>" for number in range(995, 1000))


async def test_without_a_reader_nobody_is_held_even_if_less_is_kept_than_may_wait_for_one() -> None:
    holds: list[bool] = []
    journal = Journal(JournalSizes(8, 2), holds.append)
    for number in range(1, 100):
        journal.append(delta(number))

    assert holds == []


async def test_log_probabilities_count_towards_what_is_kept() -> None:
    journal = Journal(JournalSizes(4, 16), lambda _: None)
    logprobs = (TokenLogprobs(-0.5, ((7, -0.5), (8, -0.6), (9, -0.7))),)
    for number in range(1, 1000):
        journal.append(Delta("x", (7,), logprobs, 1, number))
        assert journal.num_kept_tokens <= 16 + 4


async def test_nobody_is_held_for_a_reader_that_wants_the_whole_at_the_end() -> None:
    holds: list[bool] = []
    journal = Journal(JournalSizes(1, 2), holds.append)
    reading = asyncio.create_task(read(journal, whole=True))
    await asyncio.sleep(0)
    for number in range(1, 50):
        journal.append(delta(number))
    journal.end()

    assert [event.num_tokens for _, event in await reading] == [49]
    assert holds == []


async def test_what_was_never_sent_cannot_be_resumed_behind() -> None:
    journal = Journal(JournalSizes(UNREAD, REPLAY), lambda _: None)
    journal.append(delta(1))

    with pytest.raises(ReplayExpiredError):
        journal.read(5)


async def test_packed_messages_equal_what_they_were_made_of() -> None:
    logprobs = (TokenLogprobs(-0.5, ((7, -0.5),)),)
    events = [
        Started(),
        Queued(3, is_lower_bound=True, estimated_wait_ns=5),
        delta(1),
        Delta("ab", (1, 2), (), 2, 3),
        Delta("", (), (), 1, 4),
        Delta("é", (9,), logprobs, 1, 5),
        Paused("fairness", "pause"),
        Continued(),
        Delta("rest", (), (), 0, 5),
        Delta("odd", (), (), 3, 6),
    ]

    packed = PackedEvents(events)

    assert len(packed) == len(events)
    assert [packed[index] for index in range(len(packed))] == events
