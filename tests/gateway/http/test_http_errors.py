"""Refusals: OpenAI's shapes, the same reasons as over gRPC, and what a client is to do next."""

import asyncio
import json
import time

import grpc
import httpx2
import openai
import pytest

from evenflow.engine.v1 import engine_pb2
from gateway.store.enums import Dimension
from gateway.store.records import QuotaLimit
from tests.gateway.fake_engine import MAX_REQUEST_TOKENS, MODEL, FakeCall
from tests.gateway.http.clients import Clients
from tests.gateway.world import Tenant, World

HI = [{"role": "user", "content": "hi"}]
CHAT = {"model": MODEL, "messages": HI}
PATH = "/v1/chat/completions"


def error_of(response: httpx2.Response) -> dict[str, object]:
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert error["request_id"] == response.headers["x-request-id"]
    assert {"message", "type", "param", "code", "reason"} <= error.keys()
    return error


@pytest.mark.parametrize(
    ("changed", "param", "code"),
    [
        ({"temperature": "hot"}, "temperature", "invalid_value"),
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": True}, "n", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "text": "x"}]}]},
            "messages[0].content[0].type",
            "invalid_value",
        ),
        ({"messages": [{"role": "user", "content": "x", "name": "Al"}]}, "messages[0].name", "unsupported_parameter"),
        ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, "messages[0].mood", "unknown_parameter"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "invalid_value"),
        ({"functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
        ({"logit_bias": {"50256": -100}}, "logit_bias", "invalid_value"),
        ({"store": True}, "store", "unsupported_parameter"),
        ({"frequency_penality": 1}, "frequency_penality", "unknown_parameter"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "invalid_value"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_value"),
        ({"stop": ""}, "stop", "invalid_value"),
        ({"stop": ["a", ""]}, "stop[1]", "invalid_value"),
        ({"service_tier": "gold"}, "service_tier", "invalid_value"),
        ({"metadata": {str(index): "x" for index in range(9)}}, "metadata", "invalid_value"),
        ({"metadata": {"Team": 5}}, "metadata.Team", "invalid_value"),
        ({"metadata": {"cost-center": 5}}, "metadata.cost-center", "invalid_value"),
        ({"metadata": {"a[0]": 5}}, "metadata.a[0]", "invalid_value"),
        ({"metadata": {"str": 5}}, "metadata.str", "invalid_value"),
        ({"stop": 5}, "stop", "invalid_value"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_value"),
        ({"user": "a\0b"}, "user", "invalid_value"),
        ({"metadata": {"end_user": "a"}, "user": "b"}, "metadata.end_user", "invalid_value"),
        ({"stop_token_ids": [9999]}, "stop_token_ids", "invalid_value"),
        ({"max_tokens": 100_000}, "max_completion_tokens", "context_length_exceeded"),
        ({"max_tokens": MAX_REQUEST_TOKENS}, "max_completion_tokens", "context_length_exceeded"),
    ],
)
async def test_a_bad_parameter_is_named(
    shared_http: httpx2.AsyncClient, shared_world: World, changed: dict[str, object], param: str, code: str
) -> None:
    response = await shared_http.post(PATH, json=CHAT | changed)

    error = error_of(response)
    assert (response.status_code, error["param"], error["code"]) == (400, param, code)
    assert error["type"] == "invalid_request_error"
    assert not shared_world.engine.calls
    assert "spec." not in error["message"]


@pytest.mark.parametrize(
    "changed",
    [
        {"tools": None, "logit_bias": {}, "response_format": {"type": "text"}, "store": False, "modalities": ["text"]},
        {"tool_choice": "auto", "tools": [], "parallel_tool_calls": True, "temperature": None, "stop": None, "n": None},
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": None, "refusal": None, "annotations": []}]},
    ],
)
async def test_a_parameter_that_asks_for_nothing_is_taken(
    shared_http: httpx2.AsyncClient, changed: dict[str, object]
) -> None:
    assert (await shared_http.post(PATH, json=CHAT | changed)).status_code == 200


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b'"x"', b'{"model": "\\ud800"}', b"\xff\xfe", b"[" * 5000])
async def test_what_is_no_json_object_is_refused(shared_http: httpx2.AsyncClient, raw: bytes) -> None:
    response = await shared_http.post(PATH, content=raw, headers={"content-type": "application/json"})

    assert (response.status_code, error_of(response)["type"]) == (400, "invalid_request_error")


async def test_another_media_type_is_refused(shared_http: httpx2.AsyncClient) -> None:
    response = await shared_http.post(
        PATH, content=b"a=b", headers={"content-type": "application/x-www-form-urlencoded"}
    )

    assert (response.status_code, error_of(response)["code"]) == (415, "unsupported_media_type")


