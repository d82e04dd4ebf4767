"""What a client gets: whole outputs and streams, text, ids, log-probabilities, usage and ends."""

from uuid import UUID

import pytest

from evenflow.engine.v1 import engine_pb2
from evenflow.inference.v1 import generation_pb2 as pb
from evenflow.inference.v1 import model_pb2
from gateway.store.records import ApiKeySettings, TeamSettings
from tests.gateway.fake_engine import CONTEXT_TOKENS, END_TOKEN, MAX_REQUEST_TOKENS, MODEL, FakeCall, begun, stalled
from tests.gateway.world import Tenant, World


async def collect(stream) -> list[pb.StreamGenerateResponse]:
    return [message async for message in stream]


def text_of(messages: list[pb.StreamGenerateResponse]) -> str:
    return "".join(message.token_delta.text for message in messages)


async def test_a_unary_call_returns_the_whole_output_with_its_usage(shared_tenant: Tenant) -> None:
    response = await shared_tenant.generate()

    (output,) = response.outputs
    assert (response.model, output.text, output.finish_reason) == (MODEL, "hello", pb.FINISH_REASON_STOP)
    assert (response.usage.input_tokens, response.usage.output_tokens) == (2, 6)
    assert (response.usage.reserved_tokens, response.usage.billed_tokens) == (10, 8)
    assert not output.token_ids
    assert response.timings.queue.ToMilliseconds() == 1
    assert response.timings.first_token_time.ToNanoseconds() - response.timings.admit_time.ToNanoseconds() == 2_000_000


async def test_a_stream_begins_with_admission_counts_without_a_gap_and_ends_with_finish(
    shared_world: World, shared_tenant: Tenant
) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.emit(b"one ")
        await call.preempt()
        await call.resume()
        await call.emit(b"two")
        await call.finish()

    shared_world.engine.script = script
    messages = await collect(shared_tenant.stream())

    kinds = [message.WhichOneof("event") for message in messages]
    assert kinds == ["admission", "token_delta", "preempted", "resumed", "token_delta", "finish"]
    assert [message.sequence for message in messages] == [1, 2, 3, 4, 5, 6]
    assert (messages[0].admission.input_tokens, messages[0].admission.reserved_tokens) == (2, 10)
    assert (messages[2].preempted.reason, messages[2].preempted.mode) == ("kv_pressure", "recompute")
    assert [message.token_delta.output_tokens_so_far for message in messages if message.HasField("token_delta")] == [
        4,
        7,
    ]
    assert text_of(messages) == "one two"
    assert messages[-1].finish.usage.output_tokens == 7


@pytest.mark.parametrize("mode", ["pause", "swap", "recompute"])
@pytest.mark.parametrize("reason", ["kv_pressure", "fairness", "quota", "reader"])
async def test_client_is_told_how_and_why_its_request_gave_way(
    shared_world: World, shared_tenant: Tenant, mode: str, reason: str
) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.preempt(
            engine_pb2.PreemptionMode.Value(f"PREEMPTION_MODE_{mode.upper()}"),
            engine_pb2.PauseReason.Value(f"PAUSE_REASON_{reason.upper()}"),
        )
        await call.resume()
        await call.emit(b"hi")
        await call.finish()

    shared_world.engine.script = script

    messages = [message async for message in shared_tenant.stream()]

    told = [message.preempted for message in messages if message.HasField("preempted")]
    assert [(event.mode, event.reason) for event in told] == [(mode, reason)]


async def test_a_character_is_never_cut(shared_world: World, shared_tenant: Tenant) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        for byte in "né€𝄞".encode():
            await call.emit([byte])
        await call.finish()

    shared_world.engine.script = script
    messages = await collect(shared_tenant.stream())

    deltas = [message.token_delta.text for message in messages if message.HasField("token_delta")]
    assert "".join(deltas) == "né€𝄞"
    assert all("\N{REPLACEMENT CHARACTER}" not in delta and delta for delta in deltas)


async def test_a_stop_string_across_chunks_ends_the_output_and_what_lies_beyond_is_discarded(
    shared_world: World, shared_tenant: Tenant
) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.emit(b"keep EN")
        await call.emit(b"D this")
        await call.control("cancel")
        await call.emit(b" late")
        await call.finish(engine_pb2.FINISH_REASON_CANCELLED)

    shared_world.engine.script = script
    messages = await collect(shared_tenant.stream(stopping={"stop": ["END"], "max_output_tokens": 50}))

    assert text_of(messages) == "keep "
    finish = messages[-1].finish
    assert finish.finish_reason == pb.FINISH_REASON_STOP
    assert (finish.usage.output_tokens, finish.usage.discarded_tokens, finish.usage.billed_tokens) == (8, 10, 10)
    call = await shared_world.engine.call()
    assert call.controls[0].cancel.reason == engine_pb2.CANCEL_REASON_STOP_STRING


