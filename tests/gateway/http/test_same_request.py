"""One request by every way in: the same text, usage, ledger row and limits, and the same refusals."""

import dataclasses
from collections import abc
from uuid import uuid4

import grpc
import pytest

from evenflow.engine.v1 import engine_pb2
from evenflow.inference.v1 import generation_pb2 as pb
from gateway.store.enums import Dimension
from gateway.store.records import ApiKeySettings, QuotaLimit, TeamSettings
from tests.gateway.fake_engine import END_TOKEN, MAX_REQUEST_TOKENS, FakeCall
from tests.gateway.http.clients import Clients
from tests.gateway.http.ways import Answer, Asked, every_way, quota_left
from tests.gateway.world import Tenant, World

END = "<|end|>"
WAYS = ("grpc", "http", "grpc stream", "http stream")
# In a period so long nothing comes back while a test runs.
PERIOD_MS = 365 * 86_400_000
LIMITS = (
    QuotaLimit(Dimension.REQUESTS, 100, PERIOD_MS, 100),
    QuotaLimit(Dimension.TOTAL_TOKENS, 3000, PERIOD_MS, 3000),
    QuotaLimit(Dimension.INPUT_TOKENS, 2000, PERIOD_MS, 2000),
    QuotaLimit(Dimension.CONCURRENCY, 2, None, None),
)
OWN = ("generation_id", "request_id", "finished_at", "recorded_at", "day", "key_id", "team_id", "organization_id")
CHAT = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="hi")])
MESSAGES = [{"role": "user", "content": "hi"}]
WAIT = "x-evenflow-max-queue-wait-ms"
CLASS = "x-evenflow-priority-class"
SAMPLING = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 3,
    "min_p": 0.125,
    "repetition_penalty": 1.5,
    "frequency_penalty": 0.25,
    "presence_penalty": -0.25,
    "seed": 7,
}


def chat(spec: dict[str, object] | None = None, headers: abc.Mapping[str, str] | None = None, **body: object) -> Asked:
    """A chat of at most eight tokens, unless told otherwise."""
    limits = {} if {"max_tokens", "max_completion_tokens"} & body.keys() else {"max_completion_tokens": 8}
    return Asked({"chat": CHAT, **(spec or {})}, {"messages": MESSAGES, **limits, **body}, headers=headers or {})


SERVED = {
    "a chat": chat(),
    "as much as there is room for": chat({"stopping": {"max_output_tokens": None}}, max_completion_tokens=None),
    "the older name of the length": chat({"stopping": {"max_output_tokens": 3}}, max_tokens=3),
    "every sampling parameter": chat({"sampling": pb.SamplingOptions(**SAMPLING)}, **SAMPLING),
    "nothing but the likeliest": chat({"sampling": pb.SamplingOptions(temperature=0)}, temperature=0),
    "a stop string": chat({"stopping": {"stop": ["lo"]}}, stop="lo"),
    "stop strings": chat({"stopping": {"stop": ["x", "el"]}}, stop=["x", "el"]),
    "stop tokens": chat({"stopping": {"stop_token_ids": [9], "ignore_eos": True}}, stop_token_ids=[9], ignore_eos=True),
    "log-probabilities": chat({"output": pb.OutputOptions(logprobs=2)}, logprobs=True, top_logprobs=2),
    "no alternatives": chat({"output": pb.OutputOptions(logprobs=0)}, logprobs=True),
    "a beam search": chat(
        {
            "beam_search": pb.BeamSearchOptions(width=3, num_returned=1, length_penalty=0.5, early_stopping=True),
            "output": pb.OutputOptions(logprobs=2),
        },
        beam_width=3,
        n=1,
        length_penalty=0.5,
        early_stopping=True,
        logprobs=True,
        top_logprobs=2,
    ),
    "labels": chat(
        {"admission": pb.AdmissionOptions(labels={"project": "x", "end_user": "al"})},
        metadata={"project": "x"},
        user="al",
    ),
    "a class": chat({"admission": pb.AdmissionOptions(priority_class="batch")}, service_tier="flex"),
    "a class in the headers": chat(headers={CLASS: "batch"}),
    "a bounded wait": chat(headers={WAIT: "1500"}),
    "turns and roles": chat(
        {
            "chat": pb.ChatPrompt(
                messages=[
                    pb.ChatMessage(role="system", content="be brief"),
                    pb.ChatMessage(role="assistant", content="é"),
                    pb.ChatMessage(role="user", content="a\nb"),
                ]
            )
        },
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "assistant", "content": "é"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ],
    ),
    "a text": Asked({"text": "hi"}, {"prompt": "hi", "max_tokens": 8}, "/v1/completions"),
    "token ids": Asked(
        {"token_ids": pb.TokenPrompt(ids=[104, 105])}, {"prompt": [104, 105], "max_tokens": 8}, "/v1/completions"
    ),
    "a text's log-probabilities": Asked(
        {"text": "hi", "output": pb.OutputOptions(logprobs=1)},
        {"prompt": "hi", "max_tokens": 8, "logprobs": 1},
        "/v1/completions",
    ),
    "an input": Asked(
        {
            "chat": pb.ChatPrompt(
                messages=[
                    pb.ChatMessage(role="system", content="be brief"),
                    pb.ChatMessage(role="user", content="hi"),
                ]
            )
        },
        {"input": "hi", "instructions": "be brief", "max_output_tokens": 8},
        "/v1/responses",
    ),
}


