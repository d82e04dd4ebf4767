"""Many requests over one stream: each as over one of its own, and what there is to say at one moment is one message."""

import asyncio

import grpc
import pytest

from engine.server.calls import Calls
from evenflow.engine.v1 import engine_pb2 as pb
from tests.engine.conftest import connected
from tests.engine.wire import cancel, expected_tokens, generate, start, until_blocks_are_free


class Many:
    """A stream, and what has come of each of its calls so far."""

    def __init__(self, stub) -> None:
        self._outbox: asyncio.Queue[pb.GenerateManyRequest | None] = asyncio.Queue()
        self._call = stub.GenerateMany(self._requests())
        self._responses = aiter(self._call)
        self.messages: list[pb.GenerateManyResponse] = []

    def write(self, *calls: pb.CallRequest) -> None:
        self._outbox.put_nowait(pb.GenerateManyRequest(calls=calls))

    def start(self, **requests: pb.GenerateRequest) -> None:
        """`c1=…` is call 1."""
        self.write(*(pb.CallRequest(call_id=int(name[1:]), request=request) for name, request in requests.items()))

    def half_close(self) -> None:
        self._outbox.put_nowait(None)

    def cut(self) -> None:
        self.half_close()
        self._call.cancel()

    async def read(self) -> bool:
        """One more message; false after the last one. Raises the stream's error."""
        message = await anext(self._responses, None)
        if message is None:
            return False
        self.messages.append(message)
        return True

    async def until(self, call_id: int, kind: str) -> None:
        while kind not in self.kinds(call_id):
            assert await self.read(), f"the stream ended after {self.kinds(call_id)}"

    async def refusal(self, call_id: int) -> tuple[str, str, str]:
        """Code, reason and the field that it is about."""
        while True:
            for told in self.told(call_id):
                if told.HasField("refusal"):
                    code = next(code.name for code in grpc.StatusCode if code.value[0] == told.refusal.code)
                    return code, told.refusal.reason, told.refusal.metadata["field"]
            assert await self.read(), "the stream ended"

    def told(self, call_id: int) -> list[pb.CallResponse]:
        return [told for message in self.messages for told in message.calls if told.call_id == call_id]

    def responses(self, call_id: int) -> list[pb.GenerateResponse]:
        return [response for told in self.told(call_id) for response in told.responses]

    def kinds(self, call_id: int) -> list[str]:
        return [response.WhichOneof("message") for response in self.responses(call_id)]

    def token_ids(self, call_id: int) -> list[int]:
        return [token_id for response in self.responses(call_id) for token_id in response.token_chunk.token_ids]

    async def _requests(self):
        while (message := await self._outbox.get()) is not None:
            yield message


@pytest.fixture
async def many(stub):
    stream = Many(stub)
    yield stream
    stream.cut()


async def test_each_call_is_as_over_a_stream_of_its_own(stub, many) -> None:
    many.start(c7=start("a", max_output_tokens=5), c9=start("b", max_output_tokens=3))
    for call_id in (7, 9):
        await many.until(call_id, "finished")
    alone = await generate(stub, start("c", max_output_tokens=5)).to_end()

    assert many.kinds(7)[:2] == ["accepted", "admitted"]
    assert (many.token_ids(7), many.token_ids(9)) == (alone.token_ids, expected_tokens(3))
    usages = [many.responses(call_id)[-1].finished.usage for call_id in (7, 9)]
    assert usages[0] == alone.finished.usage
    assert [usage.output_tokens for usage in usages] == [5, 3]


async def test_what_a_step_computes_for_several_is_one_message(many, runner) -> None:
    many.start(c1=start("a", max_output_tokens=40), c2=start("b", max_output_tokens=40))
    for call_id in (1, 2):
        await many.until(call_id, "finished")

    together = [message for message in many.messages if {told.call_id for told in message.calls} == {1, 2}]
    with_tokens = [
        message
        for message in together
        if all(any(response.HasField("token_chunk") for response in told.responses) for told in message.calls)
    ]
    assert with_tokens


async def test_a_request_that_is_refused_leaves_the_others_alone(many) -> None:
    many.start(c1=start("a"), c2=start("b", max_output_tokens=0), c3=start("a"))

    assert await many.refusal(2) == ("INVALID_ARGUMENT", "INVALID_FIELD", "max_output_tokens")
    assert (await many.refusal(3))[:2] == ("ALREADY_EXISTS", "DUPLICATE_GENERATION")
    await many.until(1, "finished")
    assert many.token_ids(1) == expected_tokens(4)