async def test_a_wrong_key_is_told_in_openais_words(
    own_http: httpx2.AsyncClient, shared_clients: Clients, own_tenant: Tenant
) -> None:
    for headers in ({"authorization": "Bearer ef_live_nobody"}, {"authorization": "Basic eDp5"}, {"authorization": ""}):
        response = await own_http.post(PATH, json=CHAT, headers=headers)
        error = error_of(response)
        assert (response.status_code, error["code"], error["reason"]) == (401, "invalid_api_key", "CREDENTIAL_INVALID")
        assert response.headers["www-authenticate"] == "Bearer"
    own_tenant.key = "ef_live_nobody"
    with pytest.raises(openai.AuthenticationError):
        await shared_clients.sdk(own_tenant).models.list()


async def test_a_model_that_is_not_there_is_not_found(shared_sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        await shared_sdk.chat.completions.create(model="gpt-9", messages=HI)

    assert (refused.value.code, refused.value.status_code) == ("model_not_found", 404)


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/nothing", 404), ("GET", PATH, 405)])
async def test_paths_and_methods_that_do_not_exist_are_told_in_the_same_shape(
    shared_http: httpx2.AsyncClient, method: str, path: str, status: int
) -> None:
    response = await shared_http.request(method, path)

    assert (response.status_code, error_of(response)["type"]) == (status, "invalid_request_error")
    assert ("allow" in response.headers) == (status == 405)


async def test_a_rate_limit_says_which_one_and_how_long_to_wait(shared_world: World, shared_clients: Clients) -> None:
    tenant = await shared_world.tenant(limits=(QuotaLimit(Dimension.REQUESTS, 60, 3_600_000, 1),))
    http = shared_clients.http(tenant)
    assert (await http.post(PATH, json=CHAT)).status_code == 200

    response = await http.post(PATH, json=CHAT)

    error = error_of(response)
    assert (response.status_code, error["code"], error["type"]) == (429, "rate_limit_exceeded", "requests")
    assert error["violations"][0]["subject"] == f"organizations/{tenant.path.organization}/teams/search"
    wait_ms = int(response.headers["retry-after-ms"])
    assert 36_000 < wait_ms <= 60_000  # one a minute
    assert int(response.headers["retry-after"]) == -(-wait_ms // 1000)
    assert "x-should-retry" not in response.headers


async def test_the_sdk_waits_as_it_is_told_and_gets_through(shared_world: World, shared_clients: Clients) -> None:
    tenant = await shared_world.tenant(limits=(QuotaLimit(Dimension.REQUESTS, 600, 60_000, 1),))
    sdk = shared_clients.sdk(tenant, max_retries=5)

    chats = await asyncio.gather(*(sdk.chat.completions.create(model=MODEL, messages=HI) for _ in range(3)))

    assert [chat.choices[0].message.content for chat in chats] == ["hello"] * 3


async def test_a_spent_budget_is_not_tried_again(shared_world: World, shared_clients: Clients) -> None:
    tenant = await shared_world.tenant(limits=(QuotaLimit(Dimension.TOTAL_TOKENS, 600, 60_000, 10),))

    response = await shared_clients.http(tenant).post(PATH, json=CHAT)

    error = error_of(response)
    assert (response.status_code, error["reason"]) == (400, "REQUEST_EXCEEDS_LIMIT")
    assert "retry-after" not in response.headers


async def test_choices_are_admitted_all_or_none(shared_world: World, shared_clients: Clients) -> None:
    tenant = await shared_world.tenant(limits=(QuotaLimit(Dimension.CONCURRENCY, 2, None, None),))
    http = shared_clients.http(tenant)

    refused = await http.post(PATH, json=CHAT | {"n": 3})
    admitted = await http.post(PATH, json=CHAT | {"n": 2})

    assert (refused.status_code, admitted.status_code) == (400, 200)
    assert len(shared_world.engine.calls) == 2
    assert len(await shared_world.usage_rows(tenant)) == 2


async def test_what_the_engine_refuses_before_the_first_byte_has_a_status(
    world: World, http: httpx2.AsyncClient
) -> None:
    async def script(call: FakeCall) -> None:
        await call.refuse(grpc.StatusCode.UNAVAILABLE, "DRAINING")

    world.engine.script = script
    response = await http.post(PATH, json=CHAT | {"stream": True})

    assert response.status_code == 503
    assert error_of(response)["type"] == "server_error"


async def test_what_fails_after_the_first_byte_is_an_error_event_and_no_done(
    shared_world: World, shared_http: httpx2.AsyncClient, shared_sdk: openai.AsyncOpenAI
) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.emit(b"abc")
        await call.finish(engine_pb2.FINISH_REASON_ERROR, error="a bug")

    shared_world.engine.script = script
    text = (await shared_http.post(PATH, json=CHAT | {"stream": True})).text
    with pytest.raises(openai.APIError) as failed:
        async for _ in await shared_sdk.chat.completions.create(model=MODEL, messages=HI, stream=True):
            pass

    last = text.strip().split("\n\n")[-1].splitlines()
    assert last[0] == "event: error"
    assert json.loads(last[1].removeprefix("data: "))["error"]["reason"] == "INTERNAL"
    assert "[DONE]" not in text
    assert "a bug" not in text
    assert failed.value.code == "internal"


async def test_a_queue_timeout_says_that_a_retry_as_such_does_not_help(
    shared_world: World, shared_http: httpx2.AsyncClient
) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.finish(engine_pb2.FINISH_REASON_QUEUE_TIMEOUT)

    shared_world.engine.script = script
    response = await shared_http.post(PATH, json=CHAT, headers={"x-evenflow-max-queue-wait-ms": "50"})

    assert (response.status_code, response.headers["x-should-retry"]) == (429, "false")
    assert shared_world.engine.calls[0].start.max_queue_wait_ns == 50_000_000


async def test_an_outage_of_the_engine_is_unavailable(world: World, http: httpx2.AsyncClient) -> None:
    await world.engine.stop()
    responses = [await http.post(PATH, json=CHAT), await http.get("/readyz"), await http.get("/healthz")]

    assert [response.status_code for response in responses] == [503, 503, 200]
    assert (error_of(responses[0])["reason"], responses[0].headers["retry-after"]) == ("NO_ENGINE", "1")


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":"m","messages":[' + b"{}," * 200_000 + b"{}]}",
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"metadata":{'
        + b",".join(b'"%06d":1' % number for number in range(140_000))
        + b"}}",
    ],
)
async def test_a_body_of_countless_parts_costs_others_no_time(shared_http: httpx2.AsyncClient, raw: bytes) -> None:
    started_s = time.process_time()
    response = await shared_http.post(PATH, content=raw, headers={"content-type": "application/json"})

    assert response.status_code == 400
    assert time.process_time() - started_s < 0.5


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/openai/v1/responses", "/v1/responses"),
        ("/completions", "/v1/completions"),
        ("/models", "/v1/models"),
        ("/models/bytes", "/v1/models"),
    ],
)
async def test_a_base_url_that_is_wrong_is_told_the_right_path(
    shared_http: httpx2.AsyncClient, path: str, meant: str
) -> None:
    response = await shared_http.post(path, json=CHAT)

    error = error_of(response)
    assert (response.status_code, error["code"], error["metadata"]) == (404, "unknown_url", {"path": meant})
    assert f"there is {meant}" in str(error["message"])
    assert "base URL ends in /v1" in str(error["message"])


