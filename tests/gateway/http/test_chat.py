"""Chats through OpenAI's own client: whole and streamed answers, usage, choices, log-probabilities, ends."""

import asyncio
import itertools

import httpx2
import openai
import pytest

from evenflow.engine.v1 import engine_pb2
from gateway.servicer.record import Recorder
from gateway.store.records import TeamSettings
from gateway.tokenizer import Tokenizer
from tests.gateway.fake_engine import END_TOKEN, MODEL, FakeCall, begun, stalled
from tests.gateway.http.clients import Clients
from tests.gateway.world import Tenant, World, eventually

HI = [{"role": "user", "content": "hi"}]
PROMPT_TOKENS = len("user: hi\nassistant: ")


async def test_a_chat_is_answered_in_one_piece_with_its_usage(
    own_sdk: openai.AsyncOpenAI, shared_world: World, own_tenant: Tenant
) -> None:
    raw = await own_sdk.chat.completions.with_raw_response.create(model=MODEL, messages=HI, max_completion_tokens=8)
    chat = raw.parse()

    (choice,) = chat.choices
    assert (chat.object, chat.model, choice.message.role, choice.message.content) == (
        "chat.completion",
        MODEL,
        "assistant",
        "hello",
    )
    assert (choice.finish_reason, choice.logprobs) == ("stop", None)
    assert (chat.usage.prompt_tokens, chat.usage.completion_tokens) == (PROMPT_TOKENS, 6)
    assert chat.usage.total_tokens == PROMPT_TOKENS + 6
    assert chat.usage.prompt_tokens_details.cached_tokens == 0
    (row,) = await shared_world.usage_rows(own_tenant)
    assert chat.id == f"chatcmpl-{row['generation_id']}" == f"chatcmpl-{raw.headers['x-evenflow-generation-id']}"
    assert raw.headers["x-request-id"]
    assert raw.headers["x-evenflow-queue-wait-ms"] == "1"
    assert 0 <= float(raw.headers["x-evenflow-overhead-ms"]) < 60_000


async def test_a_streamed_chat_begins_with_the_role_and_ends_with_a_reason_and_the_usage(
    shared_sdk: openai.AsyncOpenAI, shared_world: World
) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.emit(b"one ")
        await asyncio.sleep(0.05)
        await call.emit(b"two")
        await call.finish()

    shared_world.engine.script = script
    stream = await shared_sdk.chat.completions.create(
        model=MODEL, messages=HI, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]

    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "one two"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 7)
    assert len({chunk.id for chunk in chunks}) == 1


async def test_a_raw_stream_is_events_of_json_and_ends_with_done(shared_http: httpx2.AsyncClient) -> None:
    body = {"model": MODEL, "messages": HI, "stream": True}
    async with shared_http.stream("POST", "/v1/chat/completions", json=body) as response:
        text = (await response.aread()).decode()

    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = text.split("\n\n")
    assert all(event.startswith("data: ") for event in events[:-1])
    assert events[-2:] == ["data: [DONE]", ""]
    assert '"usage"' not in text


async def test_every_parameter_reaches_the_engine(shared_clients: Clients, shared_world: World) -> None:
    tenant = await shared_world.tenant(team=TeamSettings(class_grants=("default", "batch")))
    await shared_clients.sdk(tenant).chat.completions.create(
        model=MODEL,
        messages=HI,
        temperature=0.5,
        top_p=0.9,
        frequency_penalty=0.25,
        presence_penalty=-0.25,
        seed=7,
        max_tokens=5,
        logprobs=True,
        top_logprobs=2,
        service_tier="flex",
        user="somebody",
        metadata={"project": "x"},
        extra_body={"top_k": 3, "min_p": 0.125, "repetition_penalty": 1.5, "stop_token_ids": [9], "ignore_eos": True},
    )

    start = (await shared_world.engine.call()).start
    sampling = start.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 3, 0.125)
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.25, -0.25)
    assert (sampling.repetition_penalty, sampling.seed, sampling.num_logprobs) == (1.5, 7, 2)
    assert (list(sampling.stop_token_ids), sampling.ignore_eos) == ([9], True)
    assert (start.max_output_tokens, start.priority_class.name) == (5, "batch")
    (row,) = await shared_world.usage_rows(tenant)
    assert row["labels"] == {"project": "x", "end_user": "somebody"}


