"""Usage stays in the engine until a ledger has it, and comes to one caller at a time."""

import asyncio

import grpc
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.server import usage_outbox
from engine.server.usage_outbox import UsageCounts, UsageOutbox
from evenflow.engine.v1 import engine_pb2 as pb
from tests.engine.fake_runner import PACE_S
from tests.engine.wire import cancel, generate, start, until_blocks_are_free


async def until(holds) -> None:
    while not holds():  # noqa: ASYNC110 - nobody announces it
        await asyncio.sleep(PACE_S)


class Listener:
    """A StreamUsage call, and what it has been told."""

    def __init__(self, stub, ledger_id: str) -> None:
        self.call = stub.StreamUsage()
        self._ledger_id = ledger_id
        self._is_open = False

    async def read(self) -> pb.StreamUsageResponse:
        if not self._is_open:
            self._is_open = True
            await self.call.write(pb.StreamUsageRequest(ledger_id=self._ledger_id))
        return await self.call.read()

    async def acknowledge(self, sequence: int) -> None:
        await self.call.write(pb.StreamUsageRequest(after_sequence=sequence))

    async def close(self) -> None:
        self.call.cancel()
        assert await self.call.code() is grpc.StatusCode.CANCELLED


async def run(stub, generation_id: str, ledger_id: str = "a", **fields):
    request = start(generation_id, ledger_id=ledger_id, usage_tag=f"tag of {generation_id}".encode(), **fields)
    return await generate(stub, request).to_end()


async def test_the_witness_says_what_the_terminal_message_said(stub) -> None:
    answer = await run(stub, "g1", tenant=("acme", "search"))
    listener = Listener(stub, "a")
    told = await listener.read()

    assert (told.sequence, told.generation_id, told.usage_tag) == (1, "g1", b"tag of g1")
    assert [node.id for node in told.path] == ["acme", "search"]
    assert (told.usage, told.timings, told.reason) == (
        answer.finished.usage,
        answer.finished.timings,
        answer.finished.reason,
    )
    assert told.scheduled
    assert told.finished_unix_ns >= told.timings.arrived_unix_ns
    assert not told.HasField("kept_output_tokens")
    await listener.close()


async def test_a_request_without_a_ledger_has_no_witness(stub, server) -> None:
    await run(stub, "g1", ledger_id="")

    assert len(server._intake.usage) == 0


async def test_what_was_cut_off_is_witnessed_as_far_as_it_came(stub, server, runner) -> None:
    runner.hold()
    answer = generate(stub, start("g1", ledger_id="a", max_output_tokens=50))
    await runner.step_until(answer.until("token_chunk"))
    answer.cancel_rpc()
    await runner.step_until(until(lambda: len(server._intake.usage)))
    runner.release()
    listener = Listener(stub, "a")
    told = await listener.read()

    assert told.reason == pb.FINISH_REASON_CANCELLED
    assert 1 <= told.usage.output_tokens < 50
    await listener.close()
    await until_blocks_are_free(stub)


async def test_a_request_that_never_began_is_witnessed_as_such(stub, server, runner) -> None:
    runner.hold()
    answer = generate(stub, start("g1", ledger_id="a"))
    await answer.until("accepted")
    answer.write(cancel())
    late = await runner.step_until(answer.to_end())
    runner.release()
    listener = Listener(stub, "a")
    told = await listener.read()

    assert told.scheduled == ("admitted" in late.kinds)
    assert told.usage == late.finished.usage
    await listener.close()


async def test_output_beyond_a_stop_string_is_not_the_requests(stub, server, runner) -> None:
    runner.hold()
    answer = generate(stub, start("g1", ledger_id="a", max_output_tokens=50))
    await runner.step_until(answer.until("token_chunk"))
    stop = pb.Cancel(reason=pb.CANCEL_REASON_STOP_STRING, output_tokens=1)
    answer.write(pb.GenerateRequest(cancel=stop))
    await runner.step_until(answer.to_end())
    runner.release()
    listener = Listener(stub, "a")
    told = await listener.read()

    assert told.kept_output_tokens == 1
    assert told.usage.output_tokens == answer.finished.usage.output_tokens
    await listener.close()


async def test_where_the_output_ended_can_be_told_after_the_end(stub) -> None:
    await run(stub, "g1")
    first = Listener(stub, "a")
    assert not (await first.read()).HasField("kept_output_tokens")
    for generation_id, num_tokens in (("g1", 2), ("unknown", 1)):
        kept = pb.KeptOutput(generation_id=generation_id, output_tokens=num_tokens)
        await first.call.write(pb.StreamUsageRequest(kept_output=kept))
    await first.acknowledge(0)
    await run(stub, "g2")
    assert (await first.read()).generation_id == "g2"
    await first.close()
    second = Listener(stub, "a")

    assert (await second.read()).kept_output_tokens == 2
    await second.close()


async def test_what_was_not_acknowledged_is_told_again(stub, server) -> None:
    for index in range(3):
        await run(stub, f"g{index}")
    first = Listener(stub, "a")
    told = [await first.read() for _ in range(3)]
    await first.acknowledge(2)
    await until(lambda: len(server._intake.usage) == 1)
    await first.close()
    second = Listener(stub, "a")
    again = await second.read()

    assert [usage.generation_id for usage in told] == ["g0", "g1", "g2"]
    assert (again.generation_id, again.sequence) == ("g2", 1)
    await second.acknowledge(1)
    await until(lambda: len(server._intake.usage) == 0)
    await second.close()


async def test_a_ledger_hears_of_new_ends_while_it_listens(stub) -> None:
    listener = Listener(stub, "a")
    reading = asyncio.create_task(listener.read())
    await run(stub, "g1")

    assert (await reading).generation_id == "g1"
    await listener.close()


