"""A bug at a generation's end costs its caller the answer, and nobody a reservation, a ledger row or a place.

Whoever is refused when tokens were computed is told how many are billed.
"""

from collections import abc

import grpc
import pytest

from evenflow.engine.v1 import engine_pb2
from gateway.admission import Admission
from gateway.engine_client import EngineCall
from gateway.quota_slices import OutputSlices
from gateway.servicer import record, relay
from gateway.servicer.generation_trace import GenerationTrace
from gateway.store.enums import Dimension
from gateway.store.records import QuotaLimit
from gateway.tokenizer import OutputText
from gateway.witness import Witness
from tests.gateway.fake_engine import END_TOKEN, FakeCall
from tests.gateway.world import World, eventually, refused

DAY_MS = 86_400_000
LIMITS = (QuotaLimit(Dimension.CONCURRENCY, 4, None, None), QuotaLimit(Dimension.TOTAL_TOKENS, 10_000, DAY_MS, 10_000))


async def hello(call: FakeCall) -> None:
    await call.accept()
    await call.admit()
    await call.emit(b"hello")
    await call.emit([END_TOKEN])
    await call.finish()


def fails(*_: object, **__: object) -> None:
    raise RuntimeError("a bug")


@pytest.mark.parametrize(
    ("part", "name"),
    [(OutputText, "finish"), (relay, "outcome_of"), (OutputSlices, "end"), (EngineCall, "abandon")],
)
async def test_an_end_that_cannot_be_told_is_settled_and_billed(
    world: World, monkeypatch: pytest.MonkeyPatch, part: object, name: str
) -> None:
    world.engine.script = hello
    tenant = await world.tenant(limits=LIMITS)
    monkeypatch.setattr(part, name, fails)
    call = tenant.generate(stopping={"max_output_tokens": 500})
    if name in ("finish", "outcome_of"):
        refusal = await refused(call)
        assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
        assert dict(refusal.info.metadata) == {"input_tokens": "2", "output_tokens": "6"}
    else:
        assert (await call).outputs[0].text == "hello"

    (row,) = await world.usage_rows()
    assert (row["input_tokens"], row["output_tokens"]) == (2, 6)
    assert (world.live.num_live_requests, world.book.num_reservations) == (0, 0)


@pytest.mark.parametrize(
    ("part", "name"),
    [(Admission, "settle"), (GenerationTrace, "end"), (record, "_log_line"), (Witness, "note_kept")],
)
async def test_what_fails_at_the_end_keeps_nothing_else_from_being_recorded(
    world: World, monkeypatch: pytest.MonkeyPatch, part: object, name: str
) -> None:
    world.engine.script = hello
    tenant = await world.tenant(limits=LIMITS)
    monkeypatch.setattr(part, name, fails)
    answer = await tenant.generate(stopping={"max_output_tokens": 500, "stop": ["lo"]})
    (row,) = await world.usage_rows()

    assert answer.outputs[0].text == "hel"
    assert str(row["generation_id"]) == answer.generation_id
    await eventually(lambda: not world.live.num_live_requests)
    if name != "settle":
        assert world.book.num_reservations == 0


async def fail(call: FakeCall) -> None:
    await call.finish(engine_pb2.FINISH_REASON_ERROR, error="not a number")


async def get_lost(call: FakeCall) -> None:
    await call.refuse(grpc.StatusCode.UNAVAILABLE, "DRAINING")


async def cancel(call: FakeCall) -> None:
    await call.finish(engine_pb2.FINISH_REASON_CANCELLED, cancel_reason=engine_pb2.CANCEL_REASON_ADMINISTRATOR)


async def revoke(call: FakeCall) -> None:
    await call.finish(engine_pb2.FINISH_REASON_CANCELLED, cancel_reason=engine_pb2.CANCEL_REASON_KEY_REVOKED)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (fail, "INTERNAL"),
        (get_lost, "ENGINE_LOST"),
        (cancel, "GENERATION_CANCELLED"),
        (revoke, "KEY_REVOKED"),
    ],
)
async def test_whoever_is_refused_in_the_middle_is_told_what_is_billed(
    shared_world: World, end: abc.Callable[[FakeCall], abc.Awaitable[None]], reason: str
) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.emit(b"abc")
        await end(call)

    shared_world.engine.script = script
    tenant = await shared_world.tenant()
    refusal = await refused(tenant.generate())
    (row,) = await shared_world.usage_rows(tenant)

    assert refusal.info.reason == reason
    assert dict(refusal.info.metadata) == {"input_tokens": "2", "output_tokens": "3"}
    assert (row["input_tokens"], row["output_tokens"], row["billed_tokens"]) == (2, 3, 5)
