"""The queues of the engines, and the generations of this gateway: listed, explained, ended.

Who may see one team sees its own requests; who is served before them is for the platform's administrators.
"""

import asyncio
from collections import abc
from contextlib import suppress
from typing import Protocol

from google.protobuf.duration_pb2 import Duration

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.backend import Backend
from gateway.admin.names import invalid, parse_any_api_key, parse_team
from gateway.admin.pagination import page_size
from gateway.admin.values import parse_reason, parse_uuid
from gateway.auth import Action, current_principal
from gateway.engine_client import CancelReason, RequestSelection
from gateway.engine_client.requests import RequestExplanation, RequestSummary
from gateway.errors import NoEngineError
from gateway.errors_requests import GenerationNotFoundError
from gateway.selection import Select, Selection
from gateway.store.generations import record_cancellation
from gateway.store.records import ANY, ResourcePath
from gateway.words import State

MAX_RECORDED_IDS = 10_000


class QueueEngine(Protocol):
    """What is asked of an engine's client. Each call raises NoEngineError if it does not answer."""

    @property
    def address(self) -> str: ...

    async def requests(self, size: int, token: str) -> tuple[list[RequestSummary], str]:
        """A page of its unfinished requests, and the token of the next one or ""."""

    async def explain(self, generation_id: str) -> RequestExplanation | None:
        """None if the request is not unfinished there."""

    async def cancel_requests(self, selection: RequestSelection, reason: CancelReason) -> list[str]:
        """Those that were unfinished end; their ids."""