async def test_a_control_that_means_nothing_ends_its_own_call(many, runner) -> None:
    runner.hold()
    many.start(c1=start("a", max_output_tokens=100), c2=start("b", max_output_tokens=2))
    await many.until(1, "accepted")
    many.start(c1=pb.GenerateRequest(grant=pb.Grant(max_output_tokens=-1)))

    assert (await runner.step_until(many.refusal(1)))[:2] == ("INVALID_ARGUMENT", "INVALID_FIELD")
    await runner.step_until(many.until(2, "finished"))


async def test_a_call_is_cancelled_by_itself(many, runner) -> None:
    runner.hold()
    many.start(c1=start("a", max_output_tokens=100), c2=start("b", max_output_tokens=6))
    await many.until(1, "accepted")
    many.start(c1=cancel())
    await runner.step_until(many.until(1, "finished"))
    await runner.step_until(many.until(2, "finished"))

    assert many.responses(1)[-1].finished.reason == pb.FINISH_REASON_CANCELLED
    assert many.token_ids(2) == expected_tokens(6)


async def test_of_an_abandoned_call_nothing_is_said_and_its_blocks_are_free(stub, many, runner) -> None:
    runner.hold()
    many.start(c1=start("a", max_output_tokens=100))
    await many.until(1, "accepted")
    num_told = len(many.told(1))
    many.write(pb.CallRequest(call_id=1, abandoned=True), pb.CallRequest(call_id=1, request=cancel()))
    stats = await runner.step_until(until_blocks_are_free(stub))
    many.start(c2=start("b"))
    await runner.step_until(many.until(2, "finished"))

    assert stats.num_steps < 100
    assert "finished" not in many.kinds(1)
    assert len(many.told(1)) <= num_told + 1  # what was on its way


async def test_a_stream_that_breaks_frees_the_blocks_of_all(stub, runner, tmp_path) -> None:
    runner.hold()
    async with connected(tmp_path) as other:
        many = Many(type(stub)(other))
        many.start(c1=start("a", max_output_tokens=100), c2=start("b", max_output_tokens=100))
        await many.until(2, "accepted")
    stats = await runner.step_until(until_blocks_are_free(stub))
    many.cut()

    assert stats.num_steps < 100


async def test_after_the_last_word_of_the_gateway_what_runs_is_finished(many) -> None:
    many.start(c1=start("a", max_output_tokens=50))
    many.half_close()
    while await many.read():
        pass

    assert many.token_ids(1) == expected_tokens(50)
    assert many.kinds(1)[-1] == "finished"


async def test_bytes_that_mean_nothing_end_the_stream(channel, stub, runner) -> None:
    call = channel.stream_stream("/evenflow.engine.v1.EngineService/GenerateMany")(iter([b"\xff\xff"]))

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await anext(aiter(call))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_engine_that_drains_refuses_what_is_new_and_says_the_rest(server, many, runner) -> None:
    runner.hold()
    many.start(c1=start("a", max_output_tokens=3))
    await many.until(1, "accepted")
    draining = asyncio.create_task(server.drain(grace_s=30))
    await asyncio.sleep(0)
    many.start(c2=start("b"))

    assert (await many.refusal(2))[:2] == ("UNAVAILABLE", "DRAINING")
    await runner.step_until(many.until(1, "finished"))
    await draining
    await server.close()
    assert not await many.read()


def fails_at(monkeypatch, method: str, generation_id: str) -> None:
    """`Calls.method` has a bug that only this request finds."""
    real = getattr(Calls, method)

    def broken(calls, first, *rest):
        found = first.start if method == "enter" else first.request
        if found.generation_id == generation_id:
            raise RuntimeError("a bug")
        return real(calls, first, *rest)

    monkeypatch.setattr(Calls, method, broken)


@pytest.mark.parametrize("method", ["enter", "take_control", "response"])
async def test_a_bug_that_one_call_finds_ends_no_other(stub, many, runner, monkeypatch, method: str) -> None:
    runner.hold()
    fails_at(monkeypatch, method, "a")
    many.start(c1=start("a", max_output_tokens=100), c2=start("b", max_output_tokens=3))
    await many.until(2, "accepted")
    many.start(c1=cancel())

    assert (await runner.step_until(many.refusal(1)))[:2] == ("INTERNAL", "INTERNAL")
    await runner.step_until(many.until(2, "finished"))
    many.start(c3=start("c", max_output_tokens=2))
    await runner.step_until(many.until(3, "finished"))
    await runner.step_until(until_blocks_are_free(stub))
    assert "finished" not in many.kinds(1)
