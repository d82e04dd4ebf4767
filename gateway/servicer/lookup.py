"""Generations that were made before: where they stand, and the rest of a stream that was cut.

Asked of this gateway first, then of the engines (another gateway may run it), then of the ledger. What belongs to
another team is not there.
"""

from collections import abc
from contextlib import aclosing, suppress
from uuid import UUID

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.auth import Principal, current_principal
from gateway.engine_client import CancelReason, EngineClient, RequestSelection
from gateway.errors import FieldViolation, InvalidFieldError, NoEngineError
from gateway.errors_requests import GenerationElsewhereError, GenerationNotFoundError, ReplayExpiredError
from gateway.servicer.attachment import Served
from gateway.servicer.live import LiveGenerations
from gateway.servicer.outcome import Delta
from gateway.servicer.shown import (
    end_to_pb,
    event_to_pb,
    explained_state_to_pb,
    state_to_pb,
    stored_state_to_pb,
)
from gateway.servicer.transcript import Transcript
from gateway.store.db import Database
from gateway.store.generations import RequestKey, find_request, find_usage

Named = pb.GetGenerationRequest | pb.WatchGenerationRequest
_UUID_VERSION = 7
_MAX_UNIX_MS = 253_402_300_800_000  # the year 10,000


class Lookup:
    """What `GetGeneration` and `WatchGeneration` answer."""

    def __init__(self, live: LiveGenerations, database: Database, engines: abc.Sequence[EngineClient]) -> None:
        self._live = live
        self._database = database
        self._engines = engines

    async def state(self, request: pb.GetGenerationRequest) -> pb.GetGenerationResponse:
        """Raises GenerationNotFoundError, GenerationElsewhereError, DatabaseUnavailableError where only that knows."""
        principal = current_principal()
        team_id, name, is_generation = _names(request, principal)
        found = self._own(name, team_id, is_generation=is_generation)
        if found is not None:
            return state_to_pb(found.transcript, _whole_output(found.transcript))
        if is_generation:
            stored = await find_usage(self._database, UUID(name)) if _is_ours(name) else None
            running = None if stored is not None else await self._elsewhere(name, team_id)
            if running is not None:
                return running
        else:
            taken = await find_request(self._database, RequestKey(team_id, UUID(name)))
            if taken is not None and taken.usage is None:
                running = await self._elsewhere(str(taken.generation_id), team_id)
                if running is None:
                    raise GenerationElsewhereError(str(taken.generation_id), taken.gateway)
                return running
            stored = None if taken is None else taken.usage
        if stored is None or stored.team_id != team_id:
            raise GenerationNotFoundError(name)
        return stored_state_to_pb(stored)

    async def watch(self, request: pb.WatchGenerationRequest) -> abc.AsyncGenerator[pb.WatchGenerationResponse, None]:
        """The messages behind `after_sequence`, to the end. Raises what stands for a result, or ReplayExpiredError."""
        principal = current_principal()
        team_id, name, is_generation = _names(request, principal)
        served = self._own(name, team_id, is_generation=is_generation)
        if served is None:
            raise await self._why_not_here(name, team_id, is_generation=is_generation)
        last = request.after_sequence
        if served.transcript.has_told_end(last):
            return
        with served.reading(last) as reader:
            async with aclosing(reader.messages()) as messages:
                async for last, event in messages:
                    yield pb.WatchGenerationResponse(update=event_to_pb(last, event, served))
            yield pb.WatchGenerationResponse(update=end_to_pb(last + 1, served))

    async def cancel(self, named: abc.Sequence[str]) -> int:
        """How many of the ids were running generations of the caller's team, here or at another gateway.

        Raises InvalidFieldError for what cannot be an id; then nothing was cancelled.
        """
        principal = current_principal()
        generation_ids = tuple(_uuid(text, f"generation_ids[{index}]") for index, text in enumerate(named))
        num_cancelled = self._live.cancel(principal, generation_ids)
        elsewhere = tuple(each for each in generation_ids if _is_ours(each) and self._live.find(each) is None)
        if not elsewhere:
            return num_cancelled
        wanted = RequestSelection(elsewhere, (str(principal.organization_id), str(principal.team_id)))
        for engine in self._engines:
            with suppress(NoEngineError):
                num_cancelled += len(await engine.cancel_requests(wanted, CancelReason.CLIENT))
        return num_cancelled

    def _own(self, name: str, team_id: UUID, *, is_generation: bool) -> Served | None:
        """What this gateway has of that name, if it is the team's."""
        found = self._live.find(name) if is_generation else self._live.find_request((team_id, name))
        if found is None:
            return None
        served = Served.found(found)
        return served if served.transcript.team_id == team_id else None

    async def _elsewhere(self, name: str, team_id: UUID) -> pb.GetGenerationResponse | None:
        """What an engine says of a generation that another gateway runs, if it is the team's."""
        for engine in self._engines:
            with suppress(NoEngineError):
                told = await engine.explain(name)
                if told is not None and told.request.path[-1:] == (str(team_id),):
                    return explained_state_to_pb(told)
        return None

    async def _why_not_here(self, name: str, team_id: UUID, *, is_generation: bool) -> Exception:
        """A stream can be resumed on the gateway that has it, and for a minute."""
        generation_id, gateway = name, ""
        if is_generation:
            stored = await find_usage(self._database, UUID(name)) if _is_ours(name) else None
        else:
            taken = await find_request(self._database, RequestKey(team_id, UUID(name)))
            if taken is None:
                return GenerationNotFoundError(name)
            generation_id, gateway, stored = str(taken.generation_id), taken.gateway, taken.usage
        if stored is not None:
            return ReplayExpiredError(0) if stored.team_id == team_id else GenerationNotFoundError(name)
        running = await self._elsewhere(generation_id, team_id)
        if running is not None:
            state = pb.GenerationState.Name(running.state).removeprefix("GENERATION_STATE_")
            return GenerationElsewhereError(generation_id, gateway, state)
        return GenerationElsewhereError(generation_id, gateway) if gateway else GenerationNotFoundError(name)


def _names(request: Named, principal: Principal) -> tuple[UUID, str, bool]:
    """The caller's team, the id in its usual form, and whether it is a generation's. Raises InvalidFieldError."""
    assert principal.team_id is not None, "a platform key does not generate"
    kind = request.WhichOneof("id")
    if kind is None:
        raise InvalidFieldError(FieldViolation("id", "set generation_id or request_id"))
    text = request.generation_id if kind == "generation_id" else request.request_id
    return principal.team_id, _uuid(text, kind), kind == "generation_id"


def _uuid(text: str, field: str) -> str:
    """The id in its usual spelling."""
    try:
        return str(UUID(text))
    except ValueError:
        raise InvalidFieldError(FieldViolation(field, "must be a UUID")) from None


def _is_ours(name: str) -> bool:
    """Whether it can be one of our ids, whose time is a date."""
    number = UUID(name)
    return number.version == _UUID_VERSION and number.int >> 80 < _MAX_UNIX_MS


def _whole_output(transcript: Transcript) -> list[Delta] | None:
    """Everything that an ended generation said; None where some of it is gone, or it still speaks."""
    if transcript.outcome is None:
        return None
    try:
        position, deltas = 0, []
        while (event := transcript.journal.take(position)) is not None:
            position += 1
            if isinstance(event, Delta):
                deltas.append(event)
    except ReplayExpiredError:
        return None
    return deltas
