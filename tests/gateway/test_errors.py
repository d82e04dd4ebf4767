"""Every refusal: its code, its reason, its details, and that it names the request."""

import asyncio

import grpc
import pytest
import structlog

from evenflow.engine.v1 import engine_pb2
from evenflow.inference.v1 import generation_pb2 as pb
from evenflow.inference.v1 import model_pb2
from gateway.store.enums import Dimension, State
from gateway.store.organizations import update_organization
from gateway.store.records import ApiKeySettings, OrganizationSettings, QuotaLimit, ResourcePath, TeamSettings
from gateway.store.teams import update_team
from tests.gateway.fake_engine import CONTEXT_TOKENS, MAX_REQUEST_TOKENS, FakeCall, Script, begun, deaf, stalled
from tests.gateway.world import CHANGE, Tenant, World, eventually, refused

REQUESTS = QuotaLimit(Dimension.REQUESTS, 60, 60_000, 1)
TOKENS = QuotaLimit(Dimension.TOTAL_TOKENS, 600, 60_000, 12)
CONCURRENCY = QuotaLimit(Dimension.CONCURRENCY, 1, None, None)


async def test_a_refusal_names_the_request_and_can_be_retried_by_the_transport(tenant: Tenant) -> None:
    call = tenant.generate(text="", metadata=(("x-request-id", "my-request-7"),))
    refusal = await refused(call)

    assert refusal.info.domain == "evenflow"
    assert refusal.request.request_id == "my-request-7"
    assert refusal.trailers["x-request-id"] == "my-request-7"
    # Initial metadata would tell the transport that the server has begun, and end its own retries.
    assert not dict(await call.initial_metadata())


async def test_the_request_id_comes_back_with_a_result(tenant: Tenant) -> None:
    given = tenant.generate(metadata=(("x-request-id", "my-request-8"),))
    await given
    made = tenant.generate(metadata=(("x-request-id", "not {plain} text"),))
    await made

    assert dict(await given.initial_metadata())["x-request-id"] == "my-request-8"
    assert len(dict(await made.initial_metadata())["x-request-id"]) == 36


async def test_an_empty_prompt(tenant: Tenant) -> None:
    empty = [{"text": ""}, {"text": None}, {"chat": pb.ChatPrompt()}, {"token_ids": pb.TokenPrompt()}]
    refusals = [await refused(tenant.generate(**prompt)) for prompt in empty]

    assert {(refusal.code, refusal.info.reason) for refusal in refusals} == {
        (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    }
    assert [refusal.fields for refusal in refusals] == [
        ["spec.text"],
        ["spec.prompt"],
        ["spec.chat.messages"],
        ["spec.token_ids.ids"],
    ]


async def test_prompt_and_output_longer_than_the_context(world: World, tenant: Tenant) -> None:
    refusal = await refused(tenant.generate(text="x" * 100, stopping={"max_output_tokens": CONTEXT_TOKENS}))

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "CONTEXT_LENGTH")
    assert refusal.fields == ["spec.stopping.max_output_tokens"]
    assert refusal.info.metadata["input_tokens"] == "100"
    assert not world.engine.calls


async def test_a_prompt_longer_than_the_context(tenant: Tenant) -> None:
    refusal = await refused(tenant.generate(text="é" * CONTEXT_TOKENS, stopping={"max_output_tokens": None}))

    assert refusal.info.reason == "CONTEXT_LENGTH"
    assert "x" * 20 not in refusal.message


async def test_a_prompt_of_ten_megabytes_is_refused_without_tokenizing_it(tenant: Tenant) -> None:
    refusal = await refused(tenant.generate(text="x" * 10_000_000))

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "CONTEXT_LENGTH")


async def test_a_message_over_the_size_limit(tenant: Tenant) -> None:
    refusal = await refused(tenant.generate(text="x" * (16 * 2**20)))

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "PROMPT_TOO_LARGE")


async def test_what_can_never_fit_the_pool(world: World, tenant: Tenant) -> None:
    refusal = await refused(tenant.generate(stopping={"max_output_tokens": MAX_REQUEST_TOKENS}))

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "EXCEEDS_KV_POOL")
    assert not world.engine.calls


