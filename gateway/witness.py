"""What the engines saw fills in what a gateway could not write down before it died.

Every request carries a tag that says whose it is, and every engine tells what its requests used until a ledger has it.
Of this process's own requests the ledger has an event, better informed than the engine; they are acknowledged as soon
as it is on disk. Of a dead process's requests a row is written by the engine's word, after everything that the process
itself left on this machine's disk: where there is a row already, it stays.
"""

import asyncio
import json
from collections import abc
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

import structlog

from gateway.engine_client import EngineClient, UsageCall, WitnessedUsage
from gateway.errors import NoEngineError
from gateway.ledger import Ledger
from gateway.store.enums import UsageSource
from gateway.store.usage import UsageEvent

RETRY_S = 1.0
NS_PER_S = 1_000_000_000

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class UsageTag:
    """What a row says beside what the engine knows. Holds ids and labels, never text of prompt or output."""

    ledger_id: str
    organization_id: UUID
    team_id: UUID
    key_id: UUID
    model: str
    priority_class: str
    num_input_tokens: int
    num_reserved_tokens: int
    policy_revision: int
    request_id: str = ""
    labels: abc.Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        values = {name: getattr(self, name) for name in UsageTag.__slots__}  # asdict takes ten times as long
        return json.dumps(values, default=str, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> "UsageTag":
        """Raises ValueError where `data` is no tag."""
        try:
            values = json.loads(data)
            ids = {name: UUID(values[name]) for name in ("organization_id", "team_id", "key_id")}
            return cls(**{**values, **ids})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no usage tag: {error}") from error


class _Told(NamedTuple):
    """What an engine has told, in its order. `own_id`: the generation that this process records itself."""

    sequence: int
    own_id: str | None


class Witness:
    """Listens to every engine. `until_ended` returns when this process does not run the generation of that id."""

    def __init__(
        self,
        engines: abc.Sequence[EngineClient],
        ledger: Ledger,
        until_ended: abc.Callable[[str], abc.Awaitable[None]],
    ) -> None:
        self._engines = engines
        self._ledger = ledger
        self._until_ended = until_ended
        self._calls: dict[str, UsageCall] = {}

    def note_kept(self, engine: EngineClient, generation_id: str, num_kept_tokens: int) -> None:
        """The engine knows where the output of a request ended that it did not end itself."""
        if (call := self._calls.get(engine.address)) is not None:
            call.note_kept(generation_id, num_kept_tokens)

    async def run(self) -> None:
        """Until cancelled."""
        await self._ledger.adopted()
        async with asyncio.TaskGroup() as group:
            for engine in self._engines:
                group.create_task(self._follow(engine))

    async def _follow(self, engine: EngineClient) -> None:
        while True:
            call = engine.usage(self._ledger.id)
            self._calls[engine.address] = call
            try:
                await self._listen(call)
            except NoEngineError:
                pass
            finally:
                del self._calls[engine.address]
                call.abandon()
            await asyncio.sleep(RETRY_S)

    async def _listen(self, call: UsageCall) -> None:
        # No TaskGroup: it forgets a cancellation that comes while the call fails.
        told: asyncio.Queue[_Told] = asyncio.Queue()
        tasks = [asyncio.create_task(part) for part in (self._read(call, told), self._settle_forever(call, told))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in done:
            task.result()

    async def _read(self, call: UsageCall, told: "asyncio.Queue[_Told]") -> None:
        async with aclosing(call.told()) as usages:
            async for usage in usages:
                # At once: what is dead must not wait for what lives.
                own_id = usage.generation_id if self._is_own(usage) else None
                told.put_nowait(_Told(usage.sequence, own_id))

    async def _settle_forever(self, call: UsageCall, told: "asyncio.Queue[_Told]") -> None:
        while True:
            # Together, as each group on disk takes its time.
            group = [await told.get()]
            while not told.empty():
                group.append(told.get_nowait())
            for each in group:
                if each.own_id is not None:  # it ends within moments, and records itself
                    await self._until_ended(each.own_id)
            await self._ledger.on_disk()
            call.acknowledge(group[-1].sequence)

    def _is_own(self, usage: WitnessedUsage) -> bool:
        """True: this process records it. Otherwise the ledger has an event of it now, unless it is nobody's."""
        try:
            tag = UsageTag.decode(usage.usage_tag)
        except ValueError as error:
            log.error("usage of nobody", generation_id=usage.generation_id, error=str(error))
            return False
        if tag.ledger_id == self._ledger.id:
            return True
        log.info("usage by the engine's word", generation_id=usage.generation_id)
        self._ledger.record(event_of(usage, tag))
        return False


def event_of(usage: WitnessedUsage, tag: UsageTag) -> UsageEvent:
    """The row of a generation whose gateway is gone, billed as that would have: whole prompt, output up to its end."""
    counted, timings = usage.usage, usage.timings
    is_stopped = usage.num_kept_tokens is not None
    num_output = counted.output_tokens if usage.num_kept_tokens is None else usage.num_kept_tokens
    num_input = tag.num_input_tokens if usage.is_scheduled else 0
    return UsageEvent(
        generation_id=UUID(usage.generation_id),
        organization_id=tag.organization_id,
        team_id=tag.team_id,
        key_id=tag.key_id,
        model=tag.model,
        priority_class=tag.priority_class,
        input_tokens=num_input,
        output_tokens=num_output,
        billed_tokens=num_input + num_output,
        finish_reason="STOP" if is_stopped else usage.reason.value.upper(),
        source=UsageSource.ENGINE,
        finished_at=datetime.fromtimestamp(usage.finished_unix_ns / NS_PER_S, UTC),
        policy_revision=tag.policy_revision,
        request_id=tag.request_id,
        cached_input_tokens=min(counted.cached_prompt_tokens, num_input),
        reserved_tokens=tag.num_reserved_tokens,
        discarded_tokens=counted.output_tokens - num_output,
        recomputed_tokens=counted.recomputed_tokens,
        num_preemptions=counted.num_preemptions,
        queue_ns=timings.queue_ns,
        prefill_ns=timings.prefill_ns,
        decode_ns=timings.decode_ns,
        preempted_ns=timings.preempted_ns,
        labels=tag.labels,
    )
