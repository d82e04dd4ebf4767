"""Every refusal: its code, its reason, its details, and that it names the request."""

import asyncio

import grpc
import pytest
import structlog

from evenflow.engine.v1 import engine_pb2
from evenflow.inference.v1 import generation_pb2 as pb
from evenflow.inference.v1 import model_pb2
from gateway.errors_requests import ModelNotFoundError
from gateway.store.enums import Dimension, State
from gateway.store.organizations import update_organization
from gateway.store.records import ApiKeySettings, OrganizationSettings, QuotaLimit, ResourcePath, TeamSettings
from gateway.store.teams import update_team
from tests.gateway.fake_engine import CONTEXT_TOKENS, MAX_REQUEST_TOKENS, FakeCall, Script, begun, deaf, stalled
from tests.gateway.world import CHANGE, Tenant, World, eventually, refused

HOUR_MS = 3_600_000
# One a minute and one in six seconds: no test takes so long that what it used is there again.
REQUESTS = QuotaLimit(Dimension.REQUESTS, 60, HOUR_MS, 1)
TOKENS = QuotaLimit(Dimension.TOTAL_TOKENS, 600, HOUR_MS, 12)
CONCURRENCY = QuotaLimit(Dimension.CONCURRENCY, 1, None, None)


async def test_a_refusal_names_the_request_and_can_be_retried_by_the_transport(shared_tenant: Tenant) -> None:
    call = shared_tenant.generate(text="", metadata=(("x-request-id", "my-request-7"),))
    refusal = await refused(call)

    assert refusal.info.domain == "evenflow"
    assert refusal.request.request_id == "my-request-7"
    assert refusal.trailers["x-request-id"] == "my-request-7"
    # Initial metadata would tell the transport that the server has begun, and end its own retries.
    assert not dict(await call.initial_metadata())


async def test_the_request_id_comes_back_with_a_result(shared_tenant: Tenant) -> None:
    given = shared_tenant.generate(metadata=(("x-request-id", "my-request-8"),))
    await given
    made = shared_tenant.generate(metadata=(("x-request-id", "not {plain} text"),))
    await made

    assert dict(await given.initial_metadata())["x-request-id"] == "my-request-8"
    assert len(dict(await made.initial_metadata())["x-request-id"]) == 36


async def test_an_empty_prompt(shared_tenant: Tenant) -> None:
    empty = [{"text": ""}, {"text": None}, {"chat": pb.ChatPrompt()}, {"token_ids": pb.TokenPrompt()}]
    refusals = [await refused(shared_tenant.generate(**prompt)) for prompt in empty]

    assert {(refusal.code, refusal.info.reason) for refusal in refusals} == {
        (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    }
    assert [refusal.fields for refusal in refusals] == [
        ["spec.text"],
        ["spec.prompt"],
        ["spec.chat.messages"],
        ["spec.token_ids.ids"],
    ]


async def test_prompt_and_output_longer_than_the_context(shared_world: World, shared_tenant: Tenant) -> None:
    refusal = await refused(shared_tenant.generate(text="x" * 100, stopping={"max_output_tokens": CONTEXT_TOKENS}))

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "CONTEXT_LENGTH")
    assert refusal.fields == ["spec.stopping.max_output_tokens"]
    assert refusal.info.metadata["input_tokens"] == "100"
    assert not shared_world.engine.calls


async def test_a_prompt_longer_than_the_context(shared_tenant: Tenant) -> None:
    refusal = await refused(shared_tenant.generate(text="é" * CONTEXT_TOKENS, stopping={"max_output_tokens": None}))

    assert refusal.info.reason == "CONTEXT_LENGTH"
    assert "x" * 20 not in refusal.message


async def test_a_prompt_of_ten_megabytes_is_refused_without_tokenizing_it(shared_tenant: Tenant) -> None:
    refusal = await refused(shared_tenant.generate(text="x" * 10_000_000))

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "CONTEXT_LENGTH")


async def test_a_message_over_the_size_limit(shared_tenant: Tenant) -> None:
    refusal = await refused(shared_tenant.generate(text="x" * (16 * 2**20)))

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "PROMPT_TOO_LARGE")


async def test_what_can_never_fit_the_pool(shared_world: World, shared_tenant: Tenant) -> None:
    refusal = await refused(shared_tenant.generate(stopping={"max_output_tokens": MAX_REQUEST_TOKENS}))

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "EXCEEDS_KV_POOL")
    assert not shared_world.engine.calls


