"""One trace per request across gateway and engine, received over OTLP, however the request ends."""

import asyncio
import json
from collections import abc
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from engine.core.config import PreemptionChoice
from evenflow.inference.v1 import generation_pb2 as pb
from gateway.semconv import Semconv
from gateway.store.db import Database
from gateway.store.enums import Dimension
from gateway.store.records import QuotaLimit
from tests.gateway.calls import rest_of
from tests.gateway.world import Tenant, eventually, refused
from tests.ledger.engine_process import FAKE_MODEL
from tests.telemetry.collector import Collector, Received, collecting
from tests.telemetry.traced import PARENT_ID, TRACED, Traced, export_to, require_known_names, small_pool, traced

SERVICE = "evenflow.inference.v1.GenerationService"
GENERATE, STREAM, CALL = f"{SERVICE}/Generate", f"{SERVICE}/StreamGenerate", f"text_completion {FAKE_MODEL.name}"
AUTH, ADMISSION, SETTLE, TEXT = "evenflow.auth", "evenflow.admission", "evenflow.settle", "evenflow.detokenize"
QUEUE, PREFILL, DECODE, PREEMPTED = "evenflow.queue", "evenflow.prefill", "evenflow.decode", "evenflow.preempted"
WHOLE = (AUTH, ADMISSION, CALL, QUEUE, PREFILL, DECODE, TEXT, SETTLE)
EXACTLY = {"max_output_tokens": 8, "ignore_eos": True}
SECRET = "the-secret-recipe"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> abc.Iterator[Collector]:
    with collecting() as (collector, url):
        export_to(url, monkeypatch)
        yield collector


@pytest_asyncio.fixture
async def live(
    request: pytest.FixtureRequest, database: Database, database_url: str, collector: Collector, tmp_path: Path
) -> abc.AsyncIterator[Traced]:
    """Gateway and engine; a test's parameter has options."""
    options = getattr(request, "param", {})
    async with traced(database, database_url, collector, tmp_path, **options) as live:
        yield live


@pytest_asyncio.fixture
async def tenant(live: Traced) -> Tenant:
    return await live.world.tenant()


async def test_a_request_is_one_tree_across_both_processes(live: Traced, tenant: Tenant) -> None:
    response = await tenant.generate(metadata=TRACED, stopping=EXACTLY)
    tree = await live.tree(GENERATE, *WHOLE)

    server, call = tree.one(GENERATE), tree.one(CALL)
    assert server.parent_id == PARENT_ID
    assert tree.children(server) == {AUTH, ADMISSION, CALL, TEXT, SETTLE}
    assert tree.children(call) == {QUEUE, PREFILL, DECODE}
    assert {span.service for span in tree.spans} == {"evenflow-gateway", "evenflow-engine"}
    assert {span.attributes["evenflow.generation_id"] for span in tree.spans if span.service == "evenflow-engine"} == {
        response.generation_id
    }
    assert not [span.name for span in tree.spans if span.is_error]


async def test_its_spans_say_what_was_asked_waited_for_computed_and_paid(live: Traced, tenant: Tenant) -> None:
    await tenant.generate(metadata=TRACED, stopping=EXACTLY)
    tree = await live.tree(GENERATE, *WHOLE)

    call, queue, text, settle = (tree.one(name).attributes for name in (CALL, QUEUE, TEXT, SETTLE))
    assert (call["gen_ai.usage.input_tokens"], call["gen_ai.usage.output_tokens"]) == (2, 8)
    assert (call["gen_ai.request.model"], call["gen_ai.response.finish_reasons"]) == (FAKE_MODEL.name, ["length"])
    assert call["gen_ai.latency.e2e"] >= call["gen_ai.latency.time_to_first_token"] > 0
    assert (queue["evenflow.queue.depth_at_entry"], queue["evenflow.queue.dispatch_reason"]) == (0, "alone")
    assert (queue["evenflow.priority_class"], queue["evenflow.weight"]) == ("default", 1.0)
    assert tree.one(PREFILL).attributes["evenflow.prefill.chunks"] == 1
    assert tree.one(DECODE).attributes["evenflow.output_tokens"] == 8
    assert (text["evenflow.detokenize.characters"], settle["evenflow.billed_tokens"]) == (8, 10)
    assert (settle["evenflow.refunded_tokens"], settle["evenflow.ledger"]) == (0, "db")


async def test_a_step_of_the_engine_is_linked_to_the_requests_that_it_computed(live: Traced, tenant: Tenant) -> None:
    await tenant.generate(metadata=TRACED, stopping=EXACTLY)
    tree = await live.tree(GENERATE, *WHOLE)

    (step,) = [span for span in live.collector.spans if span.name == "evenflow.step"]  # one in ten seconds
    require_known_names([step])
    assert (step.trace_id != tree.one(CALL).trace_id, step.parent_id) == (True, "")
    assert step.links == [tree.one(CALL).span_id]
    assert (step.attributes["evenflow.sequences"], step.attributes["evenflow.tokens"]) == (1, 2)


