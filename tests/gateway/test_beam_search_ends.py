"""Beam searches over gRPC that are sent again, cut off, cancelled, or run out of time."""

import asyncio

import grpc
import pytest

from evenflow.engine.v1 import engine_pb2
from evenflow.inference.v1 import generation_pb2 as pb
from tests.gateway.calls import get, updates, watch
from tests.gateway.fake_engine import FakeCall
from tests.gateway.searches import SearchGate, outputs_of, searched, searching
from tests.gateway.test_request_ids import ID, forget_ended
from tests.gateway.world import Tenant, World, eventually, refused

Search = pb.BeamSearchOptions
STOP = pb.FINISH_REASON_STOP
THREE = Search(width=4, num_returned=3)
OPTIONS = pb.OutputOptions(logprobs=1, token_ids=True)


@pytest.fixture
def shared_searches(shared_world: World) -> World:
    shared_world.engine.script = searched
    return shared_world


async def test_a_request_id_stands_for_the_whole_search(shared_searches: World, own_tenant: Tenant) -> None:
    gate = shared_searches.engine.script = SearchGate()
    calls = [asyncio.ensure_future(own_tenant.generate(beam_search=THREE, request_id=ID)) for _ in range(3)]
    await shared_searches.engine.call()
    gate.opened.set()
    answers = await asyncio.gather(*calls)
    again = await own_tenant.generate(beam_search=THREE, request_id=ID)
    other = await refused(own_tenant.generate(beam_search=Search(width=4, num_returned=2), request_id=ID))

    assert [len(answer.outputs) for answer in (*answers, again)] == [3] * 4
    assert all(answer.outputs == again.outputs and answer.usage == again.usage for answer in answers)
    assert sorted(answer.replayed for answer in (*answers, again)) == [False, True, True, True]
    assert other.info.reason == "REQUEST_ID_REUSED"
    assert len(shared_searches.engine.calls) == len(await shared_searches.usage_rows(own_tenant)) == 1


async def test_a_cut_stream_of_a_search_goes_on_from_every_place(shared_searches: World, own_tenant: Tenant) -> None:
    gate = shared_searches.engine.script = SearchGate()
    detached = pb.AdmissionOptions(detach_on_disconnect=True)
    stream = own_tenant.stream(beam_search=THREE, output=OPTIONS, admission=detached, request_id=ID)
    first = await stream.read()
    stream.cancel()
    await eventually(lambda: not any(generation.journal.num_readers for generation in shared_searches.live._live))
    running = watch(own_tenant, first.sequence, request_id=ID)
    gate.opened.set()
    told = [first, *await updates(running)]
    await shared_searches.settled()

    assert [each.text for each in outputs_of(told)] == ["hello", "help", "he"]
    for place in range(1, len(told)):
        assert await updates(watch(own_tenant, place, request_id=ID)) == told[place:]
    assert list((await get(own_tenant, request_id=ID)).outputs) == outputs_of(told)
    assert len(shared_searches.engine.calls) == len(await shared_searches.usage_rows(own_tenant)) == 1


async def test_of_a_search_that_nobody_waits_for_the_newest_outputs_are_kept(
    closed_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed_world.options.update(reader_buffer_tokens=4, replay_buffer_tokens=7)
    await closed_world.open()
    await closed_world.serving()
    tenant = await closed_world.tenant()
    gate = closed_world.engine.script = SearchGate()
    stream = tenant.stream(beam_search=THREE, admission=pb.AdmissionOptions(detach_on_disconnect=True))
    generation_id = (await stream.read()).admission.generation_id
    stream.cancel()
    await eventually(lambda: not any(generation.journal.num_readers for generation in closed_world.live._live))
    gate.opened.set()
    await closed_world.settled()

    state = await get(tenant, generation_id=generation_id)
    gone = await refused(watch(tenant, 1, generation_id=generation_id))
    kept = await updates(watch(tenant, 2, generation_id=generation_id))

    assert (state.finish_reason, state.usage.output_tokens, len(state.outputs)) == (STOP, 24, 0)
    assert gone.info.reason == "REPLAY_EXPIRED"
    assert [each.text for each in outputs_of(kept)] == ["help", "he"]


async def test_a_minute_after_its_end_only_the_usage_is_left(
    shared_searches: World, own_tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = await own_tenant.generate(beam_search=THREE, request_id=ID)
    await forget_ended(shared_searches, monkeypatch)
    late = await own_tenant.generate(beam_search=THREE, request_id=ID)
    state = await get(own_tenant, request_id=ID)

    assert (late.replayed, late.usage, len(late.outputs)) == (True, answer.usage, 0)
    assert (state.usage, state.finish_reason, len(state.outputs)) == (answer.usage, STOP, 0)


async def test_a_search_that_is_cancelled_has_one_output_without_text(shared_world: World, own_tenant: Tenant) -> None:
    shared_world.engine.script = searching
    call = asyncio.ensure_future(own_tenant.generate(beam_search=THREE, request_id=ID))
    await shared_world.engine.call()
    await eventually(lambda: shared_world.live.num_live_requests == 1)
    assert (await own_tenant.cancel((await get(own_tenant, request_id=ID)).generation_id)).cancelled_count == 1
    answer = await call

    (output,) = answer.outputs
    assert (output.text, output.finish_reason) == ("", pb.FINISH_REASON_CANCELLED)
    assert not output.HasField("score")
    assert (answer.usage.output_tokens, answer.usage.billed_tokens) == (12, 14)
    (row,) = await shared_world.usage_rows(own_tenant)
    assert (row["output_tokens"], row["finish_reason"]) == (12, "CANCELLED")


async def test_a_search_ends_when_its_client_is_gone(shared_world: World, own_tenant: Tenant) -> None:
    shared_world.engine.script = searching
    stream = own_tenant.stream(beam_search=THREE)
    await stream.read()
    call = await shared_world.engine.call()
    stream.cancel()

    assert (await call.control("cancel")).cancel.reason == engine_pb2.CANCEL_REASON_CLIENT
    (row,) = await shared_world.usage_rows(own_tenant)
    assert (row["output_tokens"], row["reserved_tokens"]) == (12, 34)
    assert shared_world.book.num_reservations == 0


@pytest.mark.parametrize("is_partial", [True, False])
async def test_a_search_whose_time_runs_out_is_billed_for_what_it_computed(
    shared_world: World, own_tenant: Tenant, is_partial: bool
) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.finish(engine_pb2.FINISH_REASON_DEADLINE, output_tokens=8)

    shared_world.engine.script = script
    action = pb.DEADLINE_ACTION_PARTIAL if is_partial else pb.DEADLINE_ACTION_ERROR
    call = own_tenant.generate(timeout=60, beam_search=THREE, admission=pb.AdmissionOptions(on_deadline=action))

    if is_partial:
        (output,) = (await call).outputs
        assert (output.text, output.finish_reason) == ("", pb.FINISH_REASON_DEADLINE)
    else:
        refusal = await refused(call)
        assert (refusal.code, refusal.info.metadata["output_tokens"]) == (grpc.StatusCode.DEADLINE_EXCEEDED, "8")
    (row,) = await shared_world.usage_rows(own_tenant)
    assert row["billed_tokens"] == 10


async def test_of_a_search_that_is_lost_with_its_engine_the_prompt_is_billed(world: World, tenant: Tenant) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.refuse(grpc.StatusCode.INTERNAL, "LOST")

    world.engine.script = script
    refusal = await refused(tenant.generate(beam_search=THREE))
    (row,) = await world.usage_rows()
    assert (refusal.info.reason, row["billed_tokens"]) == ("ENGINE_LOST", 2)
