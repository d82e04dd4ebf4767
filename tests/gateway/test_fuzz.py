"""Every method with messages made from its descriptor, and with bytes that are none: refused or served, never INTERNAL.

The methods are those of the services' descriptors, so a new one is tried as soon as it is there.
"""

import grpc
import pytest
import pytest_asyncio
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway import api_key
from gateway.store.keys import create_key
from gateway.store.records import ApiKeySettings, KeySecret, ResourcePath
from tests.gateway.messages import messages, method_descriptors
from tests.gateway.test_interceptors import listed_services
from tests.gateway.world import CHANGE, PEPPER, Tenant, World

ADMIN = "evenflow.admin.v1."
SERVICES = (
    "evenflow.admin.v1.AdminService",
    "evenflow.inference.v1.GenerationService",
    "evenflow.inference.v1.ModelService",
    "evenflow.inference.v1.QuotaService",
)
PUBLIC_SERVICES = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
TIMEOUT_S = 20.0
BUGS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)
KEY_ID = "000000000000"
UUID_TEXT = "0190a000-0000-7000-8000-000000000000"
ORG, TEAM = "organizations/acme", "organizations/acme/teams/search"
KEY = f"{TEAM}/apiKeys/{KEY_ID}"
# What could be meant, by what the field or the message around it is called; the first that fits counts.
SENSIBLE = {
    "request_id": (UUID_TEXT, ""),
    "generation_id": (UUID_TEXT,),
    "generation_ids": (UUID_TEXT,),
    "page_token": ("", "AAAA"),
    "etag": ("1", "5"),
    "paths": ("display_name", "state", "limits", "weight", "scopes", "rank", "*", "expire_time", "claim_map"),
    "filter": (
        'state = "ACTIVE"',
        'display_name = "a*" AND NOT state = "SUSPENDED"',
        "a.b:*",
        "rank > 1",
        "(",
        "actor = x",
    ),
    "order_by": ("create_time desc, name", "display_name", "rank", "event_time desc", "name desc,"),
    "principal": (f"apiKeys/{KEY_ID}", "jwtIssuers/login/subjects/alice"),
    "organization_id": ("new", "acme"),
    "team_id": ("new", "search"),
    "quota_policy_id": ("default", "new"),
    "priority_class_id": ("new", "batch"),
    "jwt_issuer_id": ("login", "new"),
    "jwks_uri": ("https://login.example.test/keys", "http://127.0.0.1:1/"),
    "issuer": ("https://login.example.test/",),
    "organization": (ORG,),
    "team": (TEAM,),
    "api_key": (KEY, f"organizations/-/teams/-/apiKeys/{KEY_ID}"),
    "audiences": ("evenflow",),
    "algorithms": ("RS256", "ES256", "HS256"),
    "scopes": ("inference", "quota.read", "admin.read", "admin"),
    "ip_cidrs": ("10.0.0.0/8", "::/0"),
    "model_grants": ("bytes",),
    "model": ("bytes", ""),
    "priority_class": ("batch", "default", ""),
    "priority_class_grants": ("priorityClasses/batch",),
    "default_priority_class": ("priorityClasses/batch",),
    "time_zone": ("Europe/Berlin", "UTC"),
    "scheduling_policy": ("fcfs", "fair"),
    "engine": ("",),
    "role": ("user", "assistant"),
    "text": ("hello", "a" * 300),
    "content": ("hello",),
    "reason": ("a launch",),
    "state": ("waiting", "running", ""),
    "parent": (ORG, TEAM, KEY, "organizations/-", "organizations/-/teams/-", "", "-"),
    "Organization": (ORG,),
    "Team": (TEAM,),
    "ApiKey": (KEY, f"apiKeys/{KEY_ID}"),
    "Quota": (f"{ORG}/quotaPolicies/default", f"{TEAM}/quotaPolicies/default", f"{KEY}/quotaPolicies/new"),
    "PriorityClass": ("priorityClasses/default", "priorityClasses/new"),
    "JwtIssuer": ("jwtIssuers/login",),
    "RoleBinding": (f"roleBindings/{UUID_TEXT}", f"{ORG}/roleBindings/{UUID_TEXT}"),
    "GetModel": ("bytes",),
}


