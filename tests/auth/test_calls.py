"""Whole calls through a real gateway: what a caller may say beside its message, what costs quota, who is accounted."""

import time
from uuid import uuid5

import grpc
import pytest

from evenflow.admin.v1 import admin_pb2, admin_pb2_grpc
from evenflow.inference.v1 import generation_pb2, generation_pb2_grpc, model_pb2, quota_pb2, quota_pb2_grpc
from gateway.auth.jwks import KeySets
from gateway.interceptors.routes import ROUTES, Cost
from gateway.store.enums import Dimension, Role
from gateway.store.identity import JwtIssuerSettings
from gateway.store.issuers import create_issuer
from gateway.store.records import QuotaLimit, ResourcePath, TeamSettings
from gateway.store.roles import create_binding
from tests.auth.issuer import AUDIENCE, ISSUER, PublishedKeys, claims, token
from tests.gateway.test_interceptors import listed_services
from tests.gateway.world import CHANGE, Tenant, World, make_spec, refused

CLASS, WAIT = "x-evenflow-priority-class", "x-evenflow-max-queue-wait-ms"
PUBLIC_SERVICES = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
FORGED = (
    ("x-evenflow-tenant", "organizations/globex/teams/search"),
    ("x-evenflow-tenant-id", "globex"),
    ("x-evenflow-tenant-bin", b"globex"),
    ("x-evenflow-organization", "globex"),
    ("x-evenflow-team", "globex/search"),
    ("x-evenflow-role", "platform_admin"),
    ("x-evenflow-scopes", "admin"),
    ("x-evenflow-weight", "1000"),
    ("x-evenflow-priority", "0"),
    ("x-evenflow-rank", "0"),
    ("x-forwarded-for", "10.0.0.1"),
)


async def started(world: World, number: int):
    """What the engine was asked by the call of this number, but for what is drawn anew each time."""
    start = type((await world.engine.call(number)).start)()
    start.CopyFrom((await world.engine.call(number)).start)
    for drawn in ("request_id", "generation_id"):
        if drawn in start.DESCRIPTOR.fields_by_name:
            start.ClearField(drawn)
    start.sampling.ClearField("seed")
    return start


async def test_every_service_that_the_gateway_lists_is_public_or_has_its_routes(world: World) -> None:
    tenant = await world.tenant()
    services = set(await listed_services(tenant.channel)) - PUBLIC_SERVICES

    assert services == {method.split("/")[1] for method in ROUTES}


async def test_forged_metadata_changes_nothing(world: World) -> None:
    tenant = await world.tenant("acme")
    await world.tenant("globex")
    await tenant.generate()
    await tenant.generate(metadata=FORGED)
    status = await refused(
        admin_pb2_grpc.AdminServiceStub(tenant.channel).GetSystemStatus(
            admin_pb2.GetSystemStatusRequest(), metadata=(*tenant.metadata, *FORGED)
        )
    )

    assert await started(world, 0) == await started(world, 1)
    assert status.info.reason == "SCOPE_NOT_GRANTED"


async def test_a_class_and_a_wait_may_be_asked_for_in_the_metadata_and_the_message_wins(world: World) -> None:
    tenant = await world.tenant(team=TeamSettings(class_grants=("batch", "priority")))
    asked = ((CLASS, "batch"), (WAIT, "1500"))
    await tenant.generate(metadata=asked)
    admission = generation_pb2.AdmissionOptions(priority_class="priority")
    admission.max_queue_wait.FromMilliseconds(250)
    await tenant.generate(metadata=asked, admission=admission)

    by_metadata, by_message = await started(world, 0), await started(world, 1)
    assert (by_metadata.priority_class.name, by_metadata.max_queue_wait_ns) == ("batch", 1_500_000_000)
    assert (by_message.priority_class.name, by_message.max_queue_wait_ns) == ("priority", 250_000_000)


async def test_a_class_that_is_not_granted_is_not_had_by_asking_in_the_metadata(world: World) -> None:
    tenant = await world.tenant()

    for name in ("priority", "nothing"):
        refusal = await refused(tenant.generate(metadata=((CLASS, name),)))
        assert refusal.info.reason == "PRIORITY_CLASS_NOT_GRANTED"
    assert not world.engine.calls


@pytest.mark.parametrize(
    "sent",
    [
        ((WAIT, "0"),),
        ((WAIT, "-5"),),
        ((WAIT, "1.5"),),
        ((WAIT, "soon"),),
        ((WAIT, ""),),
        ((WAIT, "86400001"),),
        ((WAIT, "9" * 5000),),
        ((WAIT, "1000"), (WAIT, "2000")),
        ((CLASS, ""),),
        ((CLASS, "x" * 64),),
        ((CLASS, "batch"), (CLASS, "batch")),
    ],
)
async def test_metadata_that_cannot_be_meant_is_refused_by_name(shared_tenant: Tenant, sent: tuple) -> None:
    refusal = await refused(shared_tenant.generate(metadata=sent))

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert refusal.fields == [sent[0][0]]