async def test_a_refusal_of_the_engine_costs_nothing(world: World) -> None:
    async def script(call: FakeCall) -> None:
        await call.refuse(grpc.StatusCode.INVALID_ARGUMENT, "EXCEEDS_KV_POOL", "too much")

    world.engine.script = script
    tenant = await world.tenant(limits=(REQUESTS,))
    refusals = [await refused(tenant.stream()) for _ in range(2)]

    assert [refusal.info.reason for refusal in refusals] == ["EXCEEDS_KV_POOL"] * 2
    assert not world.ledger.num_waiting


async def test_a_model_that_nobody_serves(tenant: Tenant) -> None:
    refusal = await refused(tenant.generate(model="gpt-9"))
    got = await refused(tenant.models.GetModel(model_pb2.GetModelRequest(name="gpt-9"), metadata=tenant.metadata))

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
    assert got.info.reason == "MODEL_NOT_FOUND"


async def test_a_model_without_a_grant_looks_like_one_that_does_not_exist(world: World) -> None:
    tenant = await world.tenant(key=ApiKeySettings(model_grants=("gpt-9",)))

    hidden = await refused(tenant.generate(model="bytes"))
    absent = await refused(tenant.generate(model="nobody"))

    assert hidden.info.reason == absent.info.reason == "MODEL_NOT_FOUND"
    assert hidden.message.replace("bytes", "nobody") == absent.message


async def test_a_class_that_is_not_granted_to_team_or_key(world: World) -> None:
    tenant = await world.tenant(team=TeamSettings(class_grants=("batch", "priority")))
    path = ResourcePath("acme", "search")
    narrow = await world.key(path, tenant.organization_id, tenant.team_id, ApiKeySettings(class_grants=("batch",)))

    for caller, name in ((narrow, "priority"), (narrow, ""), (tenant, "no-such-class")):
        refusal = await refused(caller.generate(admission=pb.AdmissionOptions(priority_class=name)))
        assert (refusal.code, refusal.info.reason) == (
            grpc.StatusCode.PERMISSION_DENIED,
            "PRIORITY_CLASS_NOT_GRANTED",
        )
    await narrow.generate(admission=pb.AdmissionOptions(priority_class="batch"))
    await tenant.generate(admission=pb.AdmissionOptions(priority_class="priority"))


async def test_a_suspended_team_or_organization(world: World, tenant: Tenant) -> None:
    await update_team(world.database, CHANGE, tenant_path(tenant), lambda _: TeamSettings(state=State.SUSPENDED))
    await world.cache.refresh()
    of_team = await refused(tenant.generate())
    await update_organization(
        world.database, CHANGE, ResourcePath("acme"), lambda _: OrganizationSettings(state=State.SUSPENDED)
    )
    await world.cache.refresh()
    of_organization = await refused(tenant.generate())

    assert (of_team.code, of_team.info.reason) == (grpc.StatusCode.PERMISSION_DENIED, "TENANT_SUSPENDED")
    assert of_team.info.metadata["tenant"] == "organizations/acme/teams/search"
    assert of_organization.info.metadata["tenant"] == "organizations/acme"


async def test_a_used_up_limit_names_every_node_that_refuses_and_the_longest_wait(world: World) -> None:
    tenant = await world.tenant(limits=(REQUESTS, TOKENS))
    await world.limit(ResourcePath("acme"), (REQUESTS,))
    await tenant.generate()

    refusal = await refused(tenant.generate())

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
    violated = {(violation.subject, violation.quota_metric) for violation in refusal.quota.violations}
    assert violated == {
        ("organizations/acme/teams/search", "requests"),
        ("organizations/acme/teams/search", "total_tokens"),
        ("organizations/acme", "requests"),
    }
    wait_s = refusal.retry.retry_delay.ToNanoseconds() / 1e9
    assert 0 < wait_s <= 1
    assert int(refusal.trailers["grpc-retry-pushback-ms"]) >= wait_s * 1000


async def test_a_request_larger_than_the_burst_is_never_worth_a_retry(world: World) -> None:
    tenant = await world.tenant(limits=(TOKENS,))

    refusal = await refused(tenant.generate(stopping={"max_output_tokens": 11}))

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "REQUEST_EXCEEDS_LIMIT")
    assert refusal.quota.violations[0].quota_metric == "total_tokens"
    assert refusal.retry is None
    assert "grpc-retry-pushback-ms" not in refusal.trailers