async def test_a_stream_has_the_same_tree_and_the_moment_of_its_first_token(live: Traced, tenant: Tenant) -> None:
    async for _ in tenant.stream(metadata=TRACED, stopping=EXACTLY):
        pass
    tree = await live.tree(STREAM, *WHOLE)

    call = tree.one(CALL)
    assert call.attributes["gen_ai.request.stream"] is True
    assert call.start < call.events["evenflow.first_token"] <= call.end


async def test_a_cancelled_stream_ends_every_span(live: Traced, tenant: Tenant) -> None:
    live.runner.hold()
    live.runner.allow(2)
    stream = tenant.stream(metadata=TRACED, stopping=EXACTLY | {"max_output_tokens": 400})
    while not (await stream.read()).HasField("token_delta"):
        pass
    stream.cancel()
    await live.runner.step_until(live.world.settled())
    tree = await live.tree(STREAM, *WHOLE)

    server, call = tree.one(STREAM), tree.one(CALL)
    assert (server.is_error, server.attributes["rpc.response.status_code"]) == (True, "CANCELLED")
    assert call.attributes["gen_ai.response.finish_reasons"] == ["cancelled"]
    assert "evenflow.cancelled" in call.events
    assert tree.one(DECODE).attributes["evenflow.finish_reason"] == "cancelled"


async def test_a_denied_request_says_which_limit_and_for_how_long(live: Traced) -> None:
    limit = QuotaLimit(Dimension.TOTAL_TOKENS, 12, 60_000, 12)
    tenant = await live.world.tenant(limits=(limit,))
    await tenant.generate(stopping=EXACTLY)
    refusal = await refused(tenant.generate(metadata=TRACED, stopping=EXACTLY))
    tree = await live.tree(GENERATE, AUTH, ADMISSION)

    admission = tree.one(ADMISSION)
    assert refusal.info.reason == "RATE_LIMITED"
    assert tree.children(tree.one(GENERATE)) == {AUTH, ADMISSION}
    assert (admission.is_error, admission.attributes["error.type"]) == (True, "RATE_LIMITED")
    assert admission.attributes["evenflow.admission.outcome"] == "denied"
    assert admission.attributes["evenflow.admission.binding_limit"].endswith("teams/search total_tokens")
    assert 0 < admission.attributes["evenflow.admission.retry_after_s"] <= 60


async def test_an_admitted_request_says_which_limit_is_the_nearest(live: Traced) -> None:
    limits = (QuotaLimit(Dimension.REQUESTS, 1000, 60_000, 1000), QuotaLimit(Dimension.TOTAL_TOKENS, 40, 60_000, 40))
    tenant = await live.world.tenant(limits=limits)
    await tenant.generate(metadata=TRACED, stopping=EXACTLY)
    admission = (await live.tree(GENERATE, ADMISSION)).one(ADMISSION).attributes

    assert (admission["evenflow.admission.outcome"], admission["evenflow.admission.limits"]) == ("admitted", 2)
    assert admission["evenflow.admission.binding_limit"].endswith("teams/search total_tokens")
    assert admission["evenflow.admission.binding_limit.left"] < 40
    assert admission["evenflow.admission.lease_miss"] is True


@pytest.mark.parametrize(
    ("live", "moves"),
    [
        ({"config": small_pool(num_host_blocks=16, preemption_mode=PreemptionChoice.SWAP)}, ["swap_out", "swap_in"]),
        ({"config": small_pool(preemption_mode=PreemptionChoice.RECOMPUTE)}, ["recompute"]),
    ],
    indirect=["live"],
)
async def test_a_preempted_request_says_why_for_whom_and_how_many_bytes_it_moved(
    live: Traced, tenant: Tenant, moves: list[str]
) -> None:
    stopping = {"max_output_tokens": 18, "ignore_eos": True}
    live.runner.hold()
    both = [asyncio.ensure_future(tenant.generate(metadata=TRACED, stopping=stopping)) for _ in range(2)]
    await eventually(lambda: live.world.live.num_live_requests == 2)
    await live.runner.step_until(asyncio.gather(*both))
    await live.world.settled()
    tree = await live.tree(*2 * (GENERATE, *WHOLE), DECODE, PREEMPTED, *(f"evenflow.{move}" for move in moves))

    preempted = next(span for span in tree.named(PREEMPTED) if span.attributes["evenflow.preemption.mode"] != "pause")
    (other,) = {request.result().generation_id for request in both} - {preempted.attributes["evenflow.generation_id"]}
    # Who needs the block that nobody has depends on who came first: it may be the victim's own next token.
    assert preempted.attributes.get("evenflow.preemption.victim_of", other) == other
    assert preempted.attributes["evenflow.preemption.reason"] == "kv_pressure"
    assert tree.children(preempted) == {f"evenflow.{move}" for move in moves}
    inner = [span for move in moves for span in tree.named(f"evenflow.{move}") if span.parent_id == preempted.span_id]
    block_bytes = small_pool().block_size * FAKE_MODEL.kv_bytes_per_token
    for span in inner:
        assert span.attributes["evenflow.bytes"] == span.attributes["evenflow.blocks"] * block_bytes > 0
        assert preempted.start <= span.start
    assert [span.start for span in inner] == sorted(span.start for span in inner)
    decodes = [span for span in tree.named(DECODE) if span.parent_id == preempted.parent_id]
    assert len(decodes) >= 2
    assert sum(span.attributes["evenflow.output_tokens"] for span in decodes) == 18


