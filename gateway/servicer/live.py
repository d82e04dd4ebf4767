"""The generations of this gateway: those that run, by id and by client request id, and those that ended a while ago."""

import asyncio
import time
from collections import OrderedDict, abc
from contextlib import contextmanager, suppress
from typing import NamedTuple
from uuid import UUID

from gateway.auth import Principal
from gateway.selection import Selection
from gateway.servicer.ending import EndCause
from gateway.servicer.relay import Generation
from gateway.servicer.transcript import Transcript

KEPT_S = 60.0
MAX_KEPT = 20_000
MAX_KEPT_TOKENS = 2_000_000

RequestName = tuple[UUID, str]
"""The team, and what it calls its request."""


class LiveGenerations:
    """The one registry of this process. An entry is live from `add` until `remove`, and is kept for a minute then."""

    def __init__(self, clock_s: abc.Callable[[], float] = time.monotonic) -> None:
        self._by_id: dict[str, Generation] = {}
        self._by_request: dict[RequestName, Generation] = {}
        self._ended = EndedGenerations(clock_s)
        self._num_launching = 0
        self._has_launched = asyncio.Event()
        self._has_launched.set()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> abc.Iterator[Generation]:
        return iter(tuple(self._by_id.values()))

    def is_live(self, generation_id: str) -> bool:
        """Whether it runs here."""
        return generation_id in self._by_id

    async def until_ended(self, generation_id: str) -> None:
        """Return when it does not run here."""
        generation = self._by_id.get(generation_id)
        if generation is not None:
            await generation.ended()

    @contextmanager
    def launching(self) -> abc.Iterator[None]:
        """Inside the block a request is on its way to being a generation, and may hold quota already."""
        self._num_launching += 1
        self._has_launched.clear()
        try:
            yield
        finally:
            self._num_launching -= 1
            if not self._num_launching:
                self._has_launched.set()

    async def launched(self, timeout_s: float) -> None:
        """Nothing is on its way to being a generation, or `timeout_s` has passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._has_launched.wait()

    def add(self, generation: Generation) -> None:
        transcript = generation.transcript
        self._by_id[transcript.generation_id] = generation
        if transcript.request_id:
            self._by_request[transcript.team_id, transcript.request_id] = generation

    def remove(self, generation: Generation, *, answers_retries: bool = True) -> None:
        """It has ended; callers may still come back for what it said. `answers_retries`: under its request id, too."""
        transcript = generation.transcript
        del self._by_id[transcript.generation_id]
        if transcript.request_id:
            del self._by_request[transcript.team_id, transcript.request_id]
        self._ended.add(transcript, answers_retries=answers_retries)

    def find(self, generation_id: str) -> Generation | Transcript | None:
        """The running or ended generation of that id."""
        return self._by_id.get(generation_id) or self._ended.find(generation_id)

    def find_request(self, name: RequestName) -> Generation | Transcript | None:
        """The running or ended generation that a team's request id stands for."""
        return self._by_request.get(name) or self._ended.find_request(name)

    def cancel(self, principal: Principal, generation_ids: abc.Iterable[str]) -> int:
        """How many of the ids were live generations of the caller's team and have been told to stop."""
        found = (self._by_id.get(generation_id) for generation_id in dict.fromkeys(generation_ids))
        return sum(
            generation.cancel(EndCause.CLIENT)
            for generation in found
            if generation is not None and generation.job.principal.team_id == principal.team_id
        )

    def select(self, selection: Selection) -> list[str]:
        """The ids of those that are meant, oldest first."""
        return [generation.job.generation_id for generation in self._selected(selection)]

    def cancel_selected(self, selection: Selection) -> list[str]:
        """Those that are meant end with GENERATION_CANCELLED; the ids of those that had not been told to end yet."""
        return [
            generation.job.generation_id
            for generation in self._selected(selection)
            if generation.cancel(EndCause.ADMINISTRATOR)
        ]

    async def abort_key(self, key_id: UUID) -> None:
        """Everything that the key has running ends with KEY_REVOKED."""
        for generation in self:
            if generation.job.principal.key_id == key_id:
                generation.cancel(EndCause.KEY_REVOKED)

    def _selected(self, selection: Selection) -> abc.Iterator[Generation]:
        for generation in self:
            principal = generation.job.principal
            if selection.has(generation.job.generation_id, principal.key_id, principal.team_id):
                yield generation

    async def drained(self, grace_s: float) -> None:
        """Every generation is settled: those that `grace_s` did not suffice for end with DRAINING.

        Call it when nothing new is admitted: what is on its way then is waited for, too, and does not become one.
        """
        try:
            async with asyncio.timeout(grace_s):
                await self._has_launched.wait()
                await self._settled()
        except TimeoutError:
            for generation in self:
                generation.cancel(EndCause.DRAINING)
            await self._settled()

    async def _settled(self) -> None:
        await asyncio.gather(*(generation.ended() for generation in self))


class _Ended(NamedTuple):
    transcript: Transcript
    until_s: float
    num_tokens: int


class EndedGenerations:
    """What ended in the last `KEPT_S`, the oldest first to go where that is more than `MAX_KEPT` or its tokens."""

    def __init__(self, clock_s: abc.Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._by_id: OrderedDict[str, _Ended] = OrderedDict()
        self._by_request: dict[RequestName, Transcript] = {}
        self._num_tokens = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, transcript: Transcript, *, answers_retries: bool) -> None:
        """It has just ended."""
        num_tokens = transcript.journal.num_kept_tokens
        self._num_tokens += num_tokens
        self._by_id[transcript.generation_id] = _Ended(transcript, self._clock_s() + KEPT_S, num_tokens)
        if transcript.request_id and answers_retries:
            self._by_request[transcript.team_id, transcript.request_id] = transcript
        self._forget()

    def find(self, generation_id: str) -> Transcript | None:
        self._forget()
        found = self._by_id.get(generation_id)
        return None if found is None else found.transcript

    def find_request(self, name: RequestName) -> Transcript | None:
        self._forget()
        return self._by_request.get(name)

    def _forget(self) -> None:
        now_s = self._clock_s()
        while self._by_id:
            transcript, until_s, num_tokens = next(iter(self._by_id.values()))
            if until_s > now_s and len(self._by_id) <= MAX_KEPT and self._num_tokens <= MAX_KEPT_TOKENS:
                return
            del self._by_id[transcript.generation_id]
            self._num_tokens -= num_tokens
            name = transcript.team_id, transcript.request_id
            if self._by_request.get(name) is transcript:
                del self._by_request[name]
