"""A tenant whose grammars take for ever to compile: nobody else waits for them, and nothing is left of them."""

import asyncio
import threading

import grpc
import pytest

from engine.grammars import compiler
from engine.grammars.turns import MAX_WAITING
from evenflow.engine.v1 import engine_pb2 as pb
from tests.engine.small_engine import serving_model, small_model
from tests.engine.wire import Answer, generate, start, until_blocks_are_free

LONGEST_S = 30.0  # a test that waits for ever fails
BUSY = "RESOURCE_EXHAUSTED"


class Endless:
    """Grammars of one kind are compiled when it is let go, all others at once."""

    def __init__(self, compile_grammar) -> None:
        self._compile = compile_grammar
        self.has_begun, self.is_let_go = threading.Event(), threading.Event()

    def __call__(self, vocabulary, source):
        if source.text.startswith("slow"):
            self.has_begun.set()
            self.is_let_go.wait(LONGEST_S)
        return self._compile(vocabulary, source)


@pytest.fixture
def endless(monkeypatch):
    stand_in = Endless(compiler._compiled)
    monkeypatch.setattr(compiler, "_compiled", stand_in)
    yield stand_in
    stand_in.is_let_go.set()


def ask(stub, name: str, tenant: str, regex: str = "", **fields) -> Answer:
    sampling = {"seed": 5} | ({"grammar": pb.Grammar(regex=regex)} if regex else {})
    return generate(stub, start(name, tenant=("acme", tenant), sampling=sampling, max_output_tokens=8, **fields))


async def outcome(answer: Answer) -> str:
    """How it ended, or the code of its refusal."""
    try:
        return (await answer.to_end()).reason
    except grpc.aio.AioRpcError as error:
        return error.code().name


async def test_a_flood_of_slow_grammars_holds_up_nobody_elses_requests(tmp_path, endless):
    model = small_model(tmp_path / "m")
    async with asyncio.timeout(LONGEST_S), serving_model(model, tmp_path) as (server, stub):
        flood = [
            asyncio.create_task(outcome(ask(stub, f"slow {nth}", "flood", f"slow{nth}[a-c]*")))
            for nth in range(MAX_WAITING + 30)
        ]
        await asyncio.to_thread(endless.has_begun.wait, LONGEST_S)

        plain = [asyncio.create_task(outcome(ask(stub, f"plain {nth}", "chat"))) for nth in range(40)]
        held = [
            asyncio.create_task(outcome(ask(stub, f"held {nth}", "chat", f"[a-c]{{9}}x{nth}"))) for nth in range(20)
        ]
        assert set(await asyncio.gather(*plain)) <= {"LENGTH", "STOP"}
        assert set(await asyncio.gather(*held)) == {"LENGTH"}
        assert {each.result() for each in flood if each.done()} <= {BUSY}

        endless.is_let_go.set()
        ends = await asyncio.gather(*flood)
        assert ends.count(BUSY) >= 29  # beyond the places that there are
        assert set(ends) <= {BUSY, "LENGTH", "STOP"}
        grammars = server._intake.grammars
        assert not grammars._pending
        assert not grammars._turns._waiting
        assert not grammars._turns._begun
        await until_blocks_are_free(stub)
