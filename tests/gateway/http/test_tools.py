"""Tools through OpenAI's own client: offered, forced, called in the model's form, answered."""

import json

import httpx2
import openai
import pytest

from evenflow.engine.v1 import engine_pb2
from tests.gateway.fake_engine import END_TOKEN, MODEL, FakeCall
from tests.gateway.world import Tenant, World

HI = [{"role": "user", "content": "hi"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Of a city.", "parameters": CITY}}
TIME = {"type": "function", "function": {"name": "now"}}
CALLS = (
    '<tool_call>[{"name": "get_weather", "arguments": {"city": "Köln"}}, {"name": "now", "arguments": {}}]</tool_call>'
)


def says(*pieces: str, reason=engine_pb2.FINISH_REASON_STOP):
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        for piece in pieces:
            await call.emit(piece.encode())
        await call.emit([END_TOKEN])
        await call.finish(reason)

    return script


def prompt_of(world: World, index: int = 0) -> str:
    return bytes(world.engine.calls[index].start.prompt_token_ids).decode()


async def test_the_model_is_told_of_the_tools_and_its_calls_are_told_to_the_client(
    shared_sdk: openai.AsyncOpenAI, shared_world: World
) -> None:
    shared_world.engine.script = says("Let me see.\n", CALLS)
    chat = await shared_sdk.chat.completions.create(model=MODEL, messages=HI, tools=[WEATHER, TIME])

    (choice,) = chat.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
    first, second = choice.message.tool_calls
    assert (first.type, first.function.name, json.loads(first.function.arguments)) == (
        "function",
        "get_weather",
        {"city": "Köln"},
    )
    assert (second.function.name, second.function.arguments) == ("now", "{}")
    assert first.id != second.id
    prompt = prompt_of(shared_world)
    assert prompt.startswith("system: ")
    assert json.dumps(CITY) in prompt
    assert "get_weather" in prompt
    assert not shared_world.engine.calls[0].start.sampling.HasField("grammar")


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
async def test_a_stream_tells_the_same_calls(shared_sdk: openai.AsyncOpenAI, shared_world: World, size: int) -> None:
    output = f"Wait. {CALLS}"
    shared_world.engine.script = says(*(output[index : index + size] for index in range(0, len(output), size)))
    stream = await shared_sdk.chat.completions.create(model=MODEL, messages=HI, tools=[WEATHER, TIME], stream=True)
    chunks = [chunk async for chunk in stream]

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Wait."
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert [(call.index, call.function.name) for call in calls] == [(0, "get_weather"), (1, "now")]
    assert json.loads(calls[0].function.arguments) == {"city": "Köln"}
    assert all(call.id.startswith("call_") for call in calls)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["tool_calls"]


async def test_the_clients_own_stream_puts_the_calls_together(
    shared_sdk: openai.AsyncOpenAI, shared_world: World
) -> None:
    shared_world.engine.script = says(CALLS)
    tool = openai.pydantic_function_tool(_weather_model(), name="get_weather")
    async with shared_sdk.chat.completions.stream(model=MODEL, messages=HI, tools=[tool]) as stream:
        message = (await stream.get_final_completion()).choices[0].message

    # `now` was not offered here, so that the whole list is text.
    assert message.tool_calls is None or message.tool_calls == []
    assert message.content == CALLS


def _weather_model():
    from pydantic import BaseModel

    class GetWeather(BaseModel):
        city: str

    return GetWeather


async def test_an_answer_without_a_call_is_an_answer(shared_sdk: openai.AsyncOpenAI, shared_world: World) -> None:
    shared_world.engine.script = says("It is <b>warm</b>.")
    chat = await shared_sdk.chat.completions.create(model=MODEL, messages=HI, tools=[WEATHER])

    message = chat.choices[0].message
    assert (message.content, message.tool_calls, chat.choices[0].finish_reason) == ("It is <b>warm</b>.", None, "stop")


async def test_a_call_that_was_cut_is_text_and_ends_by_its_length(
    shared_sdk: openai.AsyncOpenAI, shared_world: World
) -> None:
    shared_world.engine.script = says(CALLS[:40], reason=engine_pb2.FINISH_REASON_LENGTH)
    chat = await shared_sdk.chat.completions.create(model=MODEL, messages=HI, tools=[WEATHER])

    choice = chat.choices[0]
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (CALLS[:40], None, "length")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
async def test_a_call_is_forced_by_a_grammar(
    shared_sdk: openai.AsyncOpenAI, shared_world: World, choice: object
) -> None:
    await shared_sdk.chat.completions.create(model=MODEL, messages=HI, tools=[WEATHER, TIME], tool_choice=choice)

    lark = shared_world.engine.calls[0].start.sampling.grammar.lark
    assert '"<tool_call>"' in lark
    assert '"get_weather"' in lark
    assert ('"now"' in lark) is (choice == "required")


async def test_no_tool_is_offered_where_none_is_to_be_called(
    shared_sdk: openai.AsyncOpenAI, shared_world: World
) -> None:
    shared_world.engine.script = says(CALLS)
    chat = await shared_sdk.chat.completions.create(model=MODEL, messages=HI, tools=[WEATHER], tool_choice="none")

    assert (chat.choices[0].message.content, chat.choices[0].message.tool_calls) == (CALLS, None)
    assert prompt_of(shared_world) == "user: hi\nassistant: "


async def test_one_call_at_most_where_several_are_not_wanted(
    shared_sdk: openai.AsyncOpenAI, shared_world: World
) -> None:
    shared_world.engine.script = says(CALLS)
    chat = await shared_sdk.chat.completions.create(
        model=MODEL, messages=HI, tools=[WEATHER, TIME], parallel_tool_calls=False
    )

    assert [call.function.name for call in chat.choices[0].message.tool_calls] == ["get_weather"]


async def test_calls_and_their_results_are_part_of_a_chat(shared_sdk: openai.AsyncOpenAI, shared_world: World) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": '{"zone": "CET"}'}}
    messages = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
    ]
    chat = await shared_sdk.chat.completions.create(model=MODEL, messages=messages, tools=[TIME])

    assert chat.choices[0].message.content == "hello"
    prompt = prompt_of(shared_world)
    assert '<tool_call>[{"name": "now", "arguments": {"zone": "CET"}}]</tool_call>' in prompt
    assert "noon" in prompt
    assert prompt.index("<tool_call>[{") < prompt.index("noon")


async def test_an_answer_that_is_sent_back_is_taken(shared_sdk: openai.AsyncOpenAI, shared_world: World) -> None:
    shared_world.engine.script = says(CALLS)
    message = (
        (await shared_sdk.chat.completions.create(model=MODEL, messages=HI, tools=[WEATHER, TIME])).choices[0].message
    )
    results = [{"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in message.tool_calls]
    await shared_sdk.chat.completions.create(
        model=MODEL, messages=[*HI, message.model_dump(), *results], tools=[WEATHER, TIME]
    )

    assert prompt_of(shared_world, 1).count("ok") >= 2


async def test_the_same_request_has_the_same_ids(own_http: httpx2.AsyncClient, shared_world: World) -> None:
    shared_world.engine.script = says(CALLS)
    body = {"model": MODEL, "messages": HI, "tools": [WEATHER, TIME], "n": 2}
    headers = {"idempotency-key": "one"}
    first, second = [(await own_http.post("/v1/chat/completions", json=body, headers=headers)).json() for _ in range(2)]

    ids = [
        [call["id"] for choice in answer["choices"] for call in choice["message"]["tool_calls"]]
        for answer in (first, second)
    ]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 4


async def test_strict_tools_are_called_rightly_also_by_choice(
    shared_sdk: openai.AsyncOpenAI, shared_world: World
) -> None:
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    await shared_sdk.chat.completions.create(model=MODEL, messages=HI, tools=[strict])

    assert "TEXT" in shared_world.engine.calls[0].start.sampling.grammar.lark


async def test_an_answer_in_a_format_may_be_a_call(shared_sdk: openai.AsyncOpenAI, shared_world: World) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}}
    await shared_sdk.chat.completions.create(model=MODEL, messages=HI, tools=[WEATHER], response_format=wanted)

    assert "calls | answer" in shared_world.engine.calls[0].start.sampling.grammar.lark


async def test_tools_are_counted(shared_http: httpx2.AsyncClient, shared_world: World) -> None:
    plain = await shared_http.post("/tokenize", json={"model": MODEL, "messages": HI})
    told = await shared_http.post("/tokenize", json={"model": MODEL, "messages": HI, "tools": [WEATHER]})
    body = {"model": MODEL, "messages": HI, "tools": [WEATHER]}
    chat = await shared_http.post("/v1/chat/completions", json=body)

    assert told.json()["count"] == chat.json()["usage"]["prompt_tokens"] > plain.json()["count"]


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "never"}, "tool_choice"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice.function.name",
        ),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [WEATHER] * 129}, "tools"),
        (
            {"tools": [WEATHER], "tool_choice": "required", "response_format": {"type": "json_object"}},
            "response_format",
        ),
        ({"messages": [{"role": "user", "content": "x", "tool_call_id": "1"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "assistant", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages[0].tool_calls[0].type"),
    ],
)
async def test_what_makes_no_sense_names_its_parameter(
    shared_http: httpx2.AsyncClient, shared_world: World, changed: dict, param: str
) -> None:
    response = await shared_http.post("/v1/chat/completions", json={"model": MODEL, "messages": HI} | changed)

    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert not shared_world.engine.calls


STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}


HELD = [
    ({"tools": [TIME, WEATHER], "tool_choice": "required"}, ["chat.tools[1].parameters"]),
    (
        {"tools": [TIME, WEATHER], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
        ["chat.tools[1].parameters"],
    ),
    ({"tools": [TIME, STRICT]}, ["chat.tools[1].parameters"]),
    (
        {
            "tools": [WEATHER],
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}},
        },
        ["sampling.grammar.json_schema", "chat.tools[0].parameters"],
    ),
    ({"tools": [WEATHER]}, []),
    ({"tools": [STRICT], "tool_choice": "none"}, []),
]