async def test_a_full_concurrency_limit_frees_itself(world: World) -> None:
    world.engine.script = stalled
    tenant = await world.tenant(limits=(CONCURRENCY,))
    running = tenant.stream()
    await running.read()

    refusal = await refused(tenant.stream())
    running.cancel()
    await eventually(lambda: not world.live.num_live_requests)
    next_one = tenant.stream()

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
    assert refusal.quota.violations[0].quota_metric == "concurrency"
    assert refusal.retry.retry_delay.ToSeconds() == 1
    assert (await next_one.read()).HasField("admission")
    next_one.cancel()


async def test_a_wait_in_the_queue_that_is_too_long(world: World, tenant: Tenant) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.finish(engine_pb2.FINISH_REASON_QUEUE_TIMEOUT)

    world.engine.script = script
    refusal = await refused(tenant.generate())

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_TIMEOUT")
    assert refusal.retry is None


async def test_a_deadline_is_an_error_with_the_partial_usage_unless_the_caller_wants_what_there_is(
    world: World, tenant: Tenant
) -> None:
    async def script(call: FakeCall) -> None:
        assert 0 < call.start.deadline_ns < 60e9
        await call.accept()
        await call.admit()
        await call.emit(b"abc")
        await call.finish(engine_pb2.FINISH_REASON_DEADLINE)

    world.engine.script = script
    refusal = await refused(tenant.generate(timeout=60))
    partial = await tenant.generate(timeout=60, admission=pb.AdmissionOptions(on_deadline=pb.DEADLINE_ACTION_PARTIAL))

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED")
    assert refusal.info.metadata == {"input_tokens": "2", "output_tokens": "3"}
    assert partial.outputs[0].text == "abc"
    assert partial.outputs[0].finish_reason == pb.FINISH_REASON_DEADLINE


async def test_an_engine_that_misses_the_deadline_does_not_keep_the_answer(world: World, tenant: Tenant) -> None:
    world.engine.script = deaf
    partial = await tenant.generate(timeout=1.0, admission=pb.AdmissionOptions(on_deadline=pb.DEADLINE_ACTION_PARTIAL))

    assert partial.outputs[0].text == "abc"
    assert partial.outputs[0].finish_reason == pb.FINISH_REASON_DEADLINE
    await (await world.engine.call()).ended.wait()
    assert (await world.engine.call()).is_aborted


async def fail_on_the_request(call: FakeCall) -> None:
    await call.accept()
    await call.finish(engine_pb2.FINISH_REASON_ERROR, error="secret of the engine")


async def fail_in_the_servicer(call: FakeCall) -> None:
    raise LookupError("secret of the engine")


async def refuse_as_known(call: FakeCall) -> None:
    await call.refuse(grpc.StatusCode.ALREADY_EXISTS, "DUPLICATE_GENERATION", "secret of the engine")


async def refuse_the_version(call: FakeCall) -> None:
    await call.refuse(grpc.StatusCode.FAILED_PRECONDITION, "PROTOCOL_VERSION", "secret of the engine")


@pytest.mark.parametrize("script", [fail_on_the_request, fail_in_the_servicer, refuse_as_known, refuse_the_version])
async def test_what_the_engine_says_of_its_failure_is_in_the_log_and_nowhere_else(
    world: World, tenant: Tenant, script: Script
) -> None:
    world.engine.script = script
    with structlog.testing.capture_logs() as lines:
        refusal = await refused(tenant.stream())

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert refusal.message == "internal error"
    assert refusal.request.request_id
    assert not any(b"secret" in value for value in refusal.trailers.values() if isinstance(value, bytes))
    (line,) = (line for line in lines if line["event"] == "request finished")
    assert "secret of the engine" in line["cause"]


async def test_a_bug_is_told_by_its_request_id_only(
    world: World, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret internals")

    monkeypatch.setattr(world.live._admission, "admit", broken)
    refusal = await refused(tenant.generate())

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert "secret" not in refusal.message
    assert refusal.request.request_id


async def test_a_client_that_leaves_hears_nothing_and_the_engine_stops(world: World, tenant: Tenant) -> None:
    world.engine.script = begun
    call = tenant.generate()
    engine_call = await world.engine.call()
    await eventually(lambda: engine_call.num_emitted == 3)
    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    control = await engine_call.control("cancel")
    assert control.cancel.reason == engine_pb2.CANCEL_REASON_CLIENT


def tenant_path(tenant: Tenant) -> ResourcePath:
    return ResourcePath(tenant.path.organization, tenant.path.team)
