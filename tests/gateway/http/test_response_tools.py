"""Functions in responses, through OpenAI's own client: offered, forced, called, answered, streamed."""

import json

import httpx2
import openai
import pytest
from pydantic import BaseModel

from evenflow.engine.v1 import engine_pb2
from tests.gateway.fake_engine import END_TOKEN, MODEL, FakeCall
from tests.gateway.world import World

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "name": "get_weather", "description": "Of a city.", "parameters": CITY, "strict": False}
TIME = {"type": "function", "name": "now", "parameters": None, "strict": False}
CALLS = (
    '<tool_call>[{"name": "get_weather", "arguments": {"city": "Köln"}}, {"name": "now", "arguments": {}}]</tool_call>'
)


class GetWeather(BaseModel):
    city: str


def says(*pieces: str, reason=engine_pb2.FINISH_REASON_STOP, logprobs=None):
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        for piece in pieces:
            entries = logprobs and [engine_pb2.TokenLogprobs(logprob=logprobs)] * len(piece.encode())
            await call.emit(piece.encode(), entries)
        await call.emit([END_TOKEN], logprobs and [engine_pb2.TokenLogprobs(logprob=logprobs)])
        await call.finish(reason)

    return script


def prompt_of(world: World, index: int = 0) -> str:
    return bytes(world.engine.calls[index].start.prompt_token_ids).decode()


def shape(output) -> list[tuple[str, str]]:
    """Each item's kind, and what it says or calls."""
    return [(item.type, item.name if item.type == "function_call" else item.content[0].text) for item in output]


async def test_calls_are_items_of_the_output(shared_sdk: openai.AsyncOpenAI, shared_world: World) -> None:
    shared_world.engine.script = says("Let me see.\n", CALLS, " Done.")
    response = await shared_sdk.responses.create(model=MODEL, input="hi", tools=[WEATHER, TIME])

    message, weather, time, rest = response.output
    assert (message.type, message.content[0].text, message.status) == ("message", "Let me see.", "completed")
    assert (weather.type, weather.name, json.loads(weather.arguments)) == (
        "function_call",
        "get_weather",
        {"city": "Köln"},
    )
    assert (time.name, time.arguments, time.status) == ("now", "{}", "completed")
    assert rest.content[0].text == " Done."
    assert len({item.id for item in response.output}) == 4
    assert weather.call_id != time.call_id
    assert (response.status, response.output_text) == ("completed", "Let me see. Done.")
    assert (response.tool_choice, response.parallel_tool_calls) == ("auto", True)
    assert [(tool.name, tool.parameters, tool.strict) for tool in response.tools] == [
        ("get_weather", CITY, False),
        ("now", None, False),
    ]
    assert json.dumps(CITY) in prompt_of(shared_world)
    assert not shared_world.engine.calls[0].start.sampling.HasField("grammar")


async def test_a_call_alone_is_the_whole_output(shared_sdk: openai.AsyncOpenAI, shared_world: World) -> None:
    shared_world.engine.script = says(CALLS)
    response = await shared_sdk.responses.create(model=MODEL, input="hi", tools=[WEATHER, TIME])

    assert shape(response.output) == [("function_call", "get_weather"), ("function_call", "now")]
    assert response.output_text == ""


async def test_an_answer_without_a_call_is_a_message(shared_sdk: openai.AsyncOpenAI, shared_world: World) -> None:
    for said in ("It is <b>warm</b>.", ""):
        shared_world.engine.script = says(*filter(None, [said]))
        response = await shared_sdk.responses.create(model=MODEL, input="hi", tools=[WEATHER])
        assert shape(response.output) == [("message", said)]


async def test_a_call_that_was_cut_is_text_and_incomplete(shared_sdk: openai.AsyncOpenAI, shared_world: World) -> None:
    shared_world.engine.script = says(CALLS[:40], reason=engine_pb2.FINISH_REASON_LENGTH)
    response = await shared_sdk.responses.create(model=MODEL, input="hi", tools=[WEATHER])

    assert shape(response.output) == [("message", CALLS[:40])]
    assert (response.status, response.output[0].status) == ("incomplete", "incomplete")


async def test_a_stream_tells_the_same_items(shared_sdk: openai.AsyncOpenAI, shared_world: World) -> None:
    output = f"Wait. {CALLS} Done."
    for size in (1, 3, 7, 1000):
        shared_world.engine.script = says(*(output[index : index + size] for index in range(0, len(output), size)))
        stream = await shared_sdk.responses.create(model=MODEL, input="hi", tools=[WEATHER, TIME], stream=True)
        require_all_items([event async for event in stream])


