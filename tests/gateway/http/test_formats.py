"""What an output has to be, and which tokens it may have: OpenAI's parameters on their way to the engine and back."""

import json

import httpx2
import openai
import pytest
from pydantic import BaseModel

from evenflow.engine.v1 import engine_pb2
from tests.gateway.fake_engine import END_TOKEN, MODEL, FakeCall
from tests.gateway.http.clients import Clients
from tests.gateway.world import Tenant, World

HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}, "required": ["b", "a"]}


class City(BaseModel):
    name: str
    inhabitants: int


def says(text: str, logprobs=None):
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.emit(text.encode(), logprobs)
        await call.emit([END_TOKEN], logprobs and logprobs[:1])
        await call.finish(engine_pb2.FINISH_REASON_STOP)

    return script


async def test_a_schema_reaches_the_engine_as_it_is(shared_sdk: openai.AsyncOpenAI, shared_world: World) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    await shared_sdk.chat.completions.create(model=MODEL, messages=HI, response_format=wanted)
    await shared_sdk.chat.completions.create(model=MODEL, messages=HI, response_format={"type": "json_object"})
    await shared_sdk.chat.completions.create(model=MODEL, messages=HI, response_format={"type": "text"})

    first, second, third = (call.start.sampling for call in shared_world.engine.calls)
    assert json.loads(first.grammar.json_schema) == SCHEMA
    assert list(json.loads(first.grammar.json_schema)["properties"]) == ["b", "a"]
    assert json.loads(second.grammar.json_schema) == {"type": "object"}
    assert not third.HasField("grammar")


async def test_the_clients_own_types_are_parsed(shared_sdk: openai.AsyncOpenAI, shared_world: World) -> None:
    shared_world.engine.script = says('{"name": "Köln", "inhabitants": 1000000}')
    chat = await shared_sdk.chat.completions.parse(model=MODEL, messages=HI, response_format=City)
    response = await shared_sdk.responses.parse(model=MODEL, input="hi", text_format=City)

    assert chat.choices[0].message.parsed == City(name="Köln", inhabitants=1_000_000)
    assert response.output_parsed == City(name="Köln", inhabitants=1_000_000)
    for call in shared_world.engine.calls:
        assert json.loads(call.start.sampling.grammar.json_schema)["required"] == ["name", "inhabitants"]
    assert response.text.format.name == "City"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat/completions", {"response_format": {"type": "yaml"}}, "response_format.type"),
        ("chat/completions", {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            "chat/completions",
            {"response_format": {"type": "json_object", "json_schema": {"name": "x", "schema": {}}}},
            "response_format.json_schema",
        ),
        (
            "chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": []}}},
            "response_format.json_schema.schema",
        ),
        (
            "chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x y", "schema": {}}}},
            "response_format.json_schema.name",
        ),
        ("responses", {"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ("responses", {"text": {"format": {"type": "text"}, "verbosity": "low"}}, "text.verbosity"),
        ("chat/completions", {"logit_bias": {"5": 101}}, "logit_bias.5"),
        ("chat/completions", {"logit_bias": {"x": 1}}, "logit_bias.x"),
        ("chat/completions", {"logit_bias": {"999999": 1}}, "logit_bias"),
        ("chat/completions", {"logit_bias": {str(n): 1 for n in range(1025)}}, "logit_bias"),
    ],
)
async def test_a_format_that_makes_no_sense_names_its_parameter(
    shared_http: httpx2.AsyncClient, shared_world: World, path: str, body: dict, param: str
) -> None:
    prompt = {"input": "hi"} if path == "responses" else {"messages": HI}
    response = await shared_http.post(f"/v1/{path}", json={"model": MODEL, **prompt, **body})

    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert not shared_world.engine.calls


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_schema_that_the_engine_cannot_hold_an_output_to_is_a_400_and_costs_nothing(
    own_http: httpx2.AsyncClient, shared_world: World, is_stream: bool, own_tenant: Tenant
) -> None:
    field = "sampling.grammar.json_schema"

    async def script(call: FakeCall) -> None:
        await call.refuse_field(field, "cannot be held to: no such thing")

    shared_world.engine.script = script
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}
    body = {"model": MODEL, "messages": HI, "response_format": wanted, "stream": is_stream}
    response = await own_http.post("/v1/chat/completions", json=body)

    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["param"], error["code"]) == ("response_format.json_schema.schema", "invalid_value")
    assert error["message"] == "response_format.json_schema.schema: cannot be held to: no such thing"
    assert await shared_world.usage_rows(own_tenant) == []


SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
STUCK = [
    (
        "chat/completions",
        {"messages": HI, "response_format": SCHEMA_FORMAT},
        "sampling.grammar.json_schema",
        "response_format.json_schema.schema",
    ),
    (
        "responses",
        {"input": "hi", "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
        "sampling.grammar.json_schema",
        "text.format.schema",
    ),
    ("chat/completions", {"messages": HI}, "chat.tools", "tools"),
]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("path", "body", "field", "param"), STUCK)
async def test_a_format_that_leaves_nothing_that_may_follow_is_a_400_or_an_event_with_its_parameter(
    http: httpx2.AsyncClient, world: World, is_stream: bool, path: str, body: dict, field: str, param: str
) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.emit(b'{"b')
        await call.finish(engine_pb2.FINISH_REASON_ERROR, error="leads nowhere", error_fields=[field])

    world.engine.script = script
    response = await http.post(f"/v1/{path}", json={"model": MODEL, "stream": is_stream, **body})
    told = json.loads(response.text.split("data: ")[-1]) if is_stream else response.json()
    error = told.get("error", told)
    (row,) = await world.usage_rows()

    assert response.status_code == (200 if is_stream else 400)
    assert (error["param"], error["code"], error["reason"]) == (param, "output_cannot_go_on", "OUTPUT_CANNOT_GO_ON")
    assert (error["message"], error["metadata"]["output_tokens"]) == (f"{param}: leads nowhere", "3")
    assert row["output_tokens"] == 3


async def test_biases_reach_the_engine(shared_sdk: openai.AsyncOpenAI, shared_world: World) -> None:
    await shared_sdk.chat.completions.create(model=MODEL, messages=HI, logit_bias={"104": -100, "7": 2.5})
    await shared_sdk.completions.create(model=MODEL, prompt="hi", logit_bias={"104": 1})

    first, second = (call.start.sampling for call in shared_world.engine.calls)
    assert dict(zip(first.biased_token_ids, first.biases, strict=True)) == {104: -100, 7: 2.5}
    assert dict(zip(second.biased_token_ids, second.biases, strict=True)) == {104: 1}


async def test_an_echo_comes_before_the_output(shared_sdk: openai.AsyncOpenAI, shared_world: World) -> None:
    whole = await shared_sdk.completions.create(model=MODEL, prompt=["hi ", "yo "], echo=True, n=2)
    ids = await shared_sdk.completions.create(model=MODEL, prompt=list(b"hey "), echo=True)
    stream = await shared_sdk.completions.create(model=MODEL, prompt="hi ", echo=True, stream=True)
    pieces = [chunk.choices[0].text async for chunk in stream]

    assert [choice.text for choice in whole.choices] == ["hi hello", "hi hello", "yo hello", "yo hello"]
    assert ids.choices[0].text == "hey hello"
    assert (pieces[0], "".join(pieces)) == ("hi ", "hi hello")
    assert not shared_world.engine.calls[0].start.sampling.HasField("num_prompt_logprobs")


@pytest.mark.parametrize("is_stream", [False, True])
async def test_log_probabilities_of_an_echo_begin_with_a_token_that_has_none(
    shared_sdk: openai.AsyncOpenAI, shared_world: World, is_stream: bool
) -> None:
    def entry(logprob: float, *top: int) -> engine_pb2.TokenLogprobs:
        return engine_pb2.TokenLogprobs(logprob=logprob, top_token_ids=top, top_logprobs=[-0.25] * len(top))

    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.score([entry(-1.0, ord("i"))])
        await call.score([entry(-2.0, ord("!")), entry(-3.0, ord("?"))])
        await call.emit(b"x", [entry(-4.0, ord("x"))])
        await call.finish()

    shared_world.engine.script = script
    asked = {"model": MODEL, "prompt": "hi!?", "echo": True, "logprobs": 1}
    if is_stream:
        parts = [chunk.choices[0].logprobs async for chunk in await shared_sdk.completions.create(**asked, stream=True)]
        found = [part for part in parts if part is not None]
    else:
        found = [(await shared_sdk.completions.create(**asked)).choices[0].logprobs]

    assert [token for part in found for token in part.tokens] == ["h", "i", "!", "?", "x"]
    assert [each for part in found for each in part.token_logprobs] == [None, -1.0, -2.0, -3.0, -4.0]
    assert [each for part in found for each in part.text_offset] == [0, 1, 2, 3, 4]
    tops = [each for part in found for each in part.top_logprobs]
    assert tops == [None, {"i": -0.25}, {"!": -0.25}, {"?": -0.25}, {"x": -0.25}]
    assert shared_world.engine.calls[0].start.sampling.num_prompt_logprobs == 1


async def test_a_format_says_the_same_at_both_doors(
    shared_clients: Clients, shared_world: World, shared_tenant: Tenant
) -> None:
    from evenflow.inference.v1 import generation_pb2 as pb

    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    sampling = pb.SamplingOptions(logit_bias={7: 1.5})
    output = pb.OutputOptions(format=pb.OutputFormat(json_schema=json.dumps(SCHEMA)))
    chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="hi")])
    await shared_clients.sdk(shared_tenant).chat.completions.create(
        model=MODEL, messages=HI, response_format=wanted, logit_bias={"7": 1.5}, seed=1
    )
    sampling.seed = 1
    await shared_tenant.generate(chat=chat, sampling=sampling, output=output)

    first, second = (call.start.sampling for call in shared_world.engine.calls)
    assert first == second
