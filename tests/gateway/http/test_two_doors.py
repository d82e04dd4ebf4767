"""The same request through gRPC and through HTTP: the same text, usage, ledger row, limits and idempotency."""

import asyncio
from uuid import uuid4

import grpc
import httpx2
import openai

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.store.enums import Dimension
from gateway.store.records import QuotaLimit
from tests.gateway.fake_engine import MODEL, FakeCall, begun
from tests.gateway.http.clients import Clients
from tests.gateway.world import Tenant, World, eventually, refused

PATH = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="hi")])
OWN = ("generation_id", "request_id", "finished_at", "recorded_at", "day", "key_id", "team_id", "organization_id")


async def echo(call: FakeCall) -> None:
    """The prompt, as the engine got it."""
    await call.accept()
    await call.admit()
    await call.emit(list(call.start.prompt_token_ids))
    await call.finish()


async def get_lost(call: FakeCall) -> None:
    """In the middle of the output."""
    await call.accept()
    await call.admit()
    await call.emit(b"abc")
    await call.refuse(grpc.StatusCode.UNAVAILABLE, "DRAINING")


async def test_text_usage_ledger_and_what_the_engine_is_asked_are_the_same(
    shared_world: World, own_tenant: Tenant, own_sdk: openai.AsyncOpenAI
) -> None:
    shared_world.engine.script = echo
    sampling = pb.SamplingOptions(temperature=0.5, top_p=0.9, seed=7)
    labels = {"project": "x"}
    over_grpc = await own_tenant.generate(
        model=MODEL, chat=CHAT, sampling=sampling, admission=pb.AdmissionOptions(labels=labels)
    )
    over_http = await own_sdk.chat.completions.create(
        model=MODEL, messages=MESSAGES, temperature=0.5, top_p=0.9, seed=7, max_tokens=8, metadata=labels
    )

    assert over_http.choices[0].message.content == over_grpc.outputs[0].text == "user: hi\nassistant: "
    assert over_http.usage.prompt_tokens == over_grpc.usage.input_tokens
    assert over_http.usage.total_tokens == over_grpc.usage.billed_tokens
    rows = [
        {name: value for name, value in row.items() if name not in OWN}
        for row in await shared_world.usage_rows(own_tenant)
    ]
    assert rows[0] == rows[1]
    first, second = (call.start for call in shared_world.engine.calls)
    for start in (first, second):
        for own in ("generation_id", "usage_tag"):
            start.ClearField(own)
    assert first == second


async def test_one_limit_governs_both(shared_world: World, shared_clients: Clients) -> None:
    tenant = await shared_world.tenant(limits=(QuotaLimit(Dimension.REQUESTS, 1, 3_600_000, 1),))
    assert (
        await shared_clients.http(tenant).post(PATH, json={"model": MODEL, "messages": MESSAGES})
    ).status_code == 200

    over_grpc = await refused(tenant.generate())
    over_http = await shared_clients.http(tenant).post(PATH, json={"model": MODEL, "messages": MESSAGES})

    error = over_http.json()["error"]
    assert over_grpc.info.reason == error["reason"] == "RATE_LIMITED"
    assert over_grpc.quota.violations[0].subject == error["violations"][0]["subject"]
    told_s = int(over_http.headers["retry-after-ms"]) / 1000
    assert abs(over_grpc.retry.retry_delay.ToMilliseconds() / 1000 - told_s) < 5


async def test_an_idempotency_key_is_a_request_id_at_both_doors(
    shared_world: World, own_tenant: Tenant, own_http: httpx2.AsyncClient
) -> None:
    key = str(uuid4())
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8}
    over_http = await own_http.post(PATH, json=body, headers={"idempotency-key": key})
    again = await own_http.post(PATH, json=body, headers={"idempotency-key": key})
    other = await own_http.post(PATH, json=body | {"max_tokens": 9}, headers={"idempotency-key": key})
    over_grpc = await own_tenant.generate(model=MODEL, chat=CHAT, request_id=key)

    assert over_grpc.replayed
    assert over_http.json()["service_tier"] == again.json()["service_tier"] == "default"
    assert over_http.json()["id"] == again.json()["id"] == f"chatcmpl-{over_grpc.generation_id}"
    assert (other.status_code, other.json()["error"]["reason"]) == (409, "REQUEST_ID_REUSED")
    assert other.headers["x-should-retry"] == "false"
    assert len(await shared_world.usage_rows(own_tenant)) == 1


