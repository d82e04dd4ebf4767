"""Formats and tools with a real model: OpenAI's own client, a gateway, and an engine that is held to what was asked."""

import json
from collections import abc
from pathlib import Path

import openai
import pytest
import pytest_asyncio

from engine.core.config import SchedulerConfig
from engine.model.default_model import find_default_model
from engine.model.loader import load_model
from engine.runner.model_runner import ModelRunner
from engine.server.backend import Backend
from engine.server.engine_server import EngineServer
from engine.server.serve import load_policies
from engine.settings import read_settings
from tests.gateway.http.clients import Clients
from tests.gateway.world import World

CONFIG = SchedulerConfig(
    max_num_seqs=4, max_num_batched_tokens=256, block_size=16, num_device_blocks=256, max_model_len=2048
)
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather in a city.", "parameters": CITY},
}
NAMED_CITY = {
    "$id": "https://example.com/city.json",
    "$defs": {"days": {"$anchor": "days", **CITY["properties"]["days"]}},
    **CITY,
    "properties": {"city": CITY["properties"]["city"], "days": {"$ref": "city.json#days"}},
}
NAMED_WEATHER = {"type": "function", "function": {"name": "get_forecast", "parameters": NAMED_CITY}}
ASKED = [{"role": "user", "content": "What is the weather in Paris for the next 3 days?"}]


def is_held_to_schema(text: str) -> bool:
    """Whether `text` is as CITY says; which city and how many days is the model's word, and the machine's."""
    document = json.loads(text)
    cities, days = CITY["properties"]["city"]["enum"], document["days"]
    return document.keys() == {"city", "days"} and document["city"] in cities and type(days) is int and 1 <= days <= 9


@pytest_asyncio.fixture
async def model_sdk(closed_world: World, tmp_path: Path) -> abc.AsyncIterator[tuple[openai.AsyncOpenAI, str]]:
    """A client of a gateway over an engine in this process, and the name of its model."""
    settings = read_settings({"listen": f"unix:{tmp_path}/e.sock"})
    server = EngineServer(settings, load_policies(settings), None)
    await server.listen()
    loaded = load_model(find_default_model(), dtype="float32", device="cpu")
    await server.open(lambda: Backend(ModelRunner(loaded, CONFIG), loaded.info, CONFIG))
    closed_world.options = {"engine": settings.listen, "http_listen": "127.0.0.1:0"}
    await closed_world.open()
    await closed_world.serving()
    clients = Clients(closed_world)
    yield clients.sdk(await closed_world.tenant()), loaded.info.name
    await clients.close()
    await closed_world.close()
    await server.drain(grace_s=1)
    await server.close()


@pytest.mark.timeout(300)
async def test_formats_and_tools_are_held_to(model_sdk: tuple[openai.AsyncOpenAI, str]) -> None:
    sdk, model = model_sdk
    asked = {"model": model, "messages": ASKED, "temperature": 0, "max_completion_tokens": 200}

    wanted = {"type": "json_schema", "json_schema": {"name": "trip", "schema": CITY, "strict": True}}
    chat = await sdk.chat.completions.create(**asked, response_format=wanted)
    assert is_held_to_schema(chat.choices[0].message.content)
    assert chat.choices[0].finish_reason == "stop"

    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        called = await sdk.chat.completions.create(
            **asked, tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False
        )
        (call,) = called.choices[0].message.tool_calls
        assert is_held_to_schema(call.function.arguments)
        assert called.choices[0].finish_reason == "tool_calls"
        assert called.choices[0].message.content is None

    stream = await sdk.chat.completions.create(
        **asked, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, stream=True
    )
    deltas = [chunk.choices[0].delta async for chunk in stream]
    streamed = [call for delta in deltas for call in delta.tool_calls or ()]
    assert all(is_held_to_schema(call.function.arguments) for call in streamed)
    assert streamed
    assert not "".join(delta.content or "" for delta in deltas)

    messages = [
        *ASKED,
        called.choices[0].message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": "rain"},
    ]
    answer = await sdk.chat.completions.create(**(asked | {"messages": messages}), tools=[WEATHER])
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")

    for bad in (
        {"type": "object", "properties": {"a": {"type": "strin"}}},
        {"type": "object", "if": {"required": ["a"]}},
    ):
        wanted = {"type": "json_schema", "json_schema": {"name": "bad", "schema": bad}}
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.chat.completions.create(**asked, response_format=wanted)
        assert refused.value.body["param"] == "response_format.json_schema.schema"

    part = {"type": "object", "properties": {f"p{number}": {} for number in range(60)}}
    wide = {"$defs": {"part": part}, "anyOf": [{"$ref": "#/$defs/part"}] * 8}
    nowhere = {"type": "object", "properties": {"a": {"$ref": "#nowhere"}}, "required": ["a"]}
    for parameters in (wide, {"type": "object", "if": {"required": ["a"]}}, {"$dynamicRef": "#a"}, nowhere):
        tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
        strict = {"type": "function", "function": tool["function"] | {"strict": True}}
        for tools, choice in (
            ([WEATHER, tool], "required"),
            ([WEATHER, tool], {"type": "function", "function": {"name": "f"}}),
            ([WEATHER, strict], "auto"),
        ):
            with pytest.raises(openai.BadRequestError) as refused:
                await sdk.chat.completions.create(**asked, tools=tools, tool_choice=choice)
            assert refused.value.body["param"] == "tools[1].function.parameters"

    for tool in (WEATHER, NAMED_WEATHER):  # the second schema refers to its own parts by their names
        chosen = {"type": "function", "function": {"name": tool["function"]["name"]}}
        called = await sdk.chat.completions.create(
            **asked, tools=[WEATHER, NAMED_WEATHER], tool_choice=chosen, parallel_tool_calls=False
        )
        (call,) = called.choices[0].message.tool_calls
        assert is_held_to_schema(call.function.arguments)

    function = {"type": "function", "strict": True, **WEATHER["function"]}
    answer = await sdk.responses.create(
        model=model, input=ASKED, temperature=0, max_output_tokens=200, tools=[function], tool_choice="required"
    )
    calls = [item for item in answer.output if item.type == "function_call"]
    assert all(is_held_to_schema(call.arguments) for call in calls)
    assert calls or answer.status == "incomplete"

    text = await sdk.completions.create(
        model=model, prompt="The capital of France is", max_tokens=1, temperature=0, echo=True, logprobs=1
    )
    logprobs = text.choices[0].logprobs
    assert logprobs.token_logprobs[0] is None
    assert all(each <= 0 for each in logprobs.token_logprobs[1:])
    assert "".join(logprobs.tokens) == text.choices[0].text