async def test_schemas_that_an_output_is_held_to_reach_the_engine_by_name(
    shared_sdk: openai.AsyncOpenAI, shared_world: World
) -> None:
    for asked, names in HELD:
        await shared_sdk.chat.completions.create(model=MODEL, messages=HI, **asked)

        sampling = shared_world.engine.calls[-1].start.sampling
        assert [part.field for part in sampling.grammar.parts] == names
        assert all(json.loads(part.json_schema) == CITY for part in sampling.grammar.parts)
        assert sampling.HasField("grammar") is bool(names)
        assert sampling.grammar.field == ("chat.tools" if names else "")


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat/completions", {"messages": HI, "tools": [TIME, STRICT]}, "tools[1].function.parameters"),
        ("responses", {"input": "hi", "tools": [{"type": "function", **WEATHER["function"]}]}, "tools[0].parameters"),
    ],
)
async def test_a_tool_whose_schema_the_engine_cannot_hold_to_is_refused_by_its_name_and_costs_nothing(
    own_http: httpx2.AsyncClient,
    shared_world: World,
    is_stream: bool,
    path: str,
    body: dict,
    param: str,
    own_tenant: Tenant,
) -> None:
    async def script(call: FakeCall) -> None:
        await call.refuse_field(call.start.sampling.grammar.parts[0].field, "an object may have at most so many")

    shared_world.engine.script = script
    response = await own_http.post(f"/v1/{path}", json={"model": MODEL, "stream": is_stream, **body})

    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, "invalid_value")
    assert error["message"] == f"{param}: an object may have at most so many"
    assert await shared_world.usage_rows(own_tenant) == []
