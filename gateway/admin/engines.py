"""Engines: the policies that they decide by, switched while they run.

The change is tried on every engine before it is made on any. An engine that goes away in between keeps what it had;
the record names those that have switched.
"""

import asyncio
from collections import abc
from dataclasses import asdict, replace
from typing import Protocol

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.backend import Backend
from gateway.admin.names import invalid
from gateway.errors import GatewayError, NotFoundError
from gateway.status import PolicyChoice
from gateway.store.audit import Document
from gateway.store.engines import record_switch

MAX_TEXT_CHARS = 200


class Engine(Protocol):
    """What is asked of an engine's client."""

    @property
    def address(self) -> str: ...

    async def set_policies(self, choice: PolicyChoice, *, validate_only: bool) -> PolicyChoice:
        """What it decided by before. Raises InvalidFieldError, NoEngineError."""


class Engines:
    """The methods of AdminService on engines."""

    def __init__(self, backend: Backend, engines: abc.Sequence[Engine]) -> None:
        self._backend = backend
        self._engines = engines

    async def set_scheduling_policy(self, request: pb.SetSchedulingPolicyRequest) -> pb.SetSchedulingPolicyResponse:
        engines, choice = self._named(request.engine), _choice(request)
        change = self._backend.change(request, request.request_id, validate_only=request.validate_only)
        previous = {engine.address: await engine.set_policies(choice, validate_only=True) for engine in engines}
        if not request.validate_only:
            switch = Switch(engines, choice, previous)
            resource = f"engines/{request.engine or '-'}"
            await self._backend.read(record_switch(self._backend.database, change, resource, switch))
            await self._backend.catch_up()
            if switch.failure is not None:
                raise switch.failure
        return pb.SetSchedulingPolicyResponse(
            switches=[
                pb.PolicySwitch(
                    engine=address,
                    previous_scheduling_policy=before.scheduling_policy,
                    previous_preemption_policy=before.preemption_policy,
                    previous_scheduling_options=before.scheduling_options,
                    previous_preemption_options=before.preemption_options,
                )
                for address, before in previous.items()
            ]
        )

    def _named(self, address: str) -> list[Engine]:
        engines = [engine for engine in self._engines if address in ("", engine.address)]
        if not engines:
            raise NotFoundError(f"engines/{address}")
        return engines


class Switch:
    """Switches all engines at once. `failure` is an error of one that did not take part, where others did."""

    def __init__(
        self, engines: abc.Sequence[Engine], choice: PolicyChoice, previous: abc.Mapping[str, PolicyChoice]
    ) -> None:
        self.failure: GatewayError | None = None
        self._engines = engines
        self._choice = choice
        self._previous = previous

    async def __call__(self) -> tuple[Document, Document]:
        """By address, what those decided by that have switched, and what they decide by now.

        Raises GatewayError if none has.
        """
        failures = await asyncio.gather(*map(self._failure_at, self._engines))
        self.failure = next(filter(None, failures), None)
        switched = [engine.address for engine, failure in zip(self._engines, failures, strict=True) if failure is None]
        if not switched and self.failure is not None:
            raise self.failure
        before = {address: self._previous[address] for address in switched}
        after = {address: _switched(previous, self._choice) for address, previous in before.items()}
        return _document(before), _document(after)

    async def _failure_at(self, engine: Engine) -> GatewayError | None:
        try:
            await engine.set_policies(self._choice, validate_only=False)
        except GatewayError as error:
            return error
        return None


def _switched(previous: PolicyChoice, choice: PolicyChoice) -> PolicyChoice:
    """What is in force after `choice`, where `previous` was."""
    switched = previous
    if choice.scheduling_policy:
        switched = replace(
            switched, scheduling_policy=choice.scheduling_policy, scheduling_options=choice.scheduling_options
        )
    if choice.preemption_policy:
        switched = replace(
            switched, preemption_policy=choice.preemption_policy, preemption_options=choice.preemption_options
        )
    return switched


def _document(choices: abc.Mapping[str, PolicyChoice]) -> Document:
    return {address: asdict(choice) for address, choice in choices.items()}


def _choice(request: pb.SetSchedulingPolicyRequest) -> PolicyChoice:
    if not request.scheduling_policy and not request.preemption_policy:
        raise invalid("scheduling_policy", "must not be empty where preemption_policy is")
    return PolicyChoice(
        _text(request.scheduling_policy, "scheduling_policy"),
        _options(request.scheduling_options, "scheduling_options"),
        _text(request.preemption_policy, "preemption_policy"),
        _options(request.preemption_options, "preemption_options"),
    )


def _options(options: abc.Mapping[str, str], field: str) -> dict[str, str]:
    return {_text(name, field): _text(value, field) for name, value in options.items()}


def _text(text: str, field: str) -> str:
    if len(text) > MAX_TEXT_CHARS or not text.isprintable():
        raise invalid(field, f"must be at most {MAX_TEXT_CHARS} characters in one line")
    return text
