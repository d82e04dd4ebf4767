"""Under random outputs, preemptions, cancels, disconnects, deadlines: tokens once and in order, one end, one event."""

import asyncio
import random
from dataclasses import dataclass

import grpc
import pytest

from evenflow.engine.v1 import engine_pb2
from gateway.servicer import relay
from gateway.store.enums import Dimension
from gateway.store.records import QuotaLimit
from tests.gateway.fake_engine import FakeCall
from tests.gateway.world import Tenant, World

NUM_REQUESTS = 80
CONCURRENCY = QuotaLimit(Dimension.CONCURRENCY, NUM_REQUESTS, None, None)
ALPHABET = "abcdefghijklmnopqrstuvwxyzäöü€𝄞"


@dataclass
class Plan:
    """What one request's engine does, and after how many messages its client leaves (None: it stays)."""

    text: str
    cuts: list[int]
    preempts_at: set[int]
    never_ends: bool
    leaves_after: int | None
    disconnects: bool

    @property
    def has_deadline(self) -> bool:
        """Nothing else ends it."""
        return self.never_ends and self.leaves_after is None

    @classmethod
    def random(cls, rng: random.Random) -> "Plan":
        text = "".join(rng.choice(ALPHABET) for _ in range(rng.randrange(1, 60)))
        size = len(text.encode())
        never_ends = rng.random() < 0.3
        leaves_after = rng.randrange(5) if rng.random() < 0.5 else None
        return cls(
            text=text,
            cuts=sorted({0, size, *(rng.randrange(size + 1) for _ in range(rng.randrange(8)))}),
            preempts_at={index for index in range(8) if rng.random() < 0.2},
            never_ends=never_ends,
            # One that never ends may say no more than that it has begun.
            leaves_after=leaves_after and min(leaves_after, 1) if never_ends else leaves_after,
            disconnects=rng.random() < 0.3,
        )


async def follow(plan: Plan, call: FakeCall) -> None:
    data = plan.text.encode()
    await call.accept()
    await call.admit()
    for index, (begin, end) in enumerate(zip(plan.cuts, plan.cuts[1:], strict=False)):
        if index in plan.preempts_at:
            await call.preempt()
            await call.resume()
        if any(control.HasField("cancel") for control in call.controls):
            break
        await call.emit(data[begin:end])
        await asyncio.sleep(0)
    if plan.never_ends:
        await call.until_cancelled()
    elif any(control.HasField("cancel") for control in call.controls):
        await call.finish(engine_pb2.FINISH_REASON_CANCELLED)
    else:
        await call.finish()


async def read(world: World, tenant: Tenant, plan: Plan, number: int) -> tuple[str, str]:
    """The text that the client got, and how its stream ended."""
    channel = world.channel() if plan.disconnects else tenant.channel
    caller = Tenant(**{**vars(tenant), "channel": channel})
    stream = caller.stream(
        text=str(number), timeout=2.0 if plan.has_deadline else None, stopping={"max_output_tokens": 500}
    )
    text, num_read, last_sequence = "", 0, 0
    try:
        while plan.leaves_after is None or num_read < plan.leaves_after:
            message = await stream.read()
            if message is grpc.aio.EOF:
                return text, "finish"
            assert message.sequence == last_sequence + 1
            last_sequence, num_read = message.sequence, num_read + 1
            text += message.token_delta.text
            if message.HasField("finish"):
                return text, "finish"
    except grpc.aio.AioRpcError as error:
        return text, error.code().name
    if plan.disconnects:
        await channel.close()
    stream.cancel()
    return text, "left"


@pytest.mark.parametrize("seed", range(3))
async def test_every_token_arrives_once_and_every_request_ends_once(
    world: World, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(relay, "CANCEL_PATIENCE_S", 60.0)  # every script answers, however busy the machine is
    rng = random.Random(seed)
    plans = [Plan.random(rng) for _ in range(NUM_REQUESTS)]

    async def script(call: FakeCall) -> None:
        await follow(plans[int(bytes(call.start.prompt_token_ids))], call)

    world.engine.script = script
    tenant = await world.tenant(limits=(CONCURRENCY,))
    ends = await asyncio.gather(*(read(world, tenant, plan, number) for number, plan in enumerate(plans)))
    rows = {str(row["generation_id"]): row for row in await world.usage_rows()}

    for plan, (text, end) in zip(plans, ends, strict=True):
        assert plan.text.startswith(text)
        if plan.leaves_after is None:
            assert end == ("DEADLINE_EXCEEDED" if plan.never_ends else "finish")
        if end == "finish":
            assert text == plan.text
    calls = {call.start.generation_id: call for call in world.engine.calls}
    assert len(calls) == len(world.engine.calls)
    assert rows.keys() <= calls.keys()
    for generation_id, row in rows.items():
        call = calls[generation_id]
        number = int(bytes(call.start.prompt_token_ids))
        text, end = ends[number]
        if plans[number].has_deadline and row["source"] == "GATEWAY":
            # The deadline has cut it where it was, and it is billed by what had come.
            assert end == "DEADLINE_EXCEEDED"
            assert len(text.encode()) <= row["output_tokens"] <= call.num_emitted
        else:
            assert (row["source"], row["output_tokens"]) == ("ENGINE", call.num_emitted)
    # A request without a row is one whose engine was never heard: its client left before, or its deadline passed.
    unheard = {int(bytes(call.start.prompt_token_ids)) for name, call in calls.items() if name not in rows}
    assert all(plans[number].leaves_after == 0 or plans[number].has_deadline for number in unheard)
    assert world.book.num_reservations == 0
    assert not world.live.num_live_requests