async def test_a_refusal_of_the_engine_costs_nothing(world: World) -> None:
    async def script(call: FakeCall) -> None:
        await call.refuse(grpc.StatusCode.INVALID_ARGUMENT, "EXCEEDS_KV_POOL", "too much")

    world.engine.script = script
    tenant = await world.tenant(limits=(REQUESTS,))
    refusals = [await refused(tenant.stream()) for _ in range(2)]

    assert [refusal.info.reason for refusal in refusals] == ["EXCEEDS_KV_POOL"] * 2
    assert not world.ledger.num_waiting


async def test_a_model_that_nobody_serves(shared_tenant: Tenant) -> None:
    refusal = await refused(shared_tenant.generate(model="gpt-9"))
    got = await refused(
        shared_tenant.models.GetModel(model_pb2.GetModelRequest(name="gpt-9"), metadata=shared_tenant.metadata)
    )

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
    assert got.info.reason == "MODEL_NOT_FOUND"
    assert refusal.message == got.message == "model 'gpt-9' was not found: this key may use bytes"


def test_of_many_models_that_may_be_used_the_first_ones_are_told() -> None:
    names = [f"m{number}" for number in range(10)]

    assert str(ModelNotFoundError("gpt-9", names)).endswith(
        ": this key may use m0, m1, m2, m3, m4, m5, m6, m7 and 2 more"
    )


async def test_a_model_without_a_grant_looks_like_one_that_does_not_exist(shared_world: World) -> None:
    tenant = await shared_world.tenant(key=ApiKeySettings(model_grants=("gpt-9",)))

    hidden = await refused(tenant.generate(model="bytes"))
    absent = await refused(tenant.generate(model="nobody"))

    assert hidden.info.reason == absent.info.reason == "MODEL_NOT_FOUND"
    assert hidden.message.replace("bytes", "nobody") == absent.message == "model 'nobody' was not found"


async def test_a_class_that_is_not_granted_to_team_or_key(shared_world: World) -> None:
    tenant = await shared_world.tenant(team=TeamSettings(class_grants=("batch", "priority")))
    narrow = await shared_world.key(
        tenant.path, tenant.organization_id, tenant.team_id, ApiKeySettings(class_grants=("batch",))
    )

    for caller, name in ((narrow, "priority"), (narrow, ""), (tenant, "no-such-class")):
        refusal = await refused(caller.generate(admission=pb.AdmissionOptions(priority_class=name)))
        assert (refusal.code, refusal.info.reason) == (
            grpc.StatusCode.PERMISSION_DENIED,
            "PRIORITY_CLASS_NOT_GRANTED",
        )
    await narrow.generate(admission=pb.AdmissionOptions(priority_class="batch"))
    await tenant.generate(admission=pb.AdmissionOptions(priority_class="priority"))


async def test_a_suspended_team_or_organization(shared_world: World, own_tenant: Tenant) -> None:
    organization = ResourcePath(own_tenant.path.organization)
    await update_team(
        shared_world.database, CHANGE, tenant_path(own_tenant), lambda _: TeamSettings(state=State.SUSPENDED)
    )
    await shared_world.cache.refresh()
    of_team = await refused(own_tenant.generate())
    await update_organization(
        shared_world.database, CHANGE, organization, lambda _: OrganizationSettings(state=State.SUSPENDED)
    )
    await shared_world.cache.refresh()
    of_organization = await refused(own_tenant.generate())

    assert (of_team.code, of_team.info.reason) == (grpc.StatusCode.PERMISSION_DENIED, "TENANT_SUSPENDED")
    assert of_team.info.metadata["tenant"] == tenant_path(own_tenant).name
    assert of_organization.info.metadata["tenant"] == organization.name


async def test_a_used_up_limit_names_every_node_that_refuses_and_the_longest_wait(shared_world: World) -> None:
    tenant = await shared_world.tenant(limits=(REQUESTS, TOKENS))
    organization = ResourcePath(tenant.path.organization)
    await shared_world.limit(organization, (REQUESTS,))
    await tenant.generate()

    refusal = await refused(tenant.generate())

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
    violated = {(violation.subject, violation.quota_metric) for violation in refusal.quota.violations}
    assert violated == {
        (tenant_path(tenant).name, "requests"),
        (tenant_path(tenant).name, "total_tokens"),
        (organization.name, "requests"),
    }
    wait_s = refusal.retry.retry_delay.ToNanoseconds() / 1e9
    assert 36 < wait_s <= 60  # longer than for the tokens
    assert int(refusal.trailers["grpc-retry-pushback-ms"]) >= wait_s * 1000


