"""The older path: prompts as text and as ids, several at once, and its own form of log-probabilities."""

import httpx2
import openai
import pytest

from evenflow.engine.v1 import engine_pb2
from tests.gateway.fake_engine import MODEL, FakeCall
from tests.gateway.world import Tenant, World


async def test_a_text_is_continued(own_sdk: openai.AsyncOpenAI, shared_world: World, own_tenant: Tenant) -> None:
    completion = await own_sdk.completions.create(model=MODEL, prompt="hi", max_tokens=8)

    (choice,) = completion.choices
    assert (completion.object, choice.text, choice.finish_reason) == ("text_completion", "hello", "stop")
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (2, 6)
    (row,) = await shared_world.usage_rows(own_tenant)
    assert completion.id == f"cmpl-{row['generation_id']}"


async def test_a_streamed_text_ends_with_a_reason_and_the_usage(shared_sdk: openai.AsyncOpenAI) -> None:
    stream = await shared_sdk.completions.create(
        model=MODEL, prompt="hi", stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]

    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == "hello"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.total_tokens == 8


@pytest.mark.parametrize(
    ("prompt", "n", "prompts"),
    [
        ([104, 105], 1, ["hi"]),
        (["a", "bc"], 2, ["a", "a", "bc", "bc"]),
        ([[97], [98, 99]], 1, ["a", "bc"]),
    ],
)
async def test_prompts_are_answered_one_by_one(
    shared_sdk: openai.AsyncOpenAI, shared_world: World, prompt: object, n: int, prompts: list[str]
) -> None:
    completion = await shared_sdk.completions.create(model=MODEL, prompt=prompt, n=n)

    assert [choice.index for choice in completion.choices] == list(range(len(prompts)))
    assert sorted(bytes(call.start.prompt_token_ids).decode() for call in shared_world.engine.calls) == prompts


async def test_log_probabilities_are_lists_with_the_place_of_each_token(
    shared_sdk: openai.AsyncOpenAI, shared_world: World
) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        for letter in b"abc":
            entry = engine_pb2.TokenLogprobs(logprob=-0.5, top_token_ids=[letter], top_logprobs=[-0.5])
            await call.emit([letter], [entry])
        await call.finish()

    shared_world.engine.script = script
    completion = await shared_sdk.completions.create(model=MODEL, prompt="hi", logprobs=1)
    stream = await shared_sdk.completions.create(model=MODEL, prompt="hi", logprobs=1, stream=True)
    offsets = [offset async for chunk in stream for offset in getattr(chunk.choices[0].logprobs, "text_offset", ())]

    logprobs = completion.choices[0].logprobs
    assert (logprobs.tokens, logprobs.text_offset) == (["a", "b", "c"], [0, 1, 2])
    assert logprobs.top_logprobs == [{"a": -0.5}, {"b": -0.5}, {"c": -0.5}]
    assert offsets == [0, 1, 2]


@pytest.mark.parametrize(
    ("changed", "param", "code"),
    [
        ({"prompt": ""}, "prompt", "invalid_value"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": ["a", 1]}, "prompt[1]", "invalid_value"),
        ({"prompt": [258]}, "prompt", "invalid_value"),
        ({"prompt": "x" * 5000}, "prompt", "context_length_exceeded"),
        ({"prompt": list(b"x" * 5000)}, "prompt", "context_length_exceeded"),
        ({"prompt": ["a"] * 4, "n": 5}, "n", "invalid_value"),
        ({"best_of": 3}, "best_of", "unsupported_parameter"),
        ({"suffix": "x"}, "suffix", "unsupported_parameter"),
        ({"logprobs": 21}, "logprobs", "invalid_value"),
        ({"logprobs": True}, "logprobs", "invalid_value"),
        ({"max_tokens": 100_000}, "max_tokens", "context_length_exceeded"),
    ],
)
async def test_a_bad_parameter_is_named(
    shared_http: httpx2.AsyncClient, changed: dict[str, object], param: str, code: str
) -> None:
    response = await shared_http.post("/v1/completions", json={"model": MODEL, "prompt": "hi"} | changed)

    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, code)


async def test_a_prompt_is_tokenized_as_it_would_be_billed(shared_http: httpx2.AsyncClient) -> None:
    text = await shared_http.post("/tokenize", json={"model": MODEL, "prompt": "hi", "return_token_strs": True})
    chat = await shared_http.post("/tokenize", json={"model": MODEL, "messages": [{"role": "user", "content": "hi"}]})
    bare = await shared_http.post(
        "/tokenize",
        json={"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": False},
    )

    assert text.json() == {"count": 2, "max_model_len": 4096, "tokens": [104, 105], "token_strs": ["h", "i"]}
    assert bytes(chat.json()["tokens"]).decode() == "user: hi\nassistant: "
    assert bytes(bare.json()["tokens"]).decode() == "user: hi\n"


@pytest.mark.parametrize(
    ("body", "param"),
    [({}, "prompt"), ({"prompt": "a", "messages": []}, "messages"), ({"prompt": "x" * 50_000}, "prompt")],
)
async def test_a_bad_prompt_to_tokenize_is_named(
    shared_http: httpx2.AsyncClient, body: dict[str, object], param: str
) -> None:
    response = await shared_http.post("/tokenize", json={"model": MODEL} | body)

    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