def sensible(field: FieldDescriptor) -> tuple[str, ...]:
    around = field.containing_type.name
    return SENSIBLE.get(field.name) or next(
        (texts for part, texts in SENSIBLE.items() if part[0].isupper() and part in around), ()
    )


METHODS = sorted(method_descriptors(SERVICES), key=lambda method: method.full_name)
# One gateway for several methods, one message for each of them at a time.
GROUP = 6
GROUPS = [METHODS[start : start + GROUP] for start in range(0, len(METHODS), GROUP)]
# Examples cannot shrink well against a gateway that they change, and a short run is to be the same each time.
QUICK = settings(
    max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
LONG = settings(QUICK, max_examples=200, derandomize=False)
by_group = pytest.mark.parametrize("methods", GROUPS, ids=lambda methods: methods[0].name)


@pytest_asyncio.fixture
async def tenant(world: World) -> Tenant:
    """A tenant with a second key, which requests may name, change and end."""
    made = await world.tenant("acme")
    path = ResourcePath(made.path.organization, made.path.team, KEY_ID)
    secret = KeySecret(api_key.digest(PEPPER.encode(), api_key.generate().secret), 1)
    await create_key(world.database, CHANGE, path, ApiKeySettings(), secret)
    return made


@pytest_asyncio.fixture
async def admin(world: World, tenant: Tenant) -> Tenant:
    """A platform key, which no request names."""
    return await world.administrator()


async def outcome(caller: Tenant, method: MethodDescriptor, data: bytes) -> grpc.StatusCode:
    """How the call ends; of a stream, how it begins."""
    make = caller.channel.unary_stream if method.server_streaming else caller.channel.unary_unary
    name = f"/{method.containing_service.full_name}/{method.name}"
    call = make(name, request_serializer=None, response_deserializer=None)(
        data, metadata=caller.metadata, timeout=TIMEOUT_S
    )
    try:
        await (call.read() if method.server_streaming else call)
    except grpc.aio.AioRpcError as error:
        return error.code()
    finally:
        call.cancel()
    return grpc.StatusCode.OK


async def try_each(
    world: World, tenant: Tenant, admin: Tenant, methods: list[MethodDescriptor], data: st.DataObject
) -> None:
    """A message for each of the methods ends in no way that says that the gateway is at fault."""
    for method in methods:
        message = data.draw(messages(method.input_type, sensible), label=method.name)
        code = await outcome(caller_of(method, tenant, admin), method, message.SerializeToString())
        assert code not in BUGS, (method.full_name, message)
    assert world.is_running


def caller_of(method: MethodDescriptor, tenant: Tenant, admin: Tenant) -> Tenant:
    return admin if method.full_name.startswith(ADMIN) else tenant


async def test_every_service_that_the_gateway_lists_is_tried_here(tenant: Tenant) -> None:
    assert set(await listed_services(tenant.channel)) == set(SERVICES) | PUBLIC_SERVICES


@by_group
@QUICK
@given(data=st.data())
async def test_any_message_is_served_or_refused(
    world: World, tenant: Tenant, admin: Tenant, methods: list[MethodDescriptor], data: st.DataObject
) -> None:
    await try_each(world, tenant, admin, methods, data)


@QUICK
@given(data=st.data())
async def test_any_bytes_are_served_or_refused(
    world: World, tenant: Tenant, admin: Tenant, data: st.DataObject
) -> None:
    for method in METHODS:
        code = await outcome(caller_of(method, tenant, admin), method, data.draw(st.binary(max_size=24)))
        assert code not in BUGS, method.full_name
    assert world.is_running


@pytest.mark.slow
@pytest.mark.timeout(1800)
@by_group
@LONG
@given(data=st.data())
async def test_any_of_many_messages_is_served_or_refused(
    world: World, tenant: Tenant, admin: Tenant, methods: list[MethodDescriptor], data: st.DataObject
) -> None:
    await try_each(world, tenant, admin, methods, data)