def require_all_items(events: list) -> None:
    """A message, two calls and a message, each told step by step."""
    told = [(event.type.removeprefix("response."), getattr(event, "output_index", None)) for event in events]
    message = ["output_item.added", "content_part.added", "output_text.done", "content_part.done", "output_item.done"]
    arguments = ["function_call_arguments.delta", "function_call_arguments.done"]
    call = ["output_item.added", *arguments, "output_item.done"]
    assert [each for each in told if each[0] != "output_text.delta"] == [
        ("created", None),
        ("in_progress", None),
        *((name, 0) for name in message),
        *((name, 1) for name in call),
        *((name, 2) for name in call),
        *((name, 3) for name in message),
        ("completed", None),
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    texts = dict.fromkeys((0, 3), "")
    for event in events:
        if event.type == "response.output_text.delta":
            texts[event.output_index] += event.delta
    assert texts == {0: "Wait.", 3: " Done."}
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert events[-1].response.output == done
    assert shape(done) == [
        ("message", "Wait."),
        ("function_call", "get_weather"),
        ("function_call", "now"),
        ("message", " Done."),
    ]
    by_id = {item.id: item.arguments for item in done if item.type == "function_call"}
    for event in events:
        if event.type == "response.function_call_arguments.delta":
            assert event.delta == by_id[event.item_id]
        if event.type == "response.function_call_arguments.done":
            assert event.arguments == by_id[event.item_id]


async def test_the_clients_own_stream_puts_the_calls_together(
    shared_sdk: openai.AsyncOpenAI, shared_world: World
) -> None:
    shared_world.engine.script = says(
        'Wait. <tool_call>[{"name": "get_weather", "arguments": {"city": "Köln"}}]</tool_call>'
    )
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")["function"]
    async with shared_sdk.responses.stream(model=MODEL, input="hi", tools=[{"type": "function", **tool}]) as stream:
        final = await stream.get_final_response()

    message, call = final.output
    assert message.content[0].text == "Wait."
    assert json.loads(call.arguments) == {"city": "Köln"}


async def test_calls_and_what_came_of_them_are_sent_back(shared_sdk: openai.AsyncOpenAI, shared_world: World) -> None:
    shared_world.engine.script = says("Well: ", CALLS)
    first = await shared_sdk.responses.create(model=MODEL, input="hi", tools=[WEATHER, TIME])
    calls = [item for item in first.output if item.type == "function_call"]
    results = [
        {"type": "function_call_output", "call_id": calls[0].call_id, "output": "rain"},
        {
            "type": "function_call_output",
            "call_id": calls[1].call_id,
            "output": [{"type": "input_text", "text": "noon"}],
        },
    ]
    await shared_sdk.responses.create(
        model=MODEL, input=[{"role": "user", "content": "hi"}, *first.output, *results], tools=[WEATHER, TIME]
    )

    prompt = prompt_of(shared_world, 1)
    # One turn has said it and called twice, as the model wrote it.
    assert f"assistant: Well:\n{CALLS}\n" in prompt
    assert prompt.index(CALLS) < prompt.index("rain") < prompt.index("noon")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
async def test_a_call_is_forced_by_a_grammar(
    shared_sdk: openai.AsyncOpenAI, shared_world: World, choice: object
) -> None:
    response = await shared_sdk.responses.create(model=MODEL, input="hi", tools=[WEATHER, TIME], tool_choice=choice)

    lark = shared_world.engine.calls[0].start.sampling.grammar.lark
    assert '"get_weather"' in lark
    assert ('"now"' in lark) is (choice == "required")
    shown = response.tool_choice if isinstance(choice, str) else response.tool_choice.model_dump(exclude_unset=True)
    assert shown == choice


async def test_arguments_follow_their_schema_unless_the_client_says_otherwise(
    shared_sdk: openai.AsyncOpenAI, shared_world: World
) -> None:
    unsaid = {name: value for name, value in WEATHER.items() if name != "strict"}
    for tool, is_held in ((WEATHER, False), (unsaid, True), (WEATHER | {"strict": True}, True)):
        response = await shared_sdk.responses.create(model=MODEL, input="hi", tools=[tool])
        assert shared_world.engine.calls[-1].start.sampling.HasField("grammar") is is_held
        assert response.tools[0].strict is is_held


async def test_no_function_is_offered_where_none_is_to_be_called(
    shared_sdk: openai.AsyncOpenAI, shared_world: World
) -> None:
    shared_world.engine.script = says(CALLS)
    response = await shared_sdk.responses.create(model=MODEL, input="hi", tools=[WEATHER], tool_choice="none")

    assert shape(response.output) == [("message", CALLS)]
    assert prompt_of(shared_world) == "user: hi\nassistant: "


async def test_one_call_at_most_where_several_are_not_wanted(
    shared_sdk: openai.AsyncOpenAI, shared_world: World
) -> None:
    shared_world.engine.script = says(CALLS)
    response = await shared_sdk.responses.create(
        model=MODEL, input="hi", tools=[WEATHER, TIME], parallel_tool_calls=False
    )

    assert shape(response.output) == [("function_call", "get_weather")]
    assert response.parallel_tool_calls is False


@pytest.mark.parametrize("is_stream", [False, True])
async def test_log_probabilities_are_those_of_the_text(
    shared_http: httpx2.AsyncClient, shared_world: World, is_stream: bool
) -> None:
    shared_world.engine.script = says("Wait. ", CALLS, logprobs=-0.5)
    body = {"model": MODEL, "input": "hi", "tools": [WEATHER, TIME], "include": ["message.output_text.logprobs"]}
    answer = await shared_http.post("/v1/responses", json=body | {"stream": is_stream})
    output = json.loads(answer.text.split("data: ")[-1])["response"]["output"] if is_stream else answer.json()["output"]

    (part,) = output[0]["content"]
    assert "".join(entry["token"] for entry in part["logprobs"]).strip() == part["text"] == "Wait."
    assert [item["type"] for item in output] == ["message", "function_call", "function_call"]


async def test_both_paths_ask_the_engine_for_the_same(shared_sdk: openai.AsyncOpenAI, shared_world: World) -> None:
    function = {name: value for name, value in WEATHER.items() if name != "type"}
    chat_tool, choice = {"type": "function", "function": function}, {"type": "function", "name": "get_weather"}
    await shared_sdk.responses.create(
        model=MODEL, input="hi", tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False
    )
    await shared_sdk.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hi"}],
        tools=[chat_tool],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        parallel_tool_calls=False,
    )

    first, second = (call.start for call in shared_world.engine.calls)
    assert first.prompt_token_ids == second.prompt_token_ids
    assert first.sampling.grammar == second.sampling.grammar