async def hello(call: FakeCall) -> None:
    """`hello` and an end, with log-probabilities where they were asked for, half of the prompt from the cache."""
    await call.accept()
    await call.admit()
    told = None
    if call.start.sampling.HasField("num_logprobs"):
        told = [engine_pb2.TokenLogprobs(logprob=-0.5, top_token_ids=[120], top_logprobs=[-1.0])] * 5
    end = None if told is None else [engine_pb2.TokenLogprobs(logprob=-0.1)]
    if call.start.HasField("beam_search"):
        await call.find(0, [*b"hello", END_TOKEN], -0.5, logprobs=None if told is None or end is None else told + end)
        call.num_emitted = 6 * call.start.beam_search.width
    else:
        await call.emit(b"hello", told)
        await call.emit([END_TOKEN], end)
    await call.finish(engine_pb2.FINISH_REASON_STOP, cached_tokens=len(call.start.prompt_token_ids) // 2)


async def made(world: World, limits: tuple[QuotaLimit, ...] = LIMITS, **options: object) -> dict[str, Tenant]:
    """A new tenant for each way, all of them alike."""
    team = TeamSettings(class_grants=("default", "batch"))
    slugs = {way: f"a{uuid4().hex}" for way in WAYS}
    return {way: await world.tenant(slug, limits, team=team, **options) for way, slug in slugs.items()}


async def rows_of(world: World, tenants: abc.Mapping[str, Tenant]) -> dict[str, list[dict[str, object]]]:
    """The ledger's rows of each way, without what tells tenants and moments apart."""
    rows = await world.usage_rows()
    return {
        way: [
            {name: value for name, value in row.items() if name not in OWN}
            for row in rows
            if row["team_id"] == tenant.team_id
        ]
        for way, tenant in tenants.items()
    }


def anonymous(answers: abc.Mapping[str, Answer], tenants: abc.Mapping[str, Tenant]) -> dict[str, Answer]:
    """Without the tenants' names."""
    return {
        way: dataclasses.replace(
            answer,
            violations=[
                (subject.replace(tenants[way].path.organization, "X"), *rest) for subject, *rest in answer.violations
            ],
        )
        for way, answer in answers.items()
    }


def with_text(answer: Answer) -> Answer:
    """Without the log-probabilities of tokens that are no text, which OpenAI's shape leaves out."""
    return dataclasses.replace(answer, logprobs=[entry for entry in answer.logprobs if entry[0] != END])


async def test_what_is_served_is_the_same_by_every_way(shared_world: World, shared_clients: Clients) -> None:
    shared_world.engine.script = hello
    for name, asked in SERVED.items():
        shared_world.engine.calls.clear()
        tenants = await made(shared_world)
        answers = await every_way(shared_world, tenants, shared_clients, asked)
        rows = await rows_of(shared_world, tenants)
        left = {way: await quota_left(tenant) for way, tenant in tenants.items()}

        first = answers["grpc"]
        assert (first.reason, first.usage[0] > 0, len(first.limits), len(rows["grpc"])) == ("", True, 6, 1), name
        for way in WAYS:
            assert with_text(answers[way]) == with_text(first), (name, way)
            assert rows[way] == rows["grpc"], (name, way)
            assert left[way] == left["grpc"], (name, way)
        asked_of_engine = dict(zip(WAYS, (call.start for call in shared_world.engine.calls), strict=True))
        for start in asked_of_engine.values():
            for own in ("generation_id", "usage_tag", "sender_id", "path", "cache_salt", "policy_revision"):
                start.ClearField(own)
            if "seed" not in asked.body:
                start.sampling.ClearField("seed")
        assert asked_of_engine["http"] == asked_of_engine["grpc"], name
        assert asked_of_engine["http stream"] == asked_of_engine["grpc stream"], name


REFUSED = {
    "INVALID_FIELD of a beam search": chat(
        {"beam_search": pb.BeamSearchOptions(width=2), "sampling": pb.SamplingOptions(temperature=1)},
        beam_width=2,
        temperature=1,
    ),
    "EXCEEDS_KV_POOL of all its beams": chat(
        {"beam_search": pb.BeamSearchOptions(width=16), "stopping": {"max_output_tokens": 127}},
        beam_width=16,
        max_tokens=127,
    ),
    "MODEL_NOT_FOUND": chat({"model": "gpt-9"}, model="gpt-9"),
    "INVALID_FIELD": chat({"sampling": pb.SamplingOptions(temperature=-1)}, temperature=-1),
    "INVALID_FIELD of the model": chat({"stopping": {"stop_token_ids": [9999]}}, stop_token_ids=[9999]),
    "INVALID_FIELD in the headers": chat(headers={WAIT: "soon"}),
    "CONTEXT_LENGTH": chat({"stopping": {"max_output_tokens": 100_000}}, max_completion_tokens=100_000),
    "EXCEEDS_KV_POOL": chat(
        {"stopping": {"max_output_tokens": MAX_REQUEST_TOKENS}}, max_completion_tokens=MAX_REQUEST_TOKENS
    ),
    "PRIORITY_CLASS_NOT_GRANTED": chat(
        {"admission": pb.AdmissionOptions(priority_class="priority")}, service_tier="priority"
    ),
    "REQUEST_EXCEEDS_LIMIT": Asked({"text": "x" * 2010}, {"prompt": "x" * 2010, "max_tokens": 8}, "/v1/completions"),
}


async def test_what_is_refused_is_refused_alike(shared_world: World, shared_clients: Clients) -> None:
    for name, asked in REFUSED.items():
        tenants = await made(shared_world)
        answers = anonymous(await every_way(shared_world, tenants, shared_clients, asked), tenants)

        assert answers["grpc"].reason == name.partition(" ")[0]
        assert answers == dict.fromkeys(WAYS, answers["grpc"]), name
        assert not any((await rows_of(shared_world, tenants)).values()), name
    assert not shared_world.engine.calls
    assert shared_world.book.num_reservations == 0


@pytest.mark.parametrize(
    "limit",
    [
        QuotaLimit(Dimension.REQUESTS, 1, PERIOD_MS, 1),
        QuotaLimit(Dimension.TOTAL_TOKENS, 40, PERIOD_MS, 40),
        QuotaLimit(Dimension.INPUT_TOKENS, 30, PERIOD_MS, 30),
        QuotaLimit(Dimension.OUTPUT_TOKENS, 10, PERIOD_MS, 10),
    ],
    ids=lambda limit: limit.dimension.value,
)
async def test_a_spent_limit_refuses_alike_and_tells_what_is_left(
    shared_world: World, shared_clients: Clients, limit: QuotaLimit
) -> None:
    tenants = await made(shared_world, (limit,))
    await every_way(shared_world, tenants, shared_clients, chat())
    await shared_world.settled()
    answers = anonymous(await every_way(shared_world, tenants, shared_clients, chat()), tenants)

    assert {answer.reason for answer in answers.values()} == {"RATE_LIMITED"}
    assert answers == dict.fromkeys(WAYS, answers["grpc"])
    assert len(answers["grpc"].limits) == 2
    assert answers["grpc"].is_worth_a_retry


async def drains(call: FakeCall) -> None:
    await call.refuse(grpc.StatusCode.UNAVAILABLE, "DRAINING")


async def fails(call: FakeCall) -> None:
    await call.accept()
    await call.admit()
    await call.emit(b"abc")
    await call.finish(engine_pb2.FINISH_REASON_ERROR, error="a bug")


async def waits_too_long(call: FakeCall) -> None:
    await call.accept()
    await call.finish(engine_pb2.FINISH_REASON_QUEUE_TIMEOUT)


async def is_late(call: FakeCall) -> None:
    await call.accept()
    await call.admit()
    await call.emit(b"abc")
    await call.finish(engine_pb2.FINISH_REASON_DEADLINE)


async def test_what_becomes_of_it_at_the_engine_is_told_and_billed_alike(world: World, clients: Clients) -> None:
    for script in (drains, fails, waits_too_long, is_late):
        world.engine.script = script
        tenants = await made(world)
        answers = await every_way(world, tenants, clients, chat())
        rows = await rows_of(world, tenants)
        left = {way: await quota_left(tenant) for way, tenant in tenants.items()}

        name = script.__name__
        assert answers["http"] == answers["grpc"], name
        assert answers["http stream"] == answers["grpc stream"], name
        assert answers["grpc"].reason == answers["grpc stream"].reason, name
        for way in WAYS:
            assert rows[way] == rows["grpc"], (name, way)
            assert left[way] == left["grpc"], (name, way)


async def test_a_key_that_may_not_is_refused_alike(shared_world: World, shared_clients: Clients) -> None:
    tenants = await made(shared_world, key=ApiKeySettings(model_grants=("another",)))
    answers = await every_way(shared_world, tenants, shared_clients, chat())

    assert {answer.reason for answer in answers.values()} == {"MODEL_NOT_FOUND"}
