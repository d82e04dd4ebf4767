"""A gateway that stops while an engine goes away stops: whenever it is cancelled, the witness ends."""

import asyncio
from collections import abc

import pytest

from gateway import witness
from gateway.errors import NoEngineError
from gateway.witness import Witness


class LostCall:
    """A stream of usage that breaks after a moment."""

    async def told(self) -> abc.AsyncIterator[object]:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        raise NoEngineError
        yield

    def abandon(self) -> None:
        pass


class LostEngine:
    address = "unix:/nowhere"

    def usage(self, _ledger_id: str) -> LostCall:
        return LostCall()


class NoLedger:
    id = "ledger"

    async def adopted(self) -> None:
        pass


@pytest.mark.parametrize("num_turns", range(25))
async def test_a_cancellation_at_any_turn_of_the_loop_ends_it(num_turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness, "RETRY_S", 0.01)
    task = asyncio.create_task(Witness([LostEngine()], NoLedger(), lambda _: asyncio.sleep(0)).run())
    for _ in range(num_turns):
        await asyncio.sleep(0)
    task.cancel()

    done, _ = await asyncio.wait((task,), timeout=5)
    assert done