ASKED = {"role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "now", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "noon"}


NONSENSE = [
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"tools": [WEATHER], "tool_choice": "never"}, "tool_choice", "invalid_value"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name", "invalid_value"),
    ({"tools": [WEATHER], "tool_choice": {"type": "web_search"}}, "tool_choice.type", "invalid_value"),
    ({"tools": [WEATHER, WEATHER]}, "tools", "invalid_value"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "invalid_value"),
    ({"tools": [WEATHER | {"name": "a b"}]}, "tools[0].name", "invalid_value"),
    ({"tools": [WEATHER | {"parameters": []}]}, "tools[0].parameters", "invalid_value"),
    ({"tools": [WEATHER | {"defer_loading": True}]}, "tools[0].defer_loading", "unsupported_parameter"),
    ({"tools": [WEATHER | {"paramaters": {}}]}, "tools[0].paramaters", "unknown_parameter"),
    ({"tools": [WEATHER] * 129}, "tools", "invalid_value"),
    (
        {"tools": [WEATHER], "tool_choice": "required", "text": {"format": {"type": "json_object"}}},
        "text.format",
        "invalid_value",
    ),
    ({"input": [ASKED, CALL | {"arguments": {}}]}, "input[1].arguments", "invalid_value"),
    ({"input": [ASKED, CALL | {"call_id": ""}]}, "input[1].call_id", "invalid_value"),
    ({"input": [ASKED, CALL | {"namespace": "x"}]}, "input[1].namespace", "unsupported_parameter"),
    ({"input": [ASKED, *[CALL] * 129]}, "input[129]", "invalid_value"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id", "invalid_value"),
    ({"input": [ASKED, RESULT], "instructions": "Be short."}, "input[1].call_id", "invalid_value"),
    ({"input": [ASKED, CALL, RESULT | {"call_id": "call_2"}]}, "input[2].call_id", "invalid_value"),
    ({"input": [ASKED, RESULT, CALL]}, "input[1].call_id", "invalid_value"),
    (
        {"input": [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image"}]}]},
        "input[0].output[0].type",
        "invalid_value",
    ),
    ({"max_tool_calls": 3}, "max_tool_calls", "unsupported_parameter"),
]


async def test_what_makes_no_sense_names_its_parameter(shared_http: httpx2.AsyncClient, shared_world: World) -> None:
    for changed, param, code in NONSENSE:
        response = await shared_http.post("/v1/responses", json={"model": MODEL, "input": "hi"} | changed)

        error = response.json()["error"]
        assert (response.status_code, error["param"], error["code"]) == (400, param, code), response.text
    assert not shared_world.engine.calls