async def test_methods_that_spend_quota_are_those_that_say_so(world: World) -> None:
    tenant = await world.tenant(limits=(QuotaLimit(Dimension.REQUESTS, 1, 3_600_000, 1),))
    await tenant.generate()
    generation = generation_pb2_grpc.GenerationServiceStub(tenant.channel)
    quota = quota_pb2_grpc.QuotaServiceStub(tenant.channel)
    spec = make_spec()
    calls = {
        "GenerationService/Generate": lambda: generation.Generate(
            generation_pb2.GenerateRequest(spec=spec), metadata=tenant.metadata
        ),
        "GenerationService/StreamGenerate": lambda: generation.StreamGenerate(
            generation_pb2.StreamGenerateRequest(spec=spec), metadata=tenant.metadata
        ),
        "GenerationService/GetGeneration": lambda: generation.GetGeneration(
            generation_pb2.GetGenerationRequest(generation_id="none"), metadata=tenant.metadata
        ),
        "GenerationService/WatchGeneration": lambda: generation.WatchGeneration(
            generation_pb2.WatchGenerationRequest(generation_id="none"), metadata=tenant.metadata
        ),
        "GenerationService/CancelGeneration": lambda: tenant.cancel("none"),
        "GenerationService/CountTokens": lambda: tenant.count_tokens(text="hello"),
        "GenerationService/CheckAdmission": lambda: generation.CheckAdmission(
            generation_pb2.CheckAdmissionRequest(spec=spec), metadata=tenant.metadata
        ),
        "ModelService/ListModels": lambda: tenant.models.ListModels(
            model_pb2.ListModelsRequest(), metadata=tenant.metadata
        ),
        "ModelService/GetModel": lambda: tenant.models.GetModel(
            model_pb2.GetModelRequest(name="bytes"), metadata=tenant.metadata
        ),
        "ModelService/GetTokenizer": lambda: tenant.models.GetTokenizer(
            model_pb2.GetTokenizerRequest(name="bytes"), metadata=tenant.metadata
        ),
        "QuotaService/GetQuotaStatus": lambda: quota.GetQuotaStatus(
            quota_pb2.GetQuotaStatusRequest(), metadata=tenant.metadata
        ),
    }
    limited = set()
    for name, call in calls.items():
        try:
            refusal = await refused(call())
        except AssertionError:
            continue
        limited |= {name} if refusal.info.reason == "RATE_LIMITED" else set()

    declared = {
        method.removeprefix("/evenflow.inference.v1.")
        for method, route in ROUTES.items()
        if route.cost is Cost.GENERATION
    }
    assert limited == declared
    inference = {method.removeprefix("/evenflow.inference.v1.") for method in ROUTES if ".inference." in method}
    assert inference - set(calls) == {"QuotaService/WatchQuotaStatus"}  # which does not end


async def test_the_subject_of_a_token_generates_for_its_team_and_administrates_where_it_may(world: World) -> None:
    tenant = await world.tenant("acme")
    settings = JwtIssuerSettings((AUDIENCE,), "https://login.example.test/keys", ("RS256",), {"team": "team"})
    issuer = await create_issuer(world.database, CHANGE, "login", ISSUER, None, settings)
    alice = "jwtIssuers/login/subjects/alice"
    await create_binding(world.database, CHANGE, ResourcePath("acme"), alice, Role.ORG_ADMIN)
    await world.cache.refresh()
    world.live._authenticator._tokens._key_sets = KeySets(PublishedKeys())
    metadata = (("authorization", f"Bearer {token(claims())}"),)
    stub = generation_pb2_grpc.GenerationServiceStub(tenant.channel)
    admin = admin_pb2_grpc.AdminServiceStub(tenant.channel)

    await stub.Generate(generation_pb2.GenerateRequest(spec=make_spec()), metadata=metadata)
    made = await admin.CreateTeam(
        admin_pb2.CreateTeamRequest(parent="organizations/acme", team_id="new"), metadata=metadata
    )
    late = await refused(
        stub.Generate(
            generation_pb2.GenerateRequest(spec=make_spec()),
            metadata=(("authorization", f"Bearer {token(claims(exp=int(time.time()) - 60))}"),),
        )
    )
    (row,) = await world.usage_rows()

    assert made.name == "organizations/acme/teams/new"
    assert (row["team_id"], row["key_id"]) == (tenant.team_id, uuid5(issuer.id, "alice"))
    assert (late.code, late.info.reason) == (grpc.StatusCode.UNAUTHENTICATED, "KEY_EXPIRED")


async def test_credentials_of_any_size_get_an_answer_with_its_reason(world: World) -> None:
    tenant = await world.tenant()
    stub = generation_pb2_grpc.GenerationServiceStub(tenant.channel)
    for size in (8192, 8193, 12_000):
        metadata = (("authorization", "Bearer a.b." + "c" * (size - 4)),)
        refusal = await refused(stub.Generate(generation_pb2.GenerateRequest(spec=make_spec()), metadata=metadata))
        assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_INVALID")
