"""What a running engine says about its queue: places that change, lists, and reasons."""

import asyncio

import grpc
import pytest

from engine.core.queue_position import MAX_EXACT
from engine.server import queue_reports
from engine.server.queue_reports import Pace
from evenflow.engine.v1 import engine_pb2 as pb
from tests.engine.fake_runner import CONFIG
from tests.engine.wire import cancel, generate, start

TICK_S = 0.1
PAUSE_S = 0.01  # the engine has taken its commands by then, nearly always
NUM_ROWS = CONFIG.max_num_seqs


@pytest.fixture(autouse=True)
def _quick_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_reports, "REPORT_EVERY_S", TICK_S)
    monkeypatch.setattr("engine.loop_queries.ORDER_EVERY_NS", 0)
    monkeypatch.setattr("engine.loop_queries.MAX_PART_OF_TIME", 1.0)


@pytest.fixture
def engine(server, runner):
    """Gives what is awaited; a step goes on only where commands wait for its end, first so many of them."""

    async def answered(awaitable, num_commands: int = 1):
        commands = server._intake.engine.loop._commands
        waiting = asyncio.ensure_future(awaitable)
        while not waiting.done():
            is_used_up = not runner._permits._value
            if is_used_up and commands.qsize() >= num_commands:
                num_commands = 1
                runner.allow(1)
            await asyncio.wait((waiting,), timeout=PAUSE_S)
        return await waiting

    async def arrived(num_commands: int) -> None:
        while server._intake.engine.loop._commands.qsize() < num_commands:  # noqa: ASYNC110 - it announces nothing
            await asyncio.sleep(0.001)

    answered.arrived = arrived
    return answered


async def join(stub, engine, *generation_ids: str, **fields):
    """They wait, in this order."""
    answers = []
    for number, each in enumerate(generation_ids, 1):
        answers.append(generate(stub, start(each, **({"max_output_tokens": 2} | fields))))
        await engine.arrived(number)
    await engine(asyncio.gather(*(answer.until("accepted") for answer in answers)), len(answers))
    return answers


@pytest.fixture
async def crowd(stub, engine, runner):
    """Every row is taken, for some twenty steps more, and each of them waits for a permit."""
    runner.hold()
    first = generate(stub, start("row0", max_output_tokens=28))
    await first.until("accepted")
    rest = await join(stub, engine, *(f"row{n}" for n in range(1, NUM_ROWS)), max_output_tokens=28)
    yield [first, *rest]
    runner.release()


async def test_a_request_that_waits_hears_its_place_and_when_it_changes(stub, engine, runner, crowd):
    (first,) = await join(stub, engine, "first")
    (second,) = await join(stub, engine, "second", reports_queue=True)
    place = await engine(second.until("queued_at"))
    first.write(cancel())
    after = await engine(second.until("queued_at"))
    crowd[0].write(cancel())
    await runner.step_until(second.until("admitted"))

    assert (place.queued_at.position, after.queued_at.position) == (1, 0)
    assert not place.queued_at.position_is_lower_bound
    assert place.queued_at.HasField("estimated_wait_ns")
    runner.release()
    assert (await second.to_end()).kinds.count("queued_at") == 2
    assert "queued_at" not in (await first.to_end()).kinds


async def test_the_figures_tell_what_a_newcomer_may_wait(stub, engine, crowd):
    await join(stub, engine, "first")

    stats = await engine(stub.GetStats(pb.GetStatsRequest()))

    assert stats.waiting == 1
    assert stats.new_request_wait_ns > 0


async def test_a_request_that_need_not_wait_hears_nothing_of_a_queue(stub, runner):
    answer = await generate(stub, start("a", reports_queue=True)).to_end()
    await asyncio.sleep(3 * TICK_S)
    assert "queued_at" not in answer.kinds


async def test_beyond_a_hundred_the_place_is_a_lower_bound(stub, engine, runner, crowd):
    waiting = await join(stub, engine, *(f"w{n}" for n in range(MAX_EXACT + 1)))
    (last,) = await join(stub, engine, "last", reports_queue=True)
    far = (await engine(last.until("queued_at"))).queued_at
    for answer in waiting[:2]:
        answer.write(cancel())
    near = (await engine(last.until("queued_at"))).queued_at

    assert (far.position, far.position_is_lower_bound) == (MAX_EXACT, True)
    assert (near.position, near.position_is_lower_bound) == (MAX_EXACT - 1, False)
    for answer in (*waiting, last):
        answer.write(cancel())


