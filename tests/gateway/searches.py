"""Beam searches of a scripted engine, and what clients hear of them."""

import asyncio
from collections import abc

from evenflow.engine.v1 import engine_pb2
from evenflow.inference.v1 import generation_pb2 as pb
from tests.gateway.fake_engine import END_TOKEN, FakeCall

WORDS = (b"hello", b"help", b"he", *(bytes([ord("a") + number]) for number in range(13)))
"""What is found, the best first."""
NUM_STEPS = 6


def score_of(rank: int) -> float:
    return -0.25 * (rank + 1)


def num_computed(call: FakeCall) -> int:
    """Tokens of all beams."""
    return call.start.beam_search.width * min(NUM_STEPS, call.start.max_output_tokens)


async def tell_found(call: FakeCall, *, number: int | None = None) -> None:
    """The search has ended: its outputs, of which the second one is cut at its length, and the end."""
    for rank in range(call.start.beam_search.num_returned if number is None else number):
        is_cut = rank == 1
        tokens = list(WORDS[rank]) if is_cut else [*WORDS[rank], END_TOKEN]
        told = None
        if call.start.sampling.HasField("num_logprobs"):
            entry = engine_pb2.TokenLogprobs(logprob=score_of(rank), top_token_ids=[120], top_logprobs=[-1.0])
            told = [entry] * len(tokens)
        reason = engine_pb2.FINISH_REASON_LENGTH if is_cut else engine_pb2.FINISH_REASON_STOP
        await call.find(rank, tokens, score_of(rank), reason, told)
    await call.finish(engine_pb2.FINISH_REASON_STOP, output_tokens=num_computed(call))


async def searched(call: FakeCall) -> None:
    """A whole search."""
    await call.accept()
    await call.admit()
    await tell_found(call)


async def searching(call: FakeCall) -> None:
    """Nothing is found before it is cancelled, with three tokens in each beam."""
    await call.accept()
    await call.admit()
    await call.control("cancel")
    await call.finish(engine_pb2.FINISH_REASON_CANCELLED, output_tokens=3 * call.start.beam_search.width)


class SearchGate:
    """A script that finds nothing until the gate is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def __call__(self, call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await self.opened.wait()
        await tell_found(call)


def outputs_of(messages: abc.Iterable[pb.StreamGenerateResponse]) -> list[pb.Output]:
    """What a stream's deltas say, as the outputs of a unary answer."""
    deltas = [message.token_delta for message in messages if message.HasField("token_delta")]
    return [
        pb.Output(
            index=delta.index,
            text=delta.text,
            token_ids=delta.token_ids,
            logprobs=delta.logprobs,
            finish_reason=delta.finish_reason,
            score=delta.score,
        )
        for delta in deltas
    ]
