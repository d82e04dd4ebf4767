"""Between the quota and the engine: what has ended meanwhile does not begin, and what fails holds nothing."""

import asyncio
from collections import abc

import grpc
import pytest

from gateway.admission import Admission
from gateway.errors_requests import ModelNotFoundError
from gateway.server import LAST_WRITES_S, Gateway
from gateway.servicer import deadline, launch
from gateway.servicer.live import LiveGenerations
from gateway.servicer.record import Recorder
from gateway.store.enums import Dimension
from gateway.store.key_ends import revoke_key
from gateway.store.records import QuotaLimit
from tests.gateway.world import CHANGE, World, eventually, refused

CONCURRENCY = QuotaLimit(Dimension.CONCURRENCY, 4, None, None)


class Door:
    """Whoever asks for quota waits until it is opened."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened = asyncio.Event(), asyncio.Event()
        self._reserve = world.book.reserve
        monkeypatch.setattr(world.book, "reserve", self)

    async def __call__(self, *asked: object) -> object:
        verdict = await self._reserve(*asked)
        self.reached.set()
        await self.opened.wait()
        return verdict


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (launch, "engine_request"),
        (Recorder, "accountable"),
        (Recorder, "begin_span"),
        (launch, "trace_headers"),
        (LiveGenerations, "add"),
    ],
)
async def test_a_bug_before_the_start_holds_no_quota(
    shared_world: World, monkeypatch: pytest.MonkeyPatch, part: object, name: str
) -> None:
    tenant = await shared_world.tenant(limits=(CONCURRENCY,))

    def fails(*_: object) -> None:
        raise RuntimeError(name)

    monkeypatch.setattr(part, name, fails)
    refusal = await refused(tenant.generate())

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert (shared_world.book.num_reservations, shared_world.live.num_live_requests, shared_world.engine.calls) == (
        0,
        0,
        [],
    )


async def test_a_refusal_is_told_though_what_is_left_cannot_be(
    shared_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await shared_world.tenant(limits=(QuotaLimit(Dimension.REQUESTS, 1, 3_600_000, 1),))
    await tenant.generate()

    def gone(*_: object) -> None:
        raise ModelNotFoundError("bytes")

    monkeypatch.setattr(Admission, "limits_left", gone)
    refusal = await refused(tenant.generate())

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")


async def test_time_that_ran_out_at_the_quota_reaches_no_engine(
    shared_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await shared_world.tenant(limits=(CONCURRENCY,))
    # The engine has half a second of the caller's thirty.
    monkeypatch.setattr(deadline, "MAX_DEADLINE_MARGIN_S", 29.5)
    monkeypatch.setattr(deadline, "DEADLINE_MARGIN", 1.0)
    door = Door(shared_world, monkeypatch)
    calling = asyncio.create_task(refused(tenant.generate(timeout=30)))
    await door.reached.wait()
    await asyncio.sleep(0.6)
    door.opened.set()
    refusal = await calling

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED")
    assert (shared_world.book.num_reservations, shared_world.engine.calls) == (0, [])


async def test_a_key_that_is_revoked_while_its_request_waits_for_quota_starts_nothing(
    shared_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await shared_world.tenant(limits=(CONCURRENCY,))
    door = Door(shared_world, monkeypatch)
    calling = asyncio.create_task(refused(tenant.generate()))
    await door.reached.wait()
    await revoke_key(shared_world.database, CHANGE, tenant.path, reason="leaked", aborts_inflight=True)
    await shared_world.cache.refresh()
    door.opened.set()
    refusal = await calling

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.UNAUTHENTICATED, "KEY_REVOKED")
    assert (shared_world.book.num_reservations, shared_world.engine.calls) == (0, [])


async def test_a_drain_waits_for_those_past_the_door_and_starts_none_of_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await world.tenant(limits=(CONCURRENCY,))
    door, held = Door(world, monkeypatch), held_at_the_end(world.live, monkeypatch)
    calling = asyncio.create_task(refused(tenant.generate()))
    await door.reached.wait()
    draining = asyncio.create_task(world.live.drain())
    await asyncio.wait((draining,), timeout=LAST_WRITES_S + 0.5)
    was_over = draining.done() or bool(held)
    door.opened.set()
    refusal = await calling
    await draining

    assert not was_over
    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert (held, world.engine.calls) == ([0], [])


async def test_a_drain_that_cuts_off_who_is_still_at_the_door_waits_until_nothing_is_held(
    closed_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = closed_world
    world.options["drain_grace_s"] = 0.05
    monkeypatch.setattr("gateway.server.LAST_WRITES_S", 0.2)
    await world.open()
    await world.serving()
    tenant = await world.tenant(limits=(CONCURRENCY,))
    at_the_door, let_go = asyncio.Event(), asyncio.Event()
    reserve, held = world.book.reserve, held_at_the_end(world.live, monkeypatch)

    async def slow_to_undo(generation_id: str, *asked: object) -> object:
        await reserve(generation_id, *asked)
        at_the_door.set()
        try:
            await asyncio.Event().wait()
        finally:
            let_go.set()
            await asyncio.sleep(0.05)
            world.book.release(generation_id)

    monkeypatch.setattr(world.book, "reserve", slow_to_undo)
    calling = asyncio.ensure_future(tenant.generate())
    await at_the_door.wait()
    await world.live.drain()
    await eventually(calling.done)

    assert let_go.is_set()
    assert held == [0]


def held_at_the_end(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many reservations there are when the quota is closed; empty until then."""
    held: list[int] = []
    quota = gateway._quota
    close: abc.Callable[[], abc.Awaitable[None]] = quota.close

    async def counted() -> None:
        held.append(quota.num_reservations)
        await close()

    monkeypatch.setattr(quota, "close", counted)
    return held