async def test_the_requests_are_listed_a_page_at_a_time(stub, engine, runner, crowd):
    waiting = await join(stub, engine, "w0", "w1", "w2")
    requests, token = [], ""
    while True:
        call = stub.ListRequests(pb.ListRequestsRequest(page_size=4, page_token=token))
        page = await engine(call)
        assert len(page.requests) <= 4
        requests += page.requests
        token = page.next_page_token
        if not token:
            break

    names = [request.generation_id for request in requests]
    assert names == [f"row{n}" for n in range(NUM_ROWS)] + ["w0", "w1", "w2"]
    assert {request.state for request in requests[:NUM_ROWS]} == {"running"}
    last = requests[-1]
    assert (last.state, last.prompt_tokens, last.max_output_tokens, last.output_tokens) == ("waiting", 3, 2, 0)
    assert [node.id for node in last.path] == ["acme", "search"]
    assert last.priority_class == "default"
    assert last.waited_ns == last.age_ns > 0
    assert requests[0].waited_ns < requests[0].age_ns
    for answer in waiting:
        answer.write(cancel())


async def test_why_a_request_waits(stub, engine, runner, crowd):
    waiting = await join(stub, engine, "w0", "w1", "w2")
    told = [await engine(stub.ExplainRequest(pb.ExplainRequestRequest(generation_id=f"w{n}"))) for n in range(3)]
    running = await engine(stub.ExplainRequest(pb.ExplainRequestRequest(generation_id="row0")))

    assert [each.position for each in told] == [0, 1, 2]
    assert [each.blocked_by for each in told] == ["rows", "order", "order"]
    assert [info.generation_id for info in told[2].ahead] == ["w0", "w1"]
    assert (running.blocked_by, running.request.state, len(running.ahead)) == ("", "running", 0)
    assert running.scheduling_policy == "fair"
    assert len(running.standing) == 2
    assert running.attained_service == running.standing[-1]
    assert running.tenant_prefill_tokens == 3 * NUM_ROWS
    for answer in waiting:
        answer.write(cancel())


async def test_what_cannot_be_told(stub):
    for call, code in (
        (stub.ExplainRequest(pb.ExplainRequestRequest(generation_id="gone")), grpc.StatusCode.NOT_FOUND),
        (stub.ListRequests(pb.ListRequestsRequest(page_token="x")), grpc.StatusCode.INVALID_ARGUMENT),
        (stub.ListRequests(pb.ListRequestsRequest(page_size=-1)), grpc.StatusCode.INVALID_ARGUMENT),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() is code


def test_the_pace_is_that_of_the_last_minute_and_falls_while_nothing_is_taken_in():
    now = 0
    pace = Pace(lambda: now)
    assert pace.wait_ns(0) is None
    for _ in range(4):
        pace.note()
        now += 1_000_000_000
    assert pace.wait_ns(0) == 1_000_000_000
    assert pace.wait_ns(9) == 10_000_000_000
    now += 4_000_000_000
    assert pace.wait_ns(0) == 2_000_000_000
    now += 60_000_000_000
    assert pace.wait_ns(0) is None


@pytest.mark.parametrize(
    ("fields", "ended"),
    [
        ({"generation_ids": ["a", "gone"]}, ["a"]),
        ({"generation_ids": ["a", "b"], "path": ["acme", "search"]}, ["a"]),
        ({"path": ["acme", "search"]}, ["a"]),
        ({"path": ["acme", "none"]}, []),
        ({"sender_id": "k1"}, ["a"]),
        ({"sender_id": "k2", "path": ["acme", "search"]}, []),
        ({"sender_id": "k1", "generation_ids": ["b"]}, []),
    ],
)
async def test_requests_of_other_streams_can_be_ended(stub, runner, fields, ended):
    runner._step_s = 0.01
    answers = {
        "a": generate(stub, start("a", max_output_tokens=200, sender_id="k1")),
        "b": generate(stub, start("b", max_output_tokens=20, tenant=("acme", "other"), sender_id="k2")),
    }
    for answer in answers.values():
        await answer.until("accepted")
    request = pb.CancelRequestsRequest(reason=pb.CANCEL_REASON_ADMINISTRATOR, **fields)
    response = await stub.CancelRequests(request)
    runner._step_s = 0.0

    assert list(response.generation_ids) == ended
    for generation_id, answer in answers.items():
        await answer.to_end()
        is_ended = generation_id in ended
        assert answer.reason == ("CANCELLED" if is_ended else "LENGTH")
        assert answer.finished.cancel_reason == (pb.CANCEL_REASON_ADMINISTRATOR if is_ended else 0)


async def test_not_everything_can_be_ended_at_once(stub):
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.CancelRequests(pb.CancelRequestsRequest())
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
