"""The generations that run on this gateway: found by id, by client request id, by key. Empty when all have ended."""

import asyncio
from collections import abc
from uuid import UUID

from gateway.auth import Principal
from gateway.errors import GenerationRunningError, RequestIdReusedError
from gateway.servicer.ask import GenerationAsk
from gateway.servicer.ending import EndCause
from gateway.servicer.relay import Generation


class LiveGenerations:
    """The one registry of this process. An entry is there from `add` until `remove`."""

    def __init__(self) -> None:
        self._by_id: dict[str, Generation] = {}
        self._by_request_id: dict[tuple[UUID, str], Generation] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def require_new(self, principal: Principal, ask: GenerationAsk) -> None:
        """No live generation of the key has this `request_id`.

        Raises GenerationRunningError for the same request, RequestIdReusedError for another one. Whoever sends a
        `request_id` again after its generation has ended gets a new generation.
        """
        if not ask.request_id:
            return
        live = self._by_request_id.get((principal.key_id, ask.request_id))
        if live is None:
            return
        if live.job.ask.fingerprint != ask.fingerprint:
            raise RequestIdReusedError
        raise GenerationRunningError(live.job.generation_id)

    def add(self, generation: Generation) -> None:
        job = generation.job
        self._by_id[job.generation_id] = generation
        if job.ask.request_id:
            self._by_request_id[job.principal.key_id, job.ask.request_id] = generation

    def remove(self, generation: Generation) -> None:
        job = generation.job
        del self._by_id[job.generation_id]
        if job.ask.request_id:
            del self._by_request_id[job.principal.key_id, job.ask.request_id]

    def cancel(self, principal: Principal, generation_ids: abc.Iterable[str]) -> int:
        """How many of the ids were live generations of the caller's team and have been told to stop."""
        found = (self._by_id.get(generation_id) for generation_id in dict.fromkeys(generation_ids))
        return sum(
            generation.cancel(EndCause.CLIENT)
            for generation in found
            if generation is not None and generation.job.principal.team_id == principal.team_id
        )

    async def abort_key(self, key_id: UUID) -> None:
        """Everything that the key has running ends with KEY_REVOKED."""
        for generation in list(self._by_id.values()):
            if generation.job.principal.key_id == key_id:
                generation.cancel(EndCause.KEY_REVOKED)

    async def drained(self, grace_s: float) -> None:
        """Every generation is settled: those that `grace_s` did not suffice for end with DRAINING."""
        ends = [asyncio.create_task(generation.ended()) for generation in self._by_id.values()]
        if not ends:
            return
        _, late = await asyncio.wait(ends, timeout=grace_s)
        if late:
            for generation in list(self._by_id.values()):
                generation.cancel(EndCause.DRAINING)
            await asyncio.wait(late)