async def test_anothers_usage_is_told_only_when_it_has_been_gone_for_some_time(stub, server) -> None:
    server._intake.usage._orphan_after_s = 0.2
    owner, other = Listener(stub, "a"), Listener(stub, "b")
    reading, of_other = asyncio.create_task(owner.read()), asyncio.create_task(other.read())
    await run(stub, "g1")
    assert (await reading).generation_id == "g1"
    await asyncio.wait((of_other,), timeout=0.4)
    heard_of_the_living = of_other.done()
    await owner.close()

    assert not heard_of_the_living
    assert (await of_other).generation_id == "g1"
    await other.close()


async def test_a_ledger_that_nobody_ever_called_for_is_given_up_too(stub, server) -> None:
    server._intake.usage._orphan_after_s = 0.05
    await run(stub, "g1", ledger_id="gone")
    listener = Listener(stub, "b")

    assert (await listener.read()).generation_id == "g1"
    await listener.close()


async def test_a_caller_that_names_no_ledger_is_refused(stub) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await Listener(stub, "").read()

    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_call_ends_with_the_engine(stub, server) -> None:
    listener = Listener(stub, "a")
    reading = asyncio.create_task(listener.read())
    await until(lambda: server._intake.usage._num_calls)
    await server.drain(grace_s=1)
    server._intake.usage.close()

    assert await reading is grpc.aio.EOF


async def test_tags_and_ids_that_are_too_long_are_refused(stub) -> None:
    for fields in ({"ledger_id": "x" * 200}, {"usage_tag": bytes(20_000)}):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await generate(stub, start("g1", **fields)).to_end()
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def parsed(usage: bytes) -> pb.StreamUsageResponse:
    return pb.StreamUsageResponse.FromString(usage)


LEDGERS = st.sampled_from(["a", "b", "c"])


class OutboxMachine(RuleBasedStateMachine):
    """Any calls in any order; the model knows what each call was told, and when each ledger lost its last call."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.outbox = UsageOutbox(capacity=1000, orphan_after_s=5.0, clock=lambda: self.now_s)
        self.owners: dict[str, str] = {}
        self.settled: set[str] = set()
        self.calls: list[tuple[str, usage_outbox.UsageCall, list[str]]] = []
        self.free_since: dict[str, float] = {}

    @rule(ledger_id=LEDGERS)
    def add(self, ledger_id: str) -> None:
        name = f"g{len(self.owners)}"
        self.owners[name] = ledger_id
        self.outbox.add(ledger_id, pb.StreamUsageResponse(generation_id=name))

    @rule(ledger_id=LEDGERS)
    def open(self, ledger_id: str) -> None:
        self.calls.append((ledger_id, self.outbox.open(ledger_id), []))

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        ledger_id, call, told = data.draw(st.sampled_from(self.calls))
        elsewhere = {name for _, _, others in self.calls for name in others}
        for number, usage in self.outbox.claim(ledger_id):
            name = parsed(call._tell(number, usage)).generation_id
            assert name not in elsewhere | self.settled
            owner = self.owners[name]
            assert owner == ledger_id or owner not in {ledger for ledger, _, _ in self.calls}
            told.append(name)
        free = set(self.owners) - self.settled - {name for _, _, others in self.calls for name in others}
        assert not {name for name in free if self.owners[name] == ledger_id}

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        _, call, told = data.draw(st.sampled_from(self.calls))
        num_settled = data.draw(st.integers(0, len(told)))
        first = call._told[0][0] if call._told else 1
        call.acknowledge(first + num_settled - 1)
        self.settled |= set(told[:num_settled])
        del told[:num_settled]

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.calls) - 1))
        _, call, _ = self.calls.pop(index)
        call.close()

    @rule(length_s=st.floats(0.1, 10))
    def let_time_pass(self, length_s: float) -> None:
        self.now_s += length_s

    @invariant()
    def nothing_is_lost(self) -> None:
        assert len(self.outbox) == len(self.owners) - len(self.settled)

    def teardown(self) -> None:
        """In the end one caller gets all that is left."""
        for _, call, _ in self.calls:
            call.close()
        self.now_s += 6.0
        told = [parsed(usage).generation_id for _, usage in self.outbox.claim("heir")]
        assert sorted(told) == sorted(set(self.owners) - self.settled)


OutboxMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
test_each_usage_is_with_one_caller_and_none_is_lost = OutboxMachine.TestCase


def test_the_oldest_goes_when_there_is_no_room() -> None:
    outbox = UsageOutbox(capacity=3)
    for index in range(5):
        outbox.add("a", pb.StreamUsageResponse(generation_id=f"g{index}"))

    assert [parsed(usage).generation_id for _, usage in outbox.claim("a")] == ["g2", "g3", "g4"]
    assert outbox.counts == UsageCounts(num_waiting=3, num_dropped=2)


def test_an_outbox_that_nobody_reads_stays_small() -> None:
    outbox = UsageOutbox(capacity=3)
    for index in range(1000):
        outbox.add(f"ledger {index % 2}", pb.StreamUsageResponse())

    assert sum(map(len, outbox._free.values())) == 3


async def test_what_was_dropped_is_in_the_engines_figures(server, stub) -> None:
    server._intake.usage = UsageOutbox(capacity=2)
    for index in range(5):
        await generate(stub, start(f"g{index}", ledger_id="a")).to_end()

    stats = await stub.GetStats(pb.GetStatsRequest())

    assert (stats.unacknowledged_usage, stats.dropped_usage) == (2, 3)