async def test_an_engine_that_is_lost_is_an_error_that_is_settled(live: Traced, tenant: Tenant) -> None:
    live.runner.hold()
    live.runner.allow(2)
    stream = tenant.stream(metadata=TRACED, stopping=EXACTLY)
    while not (await stream.read()).HasField("token_delta"):
        pass
    await live.server._server.stop(None)
    await refused(rest_of(stream))
    tree = await live.tree(STREAM, AUTH, ADMISSION, CALL, TEXT, SETTLE)

    for name in (STREAM, CALL):
        assert (tree.one(name).is_error, tree.one(name).attributes["error.type"]) == (True, "ENGINE_LOST")
    assert tree.one(SETTLE).attributes["evenflow.billed_tokens"] > 2


async def test_a_deadline_that_passes_in_the_queue_is_told_by_both_processes(live: Traced, tenant: Tenant) -> None:
    live.runner.hold()
    with pytest.raises(grpc.aio.AioRpcError):
        await tenant.generate(metadata=TRACED, stopping=EXACTLY, timeout=0.5)
    live.runner.release()
    tree = await live.tree(GENERATE, CALL, SETTLE, QUEUE)

    call = tree.one(CALL)
    assert call.attributes["gen_ai.response.finish_reasons"] == ["deadline"]
    assert call.attributes["error.type"] == "DEADLINE_EXCEEDED"
    assert "evenflow.deadline" in call.events


@pytest.mark.parametrize(
    "live",
    [
        {"telemetry_content": True, "telemetry_semconv": dialect}
        for dialect in (Semconv.GEN_AI_V0_1, Semconv.OPENINFERENCE)
    ],
    indirect=True,
)
async def test_prompts_and_outputs_are_told_where_a_setting_allows_it(live: Traced, tenant: Tenant) -> None:
    chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="system", content="short"), *user(SECRET)])
    response = await tenant.generate(metadata=TRACED, chat=chat, stopping=EXACTLY)
    call = await call_of(live)

    if live.world.options["telemetry_semconv"] is Semconv.OPENINFERENCE:
        assert call.attributes["llm.input_messages.1.message.content"] == SECRET
        assert call.attributes["llm.output_messages.0.message.content"] == response.outputs[0].text
        return
    system, asked = json.loads(call.attributes["gen_ai.input.messages"])
    (answered,) = json.loads(call.attributes["gen_ai.output.messages"])
    assert (system["role"], asked["role"], answered["role"]) == ("system", "user", "assistant")
    assert asked["parts"] == [{"type": "text", "content": SECRET}]
    assert answered["parts"] == [{"type": "text", "content": response.outputs[0].text}]
    assert answered["finish_reason"] == "length"


@pytest.mark.parametrize(
    "live", [{"telemetry_semconv": dialect} for dialect in (Semconv.GEN_AI_V0_1, Semconv.NONE)], indirect=True
)
async def test_whatever_the_words_no_trace_has_text_or_keys_unless_a_setting_allows_it(
    live: Traced, tenant: Tenant
) -> None:
    response = await tenant.generate(metadata=TRACED, chat=pb.ChatPrompt(messages=user(SECRET)), stopping=EXACTLY)
    call = await call_of(live)

    told = str(live.collector.spans)
    assert SECRET not in told
    assert tenant.key not in told
    assert response.outputs[0].text not in [
        value for span in live.collector.spans for value in span.attributes.values()
    ]
    assert not [name for name in call.attributes if "messages" in name or name.endswith(".value")]
    words = {name.split(".")[0] for name in call.attributes} - {"evenflow", "server"}
    assert words == ({"gen_ai"} if live.world.options["telemetry_semconv"] is Semconv.GEN_AI_V0_1 else set())


def test_a_name_that_is_in_neither_module_is_found() -> None:
    span = Received("s", "evenflow.queue", "", "", "", 1, 0, 1, {"evenflow.invented": 1}, {}, is_error=False)
    with pytest.raises(AssertionError, match=r"evenflow\.invented"):
        require_known_names([span])


def user(text: str) -> list[pb.ChatMessage]:
    return [pb.ChatMessage(role="user", content=text)]


async def call_of(live: Traced) -> Received:
    """The span of the one generation, by whatever name."""
    tree = await live.tree(GENERATE, SETTLE, QUEUE)
    (call,) = [span for span in tree.spans if QUEUE in tree.children(span)]
    return call