async def test_who_repeats_what_failed_and_was_billed_is_told_that_no_wait_helps(
    shared_world: World, own_tenant: Tenant, own_http: httpx2.AsyncClient
) -> None:
    shared_world.engine.script = get_lost
    key = str(uuid4())
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8}
    first, again = [await own_http.post(PATH, json=body, headers={"idempotency-key": key}) for _ in range(2)]
    over_grpc = await refused(own_tenant.generate(model=MODEL, chat=CHAT, request_id=key))

    assert first.json()["error"] | {"request_id": ""} == again.json()["error"] | {"request_id": ""}
    assert (first.status_code, first.json()["error"]["reason"]) == (503, "ENGINE_LOST")
    assert ("retry-after" in first.headers, "x-should-retry" in first.headers) == (True, False)
    assert ("retry-after" in again.headers, again.headers["x-should-retry"]) == (False, "false")
    assert (over_grpc.info.reason, over_grpc.retry) == ("ENGINE_LOST", None)
    assert len(await shared_world.usage_rows(own_tenant)) == 1


async def test_a_key_of_any_form_holds_and_covers_every_choice(
    shared_world: World, own_http: httpx2.AsyncClient, own_tenant: Tenant
) -> None:
    body = {"model": MODEL, "messages": MESSAGES, "n": 2}
    headers = {"idempotency-key": "order 66, first try"}
    first, again = await asyncio.gather(*(own_http.post(PATH, json=body, headers=headers) for _ in range(2)))

    assert [response.status_code for response in (first, again)] == [200, 200]
    assert first.json()["choices"] == again.json()["choices"]
    assert len(await shared_world.usage_rows(own_tenant)) == 2


async def test_an_output_that_is_no_longer_kept_is_not_made_again(
    world: World, second_world: World, tenant: Tenant, http: httpx2.AsyncClient
) -> None:
    key = str(uuid4())
    await second_world.cache.refresh()
    elsewhere = Tenant(**{**vars(tenant), "channel": second_world.channel()})
    await elsewhere.generate(model=MODEL, chat=CHAT, request_id=key)
    await second_world.usage_rows()
    await eventually(lambda: not second_world.live._request_ids.num_waiting)

    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8}
    answer = await http.post(PATH, json=body, headers={"idempotency-key": key})

    error = answer.json()["error"]
    assert (answer.status_code, error["reason"], error["metadata"]["output_tokens"]) == (409, "OUTPUT_NOT_KEPT", "6")
    assert len(world.engine.calls) == 1


async def test_beside_a_choice_whose_output_is_gone_none_is_started(
    world: World, second_world: World, tenant: Tenant, http: httpx2.AsyncClient
) -> None:
    key = str(uuid4())
    await second_world.cache.refresh()
    elsewhere = Tenant(**{**vars(tenant), "channel": second_world.channel()})
    await elsewhere.generate(model=MODEL, chat=CHAT, request_id=key)
    await second_world.usage_rows()
    await eventually(lambda: not second_world.live._request_ids.num_waiting)

    world.engine.script = begun
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8, "n": 2}
    answer = await http.post(PATH, json=body, headers={"idempotency-key": key})

    assert (answer.status_code, answer.json()["error"]["reason"]) == (409, "OUTPUT_NOT_KEPT")
    assert (world.live.num_live_requests, world.book.num_reservations, len(world.engine.calls)) == (0, 0, 1)
    assert len(await world.usage_rows()) == 1


async def test_a_generation_of_one_door_is_cancelled_through_the_other(
    shared_world: World, own_tenant: Tenant, own_sdk: openai.AsyncOpenAI
) -> None:
    shared_world.engine.script = begun
    stream = await own_sdk.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    first = await anext(aiter(stream))
    await own_tenant.cancel(first.id.removeprefix("chatcmpl-"))
    chunks = [chunk async for chunk in stream]

    assert chunks[-1].choices[0].finish_reason == "length"
    assert chunks[-1].choices[0].stop_reason == "cancelled"


async def test_what_is_left_of_a_limit_is_told_with_each_answer(shared_world: World, shared_clients: Clients) -> None:
    day_ms = 86_400_000  # one request in 24 minutes: none comes back while the test runs
    limits = (QuotaLimit(Dimension.REQUESTS, 60, day_ms, 10), QuotaLimit(Dimension.TOTAL_TOKENS, 6000, day_ms, 1000))
    http = shared_clients.http(await shared_world.tenant(limits=limits))
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8}
    whole = await http.post(PATH, json=body)
    await shared_world.settled()
    stream = await http.post(PATH, json=body | {"stream": True})

    told = [
        {name[12:]: value for name, value in each.headers.items() if name.startswith("x-ratelimit-")}
        for each in (whole, stream)
    ]
    assert [(each["limit-requests"], each["remaining-requests"]) for each in told] == [("60", "9"), ("60", "8")]
    assert told[0]["reset-requests"] in ("24m0s", *(f"23m{second}s" for second in range(60)))
    assert told[1]["reset-requests"] in ("48m0s", *(f"47m{second}s" for second in range(60)))
    assert [each["limit-tokens"] for each in told] == ["6000", "6000"]
    # The whole of what the first may use was held: its prompt of 20 tokens and eight more.
    assert int(told[0]["remaining-tokens"]) == 1000 - 28