async def test_a_path_that_resembles_none_is_just_not_there(shared_http: httpx2.AsyncClient) -> None:
    error = error_of(await shared_http.post("/v1/embeddings", json=CHAT))

    assert (error["code"], error["metadata"]) == ("unknown_url", {})


async def test_a_missing_key_is_asked_for_in_the_words_of_http(shared_http: httpx2.AsyncClient) -> None:
    error = error_of(await shared_http.post(PATH, json=CHAT, headers={"authorization": "Bearer nobody's"}))

    assert "header `Authorization: Bearer" in str(error["message"])
    assert "metadata" not in str(error["message"])


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/json; charset=latin-1"},
        {"content-type": 'application/json;charset="utf-16"'},
        {"content-type": "application/json", "content-encoding": "gzip"},
        {"content-encoding": "br"},
    ],
)
async def test_a_body_in_another_form_is_refused(
    shared_http: httpx2.AsyncClient, shared_world: World, headers: dict[str, str]
) -> None:
    response = await shared_http.post(PATH, content=json.dumps(CHAT).encode(), headers=headers)

    assert (response.status_code, error_of(response)["reason"]) == (415, "UNSUPPORTED_MEDIA_TYPE")
    assert shared_world.engine.calls == []


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/json; charset=UTF-8"},
        {"content-type": 'Application/JSON; charset="utf-8"; profile=x'},
        {"content-encoding": "identity"},
    ],
)
async def test_a_body_that_is_said_to_be_what_it_is_is_read(
    shared_http: httpx2.AsyncClient, headers: dict[str, str]
) -> None:
    response = await shared_http.post(PATH, content=json.dumps(CHAT).encode(), headers=headers)

    assert response.status_code == 200