async def test_text_held_back_for_a_stop_string_that_never_comes_is_delivered(
    shared_world: World, shared_tenant: Tenant
) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.emit(b"the EN")
        await call.finish()

    shared_world.engine.script = script
    response = await shared_tenant.generate(stopping={"stop": ["END"]})

    assert response.outputs[0].text == "the EN"
    assert response.outputs[0].finish_reason == pb.FINISH_REASON_LENGTH


async def test_token_ids_and_logprobs_come_when_they_are_asked_for(shared_world: World, shared_tenant: Tenant) -> None:
    async def script(call: FakeCall) -> None:
        assert call.start.sampling.num_logprobs == 1
        await call.accept()
        entries = [
            engine_pb2.TokenLogprobs(logprob=-0.5, top_token_ids=[ord("b")], top_logprobs=[-0.25]),
            engine_pb2.TokenLogprobs(logprob=-1.5, top_token_ids=[ord("x")], top_logprobs=[-0.75]),
        ]
        await call.emit(b"ab", entries)
        await call.finish()

    shared_world.engine.script = script
    response = await shared_tenant.generate(output=pb.OutputOptions(logprobs=1, token_ids=True))

    (output,) = response.outputs
    assert list(output.token_ids) == [97, 98]
    assert [(entry.token, entry.logprob) for entry in output.logprobs] == [("a", -0.5), ("b", -1.5)]
    assert [(top.token_id, top.token) for top in output.logprobs[0].top] == [(98, "b")]


async def test_the_engine_gets_the_request_with_the_tenants_own_weights_class_and_salt(shared_world: World) -> None:
    tenant = await shared_world.tenant(team=TeamSettings(default_class="batch"))
    await tenant.generate(
        sampling=pb.SamplingOptions(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, seed=7, speculation=False),
        stopping={"stop_token_ids": [65], "ignore_eos": True},
    )

    start = (await shared_world.engine.call()).start
    team = shared_world.cache.current.teams[tenant.team_id]
    assert [(node.id, node.weight) for node in start.path] == [
        (str(tenant.organization_id), 1),
        (str(tenant.team_id), 1),
    ]
    assert (start.priority_class.name, start.priority_class.rank) == ("batch", 200)
    assert start.cache_salt == team.cache_salt
    assert start.policy_revision == shared_world.cache.current.revision
    assert list(start.prompt_token_ids) == list(b"hi")
    assert (start.max_output_tokens, start.protocol_version) == (8, 1)
    assert (start.sampling.temperature, start.sampling.top_k, start.sampling.seed) == (0.5, 3, 7)
    assert list(start.sampling.stop_token_ids) == [65]
    assert (start.sampling.ignore_eos, start.HasField("speculation"), start.speculation) == (True, True, False)
    assert not start.HasField("deadline_ns")
    assert not start.sampling.HasField("num_logprobs")


async def test_unset_options_take_the_documented_defaults_and_a_fresh_seed(
    shared_world: World, shared_tenant: Tenant
) -> None:
    await shared_tenant.generate(stopping={"max_output_tokens": None})
    await shared_tenant.generate(stopping={"max_output_tokens": None})

    first, second = (await shared_world.engine.call(0)).start, (await shared_world.engine.call(1)).start
    sampling = first.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (1.0, 0, 1.0, 0.0)
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.0, 0.0, 0.0)
    assert first.max_output_tokens == 1024
    assert first.sampling.seed != second.sampling.seed


async def test_the_default_output_is_what_the_pool_leaves(shared_world: World, shared_tenant: Tenant) -> None:
    await shared_tenant.generate(text="x" * (MAX_REQUEST_TOKENS - 100), stopping={"max_output_tokens": None})

    assert (await shared_world.engine.call()).start.max_output_tokens == 100


async def test_a_chat_is_rendered_by_the_models_template(shared_world: World, shared_tenant: Tenant) -> None:
    messages = [pb.ChatMessage(role="system", content="Be brief."), pb.ChatMessage(role="user", content="Hi")]
    await shared_tenant.generate(chat=pb.ChatPrompt(messages=messages))

    prompt = bytes((await shared_world.engine.call()).start.prompt_token_ids).decode()
    assert prompt == "system: Be brief.\nuser: Hi\nassistant: "
    counted = await shared_tenant.count_tokens(chat=pb.ChatPrompt(messages=messages, add_generation_prompt=False))
    assert counted.input_tokens == len("system: Be brief.\nuser: Hi\n")