async def test_parts_of_a_message_are_joined_and_developers_speak_as_the_system(
    shared_sdk: openai.AsyncOpenAI, shared_world: World
) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    await shared_sdk.chat.completions.create(
        model=MODEL, messages=[{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
    )

    prompt = bytes((await shared_world.engine.call()).start.prompt_token_ids).decode()
    assert prompt == "system: be brief\nuser: a\nb\nassistant: "


async def test_stop_strings_cut_the_text(own_sdk: openai.AsyncOpenAI, shared_world: World, own_tenant: Tenant) -> None:
    chat = await own_sdk.chat.completions.create(model=MODEL, messages=HI, stop="lo")

    assert (chat.choices[0].message.content, chat.choices[0].finish_reason) == ("hel", "stop")
    (row,) = await shared_world.usage_rows(own_tenant)
    assert (chat.usage.completion_tokens, row["output_tokens"]) == (5, 5)


async def test_log_probabilities_have_text_bytes_and_alternatives_and_leave_the_end_out(
    shared_sdk: openai.AsyncOpenAI, shared_world: World
) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.emit(
            [ord("h"), END_TOKEN],
            [
                engine_pb2.TokenLogprobs(logprob=-0.5, top_token_ids=[ord("h"), 0xC3], top_logprobs=[-0.5, -1]),
                engine_pb2.TokenLogprobs(logprob=-0.1),
            ],
        )
        await call.finish(engine_pb2.FINISH_REASON_STOP)

    shared_world.engine.script = script
    chat = await shared_sdk.chat.completions.create(model=MODEL, messages=HI, logprobs=True, top_logprobs=2)
    stream = await shared_sdk.chat.completions.create(
        model=MODEL, messages=HI, logprobs=True, top_logprobs=2, stream=True
    )
    streamed = [chunk.choices[0].logprobs async for chunk in stream]

    (entry,) = chat.choices[0].logprobs.content
    assert (entry.token, entry.bytes, entry.logprob) == ("h", [ord("h")], -0.5)
    assert [(top.token, top.bytes) for top in entry.top_logprobs] == [("h", [ord("h")]), ("�", [0xC3])]
    assert [found.content for found in streamed if found is not None] == [[entry]]


async def test_several_choices_are_generations_of_their_own(
    own_sdk: openai.AsyncOpenAI, shared_world: World, own_tenant: Tenant
) -> None:
    chat = await own_sdk.chat.completions.create(model=MODEL, messages=HI, n=3, seed=5)
    stream = await own_sdk.chat.completions.create(
        model=MODEL, messages=HI, n=2, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]

    assert [(choice.index, choice.message.content) for choice in chat.choices] == [
        (0, "hello"),
        (1, "hello"),
        (2, "hello"),
    ]
    assert sorted(call.start.sampling.seed for call in shared_world.engine.calls[:3]) == [5, 6, 7]
    assert chat.usage.completion_tokens == 18
    texts = {0: "", 1: ""}
    for chunk in chunks[:-1]:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == {0: "hello", 1: "hello"}
    assert chunks[-1].usage.prompt_tokens == 2 * PROMPT_TOKENS
    rows = await shared_world.usage_rows(own_tenant)
    assert sum(row["output_tokens"] for row in rows) == 30


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_client_that_goes_away_ends_its_generation(
    shared_world: World, own_tenant: Tenant, own_http: httpx2.AsyncClient, is_stream: bool
) -> None:
    shared_world.engine.script = begun
    body = {"model": MODEL, "messages": HI, "stream": is_stream}
    call = asyncio.create_task(own_http.post("/v1/chat/completions", json=body))
    started = await shared_world.engine.call()
    await eventually(lambda: started.num_emitted == 3)
    call.cancel()
    await asyncio.wait([call])

    (row,) = await shared_world.usage_rows(own_tenant)
    assert (row["finish_reason"], row["output_tokens"]) == ("CANCELLED", 3)
    assert started.controls[-1].cancel.reason == engine_pb2.CANCEL_REASON_CLIENT


async def test_all_choices_end_when_the_client_goes_away(shared_world: World, shared_http: httpx2.AsyncClient) -> None:
    shared_world.engine.script = stalled
    call = asyncio.create_task(shared_http.post("/v1/chat/completions", json={"model": MODEL, "messages": HI, "n": 4}))
    await eventually(lambda: len(shared_world.engine.calls) == 4)
    call.cancel()
    await asyncio.wait([call])

    await shared_world.settled()
    assert shared_world.book.num_reservations == 0


async def test_choices_that_cannot_all_be_started_are_not_left_running(
    shared_world: World, shared_http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_world.engine.script = begun
    begin_span, num_begun = Recorder.begin_span, itertools.count()

    def fails_later(*asked: object) -> object:
        if next(num_begun):
            raise RuntimeError("the second one")
        return begin_span(*asked)

    monkeypatch.setattr(Recorder, "begin_span", fails_later)
    response = await shared_http.post("/v1/chat/completions", json={"model": MODEL, "messages": HI, "n": 3})

    assert response.status_code == 500
    await eventually(lambda: not shared_world.live.num_live_requests)
    assert shared_world.book.num_reservations == 0


async def test_what_choices_have_in_common_is_tokenized_once(
    shared_world: World, shared_http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, encoded = Tokenizer._encode, []

    def counting(tokenizer: Tokenizer, text: str) -> list[int]:
        encoded.append(text)
        return encode(tokenizer, text)

    monkeypatch.setattr(Tokenizer, "_encode", counting)
    await shared_http.post("/v1/chat/completions", json={"model": MODEL, "messages": HI, "n": 3})
    await shared_http.post("/v1/completions", json={"model": MODEL, "prompt": ["one", "two"], "n": 2, "max_tokens": 8})

    assert encoded == ["user: hi\nassistant: ", "one", "two"]
    asked = sorted(bytes(call.start.prompt_token_ids).decode() for call in shared_world.engine.calls)
    assert asked == ["one", "one", "two", "two", *["user: hi\nassistant: "] * 3]
