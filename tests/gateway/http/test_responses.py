"""The text part of the Responses path, whole and as events."""

import httpx2
import openai
import pytest

from evenflow.engine.v1 import engine_pb2
from tests.gateway.fake_engine import MODEL, FakeCall
from tests.gateway.world import Tenant, World


async def test_an_input_is_answered(own_sdk: openai.AsyncOpenAI, shared_world: World, own_tenant: Tenant) -> None:
    response = await own_sdk.responses.create(model=MODEL, input="hi", instructions="be brief", max_output_tokens=8)

    assert (response.status, response.output_text, response.store) == ("completed", "hello", False)
    assert (response.usage.output_tokens, response.usage.input_tokens_details.cached_tokens) == (6, 0)
    (row,) = await shared_world.usage_rows(own_tenant)
    assert response.id == f"resp_{row['generation_id']}"
    prompt = bytes((await shared_world.engine.call()).start.prompt_token_ids).decode()
    assert prompt == "system: be brief\nuser: hi\nassistant: "


async def test_an_answer_can_be_sent_back_as_a_turn(shared_sdk: openai.AsyncOpenAI, shared_world: World) -> None:
    first = await shared_sdk.responses.create(model=MODEL, input="hi")
    turns = [{"role": "user", "content": "hi"}, *first.output, {"role": "user", "content": "more"}]
    await shared_sdk.responses.create(model=MODEL, input=turns)

    prompt = bytes(shared_world.engine.calls[1].start.prompt_token_ids).decode()
    assert prompt == "user: hi\nassistant: hello\nuser: more\nassistant: "


async def test_a_stream_tells_each_step_in_order(shared_sdk: openai.AsyncOpenAI) -> None:
    events = [event async for event in await shared_sdk.responses.create(model=MODEL, input="hi", stream=True)]

    kinds = [event.type for event in events if event.type != "response.output_text.delta"]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "hello"
    assert events[-1].response.output_text == "hello"
    assert events[-1].response.usage.output_tokens == 6


async def test_the_sdks_own_accumulator_follows_the_stream(shared_sdk: openai.AsyncOpenAI) -> None:
    async with shared_sdk.responses.stream(model=MODEL, input="hi") as stream:
        final = await stream.get_final_response()

    assert final.output_text == "hello"


async def test_an_output_that_is_cut_is_incomplete(shared_sdk: openai.AsyncOpenAI, shared_world: World) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.emit(b"abc")
        await call.finish()

    shared_world.engine.script = script
    response = await shared_sdk.responses.create(model=MODEL, input="hi", max_output_tokens=3)
    events = [event async for event in await shared_sdk.responses.create(model=MODEL, input="hi", stream=True)]

    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert events[-1].type == "response.incomplete"


async def test_what_fails_after_the_first_byte_is_an_error_event(
    shared_sdk: openai.AsyncOpenAI, shared_world: World
) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.emit(b"abc")
        await call.finish(engine_pb2.FINISH_REASON_ERROR, error="a bug")

    shared_world.engine.script = script
    events = [event async for event in await shared_sdk.responses.create(model=MODEL, input="hi", stream=True)]

    assert (events[-1].type, events[-1].code, events[-1].sequence_number) == ("error", "internal", len(events) - 1)


async def test_log_probabilities_are_included_where_they_are_asked_for(
    shared_sdk: openai.AsyncOpenAI, shared_world: World
) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.emit(b"a", [engine_pb2.TokenLogprobs(logprob=-0.5, top_token_ids=[97], top_logprobs=[-0.5])])
        await call.finish()

    shared_world.engine.script = script
    response = await shared_sdk.responses.create(
        model=MODEL, input="hi", top_logprobs=1, include=["message.output_text.logprobs"]
    )

    (entry,) = response.output[0].content[0].logprobs
    assert (entry.token, entry.top_logprobs[0].token) == ("a", "a")


@pytest.mark.parametrize(
    ("changed", "param", "code"),
    [
        ({"input": ""}, "input", "invalid_value"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "invalid_value"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "invalid_value"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
        ({"store": True}, "store", "unsupported_parameter"),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "unsupported_parameter"),
        ({"truncation": "auto"}, "truncation", "unsupported_parameter"),
        ({"top_logprobs": 1}, "top_logprobs", "invalid_value"),
        ({"max_output_tokens": 100_000}, "max_output_tokens", "context_length_exceeded"),
        ({"max_tokens": 1}, "max_tokens", "unknown_parameter"),
    ],
)
async def test_a_bad_parameter_is_named(
    shared_http: httpx2.AsyncClient, changed: dict[str, object], param: str, code: str
) -> None:
    response = await shared_http.post("/v1/responses", json={"model": MODEL, "input": "hi"} | changed)

    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, code)