async def test_token_ids_are_a_prompt_as_they_are(shared_world: World, shared_tenant: Tenant) -> None:
    await shared_tenant.generate(token_ids=pb.TokenPrompt(ids=[1, 2, END_TOKEN]))

    assert list((await shared_world.engine.call()).start.prompt_token_ids) == [1, 2, END_TOKEN]


async def test_the_longest_wait_is_the_shorter_of_the_requests_and_the_classes(
    shared_world: World, shared_tenant: Tenant
) -> None:
    options = pb.AdmissionOptions()
    options.max_queue_wait.FromMilliseconds(1500)
    await shared_tenant.generate(admission=options)

    assert (await shared_world.engine.call()).start.max_queue_wait_ns == 1_500_000_000


async def test_cancel_generation_ends_the_stream_with_what_there_is(shared_world: World, shared_tenant: Tenant) -> None:
    shared_world.engine.script = begun
    stream = shared_tenant.stream()
    admission = await stream.read()
    await stream.read()

    answer = await shared_tenant.cancel(admission.admission.generation_id, str(UUID(int=9)))
    finish = await stream.read()

    assert answer.cancelled_count == 1
    assert finish.finish.finish_reason == pb.FINISH_REASON_CANCELLED
    assert finish.finish.usage.output_tokens == 3
    again = await shared_tenant.cancel(admission.admission.generation_id)
    assert again.cancelled_count == 0


async def test_a_unary_call_that_is_cancelled_by_id_returns_its_output_so_far(
    shared_world: World, shared_tenant: Tenant
) -> None:
    shared_world.engine.script = begun
    call = shared_tenant.generate()
    started = await shared_world.engine.call()

    await shared_tenant.cancel(started.start.generation_id)
    response = await call

    assert response.outputs[0].finish_reason == pb.FINISH_REASON_CANCELLED


async def test_nobody_cancels_another_tenants_generation(shared_world: World, shared_tenant: Tenant) -> None:
    shared_world.engine.script = stalled
    other = await shared_world.tenant()
    stream = shared_tenant.stream()
    generation_id = (await stream.read()).admission.generation_id

    assert (await other.cancel(generation_id)).cancelled_count == 0
    assert (await shared_tenant.cancel(generation_id)).cancelled_count == 1


async def test_counting_tokens_runs_nothing(shared_world: World, shared_tenant: Tenant) -> None:
    assert (await shared_tenant.count_tokens(text="né€")).input_tokens == 6
    assert (await shared_tenant.count_tokens(token_ids=pb.TokenPrompt(ids=[1, 2, 3]))).input_tokens == 3
    assert not shared_world.engine.calls


async def test_a_models_facts_are_those_that_the_engine_told(shared_tenant: Tenant) -> None:
    (model,) = (
        await shared_tenant.models.ListModels(model_pb2.ListModelsRequest(), metadata=shared_tenant.metadata)
    ).models

    assert (model.name, model.context_tokens, model.max_request_tokens) == (MODEL, CONTEXT_TOKENS, MAX_REQUEST_TOKENS)
    assert model.has_chat_template
    got = await shared_tenant.models.GetModel(model_pb2.GetModelRequest(name=MODEL), metadata=shared_tenant.metadata)
    assert got.model == model


async def test_a_model_without_a_grant_is_not_listed(shared_world: World) -> None:
    tenant = await shared_world.tenant(key=ApiKeySettings(model_grants=("other",)))

    listed = await tenant.models.ListModels(model_pb2.ListModelsRequest(), metadata=tenant.metadata)

    assert not listed.models


@pytest.mark.parametrize("finish_reason", [engine_pb2.FINISH_REASON_STOP, engine_pb2.FINISH_REASON_LENGTH])
async def test_logprobs_of_a_stopped_chunk_stay_beside_their_tokens(
    shared_world: World, shared_tenant: Tenant, finish_reason: int
) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.emit(b"aXb", [engine_pb2.TokenLogprobs(logprob=-float(n)) for n in (1, 2, 3)])
        await call.finish(finish_reason)

    shared_world.engine.script = script
    response = await shared_tenant.generate(output=pb.OutputOptions(logprobs=0), stopping={"stop": ["X"]})

    (output,) = response.outputs
    assert (output.text, output.finish_reason) == ("a", pb.FINISH_REASON_STOP)
    assert [(entry.token, entry.logprob) for entry in output.logprobs] == [("a", -1.0), ("X", -2.0)]
    assert not output.token_ids
    assert response.usage.discarded_tokens == 1
