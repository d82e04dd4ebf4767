"""Beam searches over HTTP: choices by rank, whole also in a stream, one generation, and what does not go with them."""

import asyncio
import json

import httpx2
import openai
import pytest

from evenflow.engine.v1 import engine_pb2
from evenflow.inference.v1 import generation_pb2 as pb
from gateway.http import app
from tests.gateway.fake_engine import END_TOKEN, MODEL, FakeCall
from tests.gateway.http.clients import Clients
from tests.gateway.http.test_tools import CALLS, TIME, WEATHER
from tests.gateway.searches import NUM_STEPS, SearchGate, score_of, searched, searching, tell_found
from tests.gateway.world import Tenant, World, eventually

HI = [{"role": "user", "content": "hi"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BEAMS = {"beam_width": 4, "n": 3}


@pytest.fixture
def shared_searches(shared_world: World) -> World:
    shared_world.engine.script = searched
    return shared_world


def events(text: str) -> list[dict]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


async def test_choices_are_what_the_search_found_the_best_first(
    shared_searches: World, own_http: httpx2.AsyncClient, own_tenant: Tenant
) -> None:
    body = {"model": MODEL, "prompt": "hi", "max_tokens": 8, **BEAMS, "length_penalty": 0.5, "early_stopping": True}
    answer = (await own_http.post(TEXT, json=body)).json()

    told = [(each["index"], each["text"], each["finish_reason"], each["score"]) for each in answer["choices"]]
    assert told == [(0, "hello", "stop", -0.25), (1, "help", "length", -0.5), (2, "he", "stop", -0.75)]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (2, 4 * NUM_STEPS)
    start = shared_searches.engine.calls[0].start
    assert start.beam_search == engine_pb2.BeamSearch(width=4, num_returned=3, length_penalty=0.5, early_stopping=True)
    assert (start.sampling.temperature, start.max_output_tokens) == (0, 8)
    assert len(shared_searches.engine.calls) == len(await shared_searches.usage_rows(own_tenant)) == 1


async def test_openais_client_reads_them(shared_searches: World, shared_sdk: openai.AsyncOpenAI) -> None:
    chat = await shared_sdk.chat.completions.create(
        model=MODEL, messages=HI, n=2, logprobs=True, extra_body={"beam_width": 2}, temperature=0
    )
    text = await shared_sdk.completions.create(model=MODEL, prompt="hi", extra_body={"beam_width": 2})
    plain = await shared_sdk.chat.completions.create(model=MODEL, messages=HI)

    assert [choice.message.content for choice in chat.choices] == ["hello", "help"]
    assert [choice.score for choice in chat.choices] == [score_of(0), score_of(1)]
    assert [len(choice.logprobs.content) for choice in chat.choices] == [5, 4]
    assert [choice.text for choice in text.choices] == ["hello"]
    assert [choice.score for choice in plain.choices] == [None]


async def test_a_stream_is_silent_until_the_search_has_ended(
    closed_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "HEARTBEAT_S", 0.05)
    closed_world.options["http_listen"] = "127.0.0.1:0"
    await closed_world.open()
    await closed_world.serving()
    clients, tenant = Clients(closed_world), await closed_world.tenant()
    gate = closed_world.engine.script = SearchGate()
    body = {"model": MODEL, "messages": HI, "stream": True, "stream_options": {"include_usage": True}, **BEAMS}
    lines = []
    async with clients.http(tenant).stream("POST", CHAT, json=body) as response:
        async for line in response.aiter_lines():
            assert gate.opened.is_set() or not line.startswith("data: ")
            lines.append(line)
            if lines.count(": keep-alive") == 2:
                gate.opened.set()
    await clients.close()

    assert lines[-2] == "data: [DONE]"
    *pieces, usage = events("\n".join(lines))
    (choices,) = zip(*(piece["choices"] for piece in pieces), strict=True)
    assert [choice["index"] for choice in choices] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert [choice["delta"].get("role") for choice in choices[::3]] == ["assistant"] * 3
    assert [choice["delta"]["content"] for choice in choices[1::3]] == ["hello", "help", "he"]
    assert [choice["finish_reason"] for choice in choices[2::3]] == ["stop", "length", "stop"]
    assert {choice["finish_reason"] for choice in (*choices[::3], *choices[1::3])} == {None}
    assert [choice.get("score") for choice in choices[2::3]] == [score_of(rank) for rank in range(3)]
    assert not any("score" in choice for choice in (*choices[::3], *choices[1::3]))
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 4 * NUM_STEPS)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_each_prompt_has_a_search_and_choices_of_its_own(
    shared_world: World, own_http: httpx2.AsyncClient, is_stream: bool, own_tenant: Tenant
) -> None:
    async def script(call: FakeCall) -> None:
        is_short = bytes(call.start.prompt_token_ids) == b"yo"
        await call.accept()
        await call.admit()
        await tell_found(call, number=1 if is_short else None)

    shared_world.engine.script = script
    body = {"model": MODEL, "prompt": ["hi", "yo", "he"], "beam_width": 2, "n": 2, "echo": True, "stream": is_stream}
    response = await own_http.post(TEXT, json=body)

    texts: dict[int, str] = {}
    for piece in events(response.text) if is_stream else [response.json()]:
        for choice in piece["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert texts == {0: "hihello", 1: "hihelp", 2: "yohello", 4: "hehello", 5: "hehelp"}
    assert len(await shared_world.usage_rows(own_tenant)) == 3


async def test_calls_are_read_out_of_each_choice(shared_world: World, shared_sdk: openai.AsyncOpenAI) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.find(0, [*CALLS.encode(), END_TOKEN], -0.1)
        await call.find(1, [*b"no call", END_TOKEN], -0.2)
        await call.finish(engine_pb2.FINISH_REASON_STOP, output_tokens=9)

    shared_world.engine.script = script
    chat = await shared_sdk.chat.completions.create(
        model=MODEL, messages=HI, tools=[WEATHER, TIME], n=2, extra_body={"beam_width": 2}
    )
    first, second = chat.choices
    assert (first.finish_reason, second.finish_reason) == ("tool_calls", "stop")
    assert json.loads(first.message.tool_calls[0].function.arguments) == {"city": "Köln"}
    assert second.message.content == "no call"


WRONG = (
    ({"beam_width": 1}, "beam_width"),
    ({"beam_width": 17}, "beam_width"),
    ({"beam_width": "4"}, "beam_width"),
    ({"beam_width": 2, "n": 3}, "n"),
    ({"beam_width": 2, "length_penalty": 11}, "length_penalty"),
    ({"beam_width": 2, "temperature": 0.7}, "temperature"),
    ({"beam_width": 2, "top_p": 0.5}, "top_p"),
    ({"beam_width": 2, "top_k": 5}, "top_k"),
    ({"beam_width": 2, "min_p": 0.5}, "min_p"),
    ({"length_penalty": 0.5}, "length_penalty"),
    ({"early_stopping": True}, "early_stopping"),
)
WRONG_FOR_TEXT = (
    ({"beam_width": 2, "echo": True, "logprobs": 1}, "echo"),
    ({"beam_width": 2, "best_of": 2}, "best_of"),
)
WRONG_FOR_CHAT = (
    ({"beam_width": 2, "response_format": {"type": "json_object"}}, "response_format"),
    ({"beam_width": 2, "tools": [WEATHER], "tool_choice": "required"}, "tool_choice"),
)


@pytest.mark.parametrize(
    ("path", "prompt", "wrong"),
    [(TEXT, {"prompt": "hi"}, WRONG + WRONG_FOR_TEXT), (CHAT, {"messages": HI}, WRONG + WRONG_FOR_CHAT)],
)
async def test_a_parameter_that_is_wrong_for_a_search_is_named(
    shared_world: World, shared_http: httpx2.AsyncClient, path: str, prompt: dict[str, object], wrong
) -> None:
    for changed, param in wrong:
        response = await shared_http.post(path, json={"model": MODEL, **prompt, **changed})
        assert (response.status_code, response.json()["error"]["param"]) == (400, param), changed
    assert not shared_world.engine.calls


async def test_parameters_of_a_search_that_ask_for_nothing_are_taken(shared_http: httpx2.AsyncClient) -> None:
    body = {"model": MODEL, "prompt": "hi", "beam_width": None, "length_penalty": 1.0, "early_stopping": False}
    assert (await shared_http.post(TEXT, json=body)).status_code == 200


async def test_a_response_is_not_searched_for(shared_http: httpx2.AsyncClient) -> None:
    for changed in ({"beam_width": 2}, {"length_penalty": 1.0}, {"early_stopping": True}):
        error = (await shared_http.post("/v1/responses", json={"model": MODEL, "input": "hi", **changed})).json()[
            "error"
        ]
        assert (error["reason"], error["param"]) == ("UNSUPPORTED_PARAMETER", next(iter(changed)))


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_search_that_is_cut_short_is_one_choice_without_text(
    shared_world: World, own_tenant: Tenant, own_http: httpx2.AsyncClient, is_stream: bool
) -> None:
    shared_world.engine.script = searching
    body = {"model": MODEL, "messages": HI, "stream": is_stream, **BEAMS}
    asking = asyncio.ensure_future(own_http.post(CHAT, json=body))
    call = await shared_world.engine.call()
    await eventually(lambda: shared_world.live.num_live_requests == 1)
    await own_tenant.cancel(call.start.generation_id)
    response = await asking

    choices = [
        choice for piece in (events(response.text) if is_stream else [response.json()]) for choice in piece["choices"]
    ]
    assert {choice["index"] for choice in choices} == {0}
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("length", "cancelled")
    (row,) = await shared_world.usage_rows(own_tenant)
    assert (row["output_tokens"], row["finish_reason"]) == (12, "CANCELLED")


async def test_a_search_ends_when_its_client_goes_away(
    shared_world: World, own_http: httpx2.AsyncClient, own_tenant: Tenant
) -> None:
    shared_world.engine.script = searching
    asking = asyncio.ensure_future(own_http.post(CHAT, json={"model": MODEL, "messages": HI, **BEAMS}))
    call = await shared_world.engine.call()
    await eventually(lambda: shared_world.live.num_live_requests == 1)
    asking.cancel()

    await call.control("cancel")
    (row,) = await shared_world.usage_rows(own_tenant)
    assert row["output_tokens"] == 12
    assert shared_world.book.num_reservations == 0


async def test_an_idempotency_key_stands_for_the_search_at_both_doors(
    shared_searches: World, own_tenant: Tenant, own_http: httpx2.AsyncClient
) -> None:
    key = "8f1b4f2e-3f3c-4e0a-9d4e-0b6f8e6a1c22"
    body = {"model": MODEL, "prompt": "hi", "max_tokens": 8, **BEAMS}
    first, again = [(await own_http.post(TEXT, json=body, headers={"idempotency-key": key})).json() for _ in range(2)]
    streamed = await own_http.post(TEXT, json=body | {"stream": True}, headers={"idempotency-key": key})
    over_grpc = await own_tenant.generate(
        model=MODEL, request_id=key, beam_search=pb.BeamSearchOptions(width=4, num_returned=3)
    )

    assert first["choices"] == again["choices"]
    assert "".join(piece["choices"][0]["text"] for piece in events(streamed.text)) == "hellohelphe"
    assert over_grpc.replayed
    assert [output.text for output in over_grpc.outputs] == [choice["text"] for choice in first["choices"]]
    assert len(shared_searches.engine.calls) == len(await shared_searches.usage_rows(own_tenant)) == 1


async def test_what_fails_while_it_is_searched_is_an_error_event(
    shared_world: World, shared_http: httpx2.AsyncClient
) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.finish(engine_pb2.FINISH_REASON_ERROR, error="a bug")

    shared_world.engine.script = script
    response = await shared_http.post(TEXT, json={"model": MODEL, "prompt": "hi", "stream": True, **BEAMS})

    (told,) = events(response.text)
    assert told["error"]["reason"] == "INTERNAL"
    assert "[DONE]" not in response.text