async def test_a_request_larger_than_the_burst_is_never_worth_a_retry(shared_world: World) -> None:
    tenant = await shared_world.tenant(limits=(TOKENS,))

    refusal = await refused(tenant.generate(stopping={"max_output_tokens": 11}))

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "REQUEST_EXCEEDS_LIMIT")
    assert refusal.quota.violations[0].quota_metric == "total_tokens"
    assert refusal.retry is None
    assert "grpc-retry-pushback-ms" not in refusal.trailers


async def test_a_full_concurrency_limit_frees_itself(shared_world: World) -> None:
    shared_world.engine.script = stalled
    tenant = await shared_world.tenant(limits=(CONCURRENCY,))
    running = tenant.stream()
    await running.read()

    refusal = await refused(tenant.stream())
    running.cancel()
    await eventually(lambda: not shared_world.live.num_live_requests)
    next_one = tenant.stream()

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
    assert refusal.quota.violations[0].quota_metric == "concurrency"
    assert refusal.retry.retry_delay.ToSeconds() == 1
    assert (await next_one.read()).HasField("admission")
    next_one.cancel()


async def test_a_wait_in_the_queue_that_is_too_long(shared_world: World, shared_tenant: Tenant) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.finish(engine_pb2.FINISH_REASON_QUEUE_TIMEOUT)

    shared_world.engine.script = script
    refusal = await refused(shared_tenant.generate())

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_TIMEOUT")
    assert refusal.retry is None


async def test_a_deadline_is_an_error_with_the_partial_usage_unless_the_caller_wants_what_there_is(
    shared_world: World, shared_tenant: Tenant
) -> None:
    async def script(call: FakeCall) -> None:
        assert 0 < call.start.deadline_ns < 60e9
        await call.accept()
        await call.admit()
        await call.emit(b"abc")
        await call.finish(engine_pb2.FINISH_REASON_DEADLINE)

    shared_world.engine.script = script
    refusal = await refused(shared_tenant.generate(timeout=60))
    partial = await shared_tenant.generate(
        timeout=60, admission=pb.AdmissionOptions(on_deadline=pb.DEADLINE_ACTION_PARTIAL)
    )

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED")
    assert refusal.info.metadata == {"input_tokens": "2", "output_tokens": "3"}
    assert partial.outputs[0].text == "abc"
    assert partial.outputs[0].finish_reason == pb.FINISH_REASON_DEADLINE


async def test_an_engine_that_misses_the_deadline_does_not_keep_the_answer(
    shared_world: World, shared_tenant: Tenant
) -> None:
    shared_world.engine.script = deaf
    partial = await shared_tenant.generate(
        timeout=1.0, admission=pb.AdmissionOptions(on_deadline=pb.DEADLINE_ACTION_PARTIAL)
    )

    assert partial.outputs[0].text == "abc"
    assert partial.outputs[0].finish_reason == pb.FINISH_REASON_DEADLINE
    await (await shared_world.engine.call()).ended.wait()
    assert (await shared_world.engine.call()).is_aborted


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
    shared_world: World, shared_tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret internals")

    monkeypatch.setattr(shared_world.live._admission, "admit", broken)
    refusal = await refused(shared_tenant.generate())

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert "secret" not in refusal.message
    assert refusal.request.request_id


async def test_a_client_that_leaves_hears_nothing_and_the_engine_stops(
    shared_world: World, shared_tenant: Tenant
) -> None:
    shared_world.engine.script = begun
    call = shared_tenant.generate()
    engine_call = await shared_world.engine.call()
    await eventually(lambda: engine_call.num_emitted == 3)
    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    control = await engine_call.control("cancel")
    assert control.cancel.reason == engine_pb2.CANCEL_REASON_CLIENT


def tenant_path(tenant: Tenant) -> ResourcePath:
    return ResourcePath(tenant.path.organization, tenant.path.team)