class Queue:
    """The methods of AdminService on requests. `select` finds what `cancel` tells to stop, on this gateway.

    What other gateways run is reached through the engines, which know the tenant and the key of each request.
    """

    def __init__(self, backend: Backend, engines: abc.Sequence[QueueEngine], select: Select, cancel: Select) -> None:
        self._backend = backend
        self._engines = engines
        self._select = select
        self._cancel = cancel

    async def list(self, request: pb.ListQueueRequest) -> pb.ListQueueResponse:
        """A page is a page of one engine, less what the caller may not see or did not ask for."""
        parent = parse_team(request.parent, "parent", wildcards=True)
        if request.state and request.state not in tuple(State):
            raise invalid("state", f"must be one of {', '.join(State)}")
        size, listing = page_size(request.page_size), f"queue {request.parent} {request.state}"
        number, token = _place(self._backend.pages.read(request.page_token, listing), len(self._engines))
        response = pb.ListQueueResponse()
        while number < len(self._engines):
            engine = self._engines[number]
            try:
                found, token = await engine.requests(size - len(response.entries), token)
            except NoEngineError:
                response.unreachable.append(engine.address)
                found, token = [], ""
            response.entries.extend(
                self._entry(summary, engine.address) for summary in found if self._shows(summary, parent, request.state)
            )
            if not token:
                number += 1
            if len(response.entries) >= size or token:
                break
        if number < len(self._engines):
            response.next_page_token = self._backend.pages.issue(f"{number} {token}", listing)
        return response

    async def explain(self, request: pb.ExplainRequestRequest) -> pb.ExplainRequestResponse:
        """Raises GenerationNotFoundError, or NoEngineError where an engine that does not answer may have it."""
        generation_id = parse_uuid(request.generation_id, "generation_id")
        asked = (engine.explain(generation_id) for engine in self._engines)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for engine, answer in zip(self._engines, answers, strict=True):
            if isinstance(answer, RequestExplanation):
                return self._explained(answer, engine.address)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        raise GenerationNotFoundError(generation_id)

    async def cancel(self, request: pb.CancelGenerationsRequest) -> pb.CancelGenerationsResponse:
        """What is told to stop is on record first."""
        selection, reason = self._selection(request), parse_reason(request.reason, "reason")
        if request.validate_only:
            return pb.CancelGenerationsResponse(generation_ids=self._select(selection))
        change = self._backend.change(request, "", validate_only=False)
        resource = request.api_key or request.team or "generations/-"
        told: list[str] = []

        async def stop() -> dict[str, object]:
            told.extend(self._cancel(selection))
            told.extend(await self._cancel_elsewhere(selection, told))
            return {"reason": reason, "generation_ids": told[:MAX_RECORDED_IDS], "num_generations": len(told)}

        await self._backend.read(record_cancellation(self._backend.database, change, resource, stop))
        await self._backend.catch_up()
        return pb.CancelGenerationsResponse(generation_ids=told)

    async def _cancel_elsewhere(self, selection: Selection, told: abc.Sequence[str]) -> tuple[str, ...]:
        """What the engines that answer have of other gateways."""
        wanted = self._in_engines(selection, told)
        if wanted == RequestSelection():
            return ()
        found: dict[str, None] = {}
        for engine in self._engines:
            with suppress(NoEngineError):
                found.update(dict.fromkeys(await engine.cancel_requests(wanted, CancelReason.ADMINISTRATOR)))
        return tuple(each for each in found if each not in told)

    def _in_engines(self, selection: Selection, told: abc.Sequence[str]) -> RequestSelection:
        if selection.key_id is not None:
            return RequestSelection(sender_id=str(selection.key_id))
        if selection.team_id is not None:
            team = self._backend.cache.current.teams[selection.team_id]
            return RequestSelection(path=(str(team.organization.id), str(team.id)))
        return RequestSelection(tuple(each for each in selection.generation_ids if each not in told))

    def _selection(self, request: pb.CancelGenerationsRequest) -> Selection:
        if sum(map(bool, (request.generation_ids, request.api_key, request.team))) != 1:
            raise invalid("generation_ids", "set one of generation_ids, api_key and team")
        snapshot = self._backend.cache.current
        if request.api_key:
            key = snapshot.keys.get(parse_any_api_key(request.api_key, "api_key", wildcards=True).api_key or "")
            if key is None:
                raise GenerationNotFoundError(request.api_key)
            return Selection(key_id=key.key_id)
        if request.team:
            path = parse_team(request.team, "team")
            for team in snapshot.teams.values():
                if (team.organization.slug, team.slug) == (path.organization, path.team):
                    return Selection(team_id=team.id)
            raise GenerationNotFoundError(request.team)
        ids = (parse_uuid(text, f"generation_ids[{index}]") for index, text in enumerate(request.generation_ids))
        return Selection(frozenset(ids))

    def _shows(self, summary: RequestSummary, parent: ResourcePath, state: str) -> bool:
        if state and summary.state != state:
            return False
        path = self._path(summary)
        is_below = parent.organization in (ANY, path.organization) and parent.team in (ANY, path.team)
        return is_below and current_principal().may(Action.READ, path)

    def _path(self, summary: RequestSummary) -> ResourcePath:
        """Where its tenant is; one that is unknown here is nobody's but the platform's."""
        parts = self._backend.cache.current.team_name(summary.path).split("/")
        return ResourcePath(parts[1], parts[3]) if len(parts) == len(("organizations", "", "teams", "")) else _UNKNOWN

    def _entry(self, summary: RequestSummary, address: str) -> pb.QueueEntry:
        return pb.QueueEntry(
            generation_id=summary.generation_id,
            engine=address,
            team=self._backend.cache.current.team_name(summary.path),
            priority_class=summary.priority_class,
            state=summary.state,
            prompt_tokens=summary.num_prompt_tokens,
            output_tokens=summary.num_output_tokens,
            max_output_tokens=summary.max_output_tokens,
            computed_tokens=summary.num_computed_tokens,
            wait=_duration(summary.waited_ns),
            age=_duration(summary.age_ns),
            preemption_count=summary.num_preemptions,
            device_blocks=summary.num_device_blocks,
        )

    def _explained(self, told: RequestExplanation, address: str) -> pb.ExplainRequestResponse:
        wait_ns = told.estimated_wait_ns
        return pb.ExplainRequestResponse(
            request=self._entry(told.request, address),
            position=told.position,
            position_is_lower_bound=told.is_lower_bound,
            estimated_wait=None if wait_ns is None else _duration(wait_ns),
            ahead=[self._entry(each, address) for each in told.ahead],
            standing=told.standing,
            tenant_prefill_tokens=told.num_tenant_prefill_tokens,
            tenant_output_tokens=told.num_tenant_output_tokens,
            blocked_by=told.blocked_by,
            scheduling_policy=told.scheduling_policy,
        )


_UNKNOWN = ResourcePath(None)


def _place(place: str | None, num_engines: int) -> tuple[int, str]:
    """The engine that a page begins at, and its own token."""
    if place is None:
        return 0, ""
    number, _, token = place.partition(" ")
    return min(int(number), num_engines), token


def _duration(length_ns: int) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(length_ns)
    return duration
