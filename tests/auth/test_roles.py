"""Who may call what, where: every method of every service, each role, in its own tenant, beside it and elsewhere.

The table below is the specification, written down apart from the routes and the roles. A role may call a method
"a" anywhere, "o" in its own organization, "t" in its own team, "." nowhere; "*" where the method looks at the caller's
own things only, whatever its message says.
"""

from dataclasses import dataclass, replace
from uuid import UUID, uuid4

import pytest
from google.protobuf.message import Message

from evenflow.admin.v1 import admin_pb2
from evenflow.inference.v1 import generation_pb2, model_pb2, quota_pb2
from gateway.auth import Action, Principal, Verdict
from gateway.auth.roles import ACTIONS_BY_ROLE, SCOPE_BY_ACTION, Grant
from gateway.errors_auth import NoTenantError, PermissionDeniedError, RoleNotGrantedError, ScopeNotGrantedError
from gateway.interceptors.authentication import authorize_message
from gateway.interceptors.routes import ROUTES
from gateway.store.enums import KeyScope, Role
from gateway.store.identity import PLATFORM
from gateway.store.identity_snapshot import BindingRecord, IdentitySnapshot
from gateway.store.records import ResourcePath
from gateway.store.snapshot import EMPTY_SNAPSHOT
from tests.auth.tenants import ACME, GLOBEX, KEY_RECORD

ADMIN = "/evenflow.admin.v1.AdminService/"
INFERENCE = "/evenflow.inference.v1."
SERVICES = tuple(
    service
    for module in (admin_pb2, generation_pb2, model_pb2, quota_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
)
ROLES = (
    Role.PLATFORM_ADMIN,
    Role.PLATFORM_VIEWER,
    Role.ORG_ADMIN,
    Role.TEAM_ADMIN,
    Role.MEMBER,
    Role.SERVICE,
)
# Columns in the order of ROLES.
TABLE = """
GenerationService/Generate          . . . . * *
GenerationService/StreamGenerate    . . . . * *
GenerationService/GetGeneration     . . . . * *
GenerationService/WatchGeneration   . . . . * *
GenerationService/CancelGeneration  . . . . * *
GenerationService/CountTokens       . . . . * *
GenerationService/CheckAdmission    . . . . * *
ModelService/ListModels             . . . . * *
ModelService/GetModel               . . . . * *
ModelService/GetTokenizer           . . . . * *
QuotaService/GetQuotaStatus         . . . . * *
QuotaService/WatchQuotaStatus       . . . . * *
AdminService/CreateOrganization     a . . . . .
AdminService/GetOrganization        a a o . . .
AdminService/ListOrganizations      a a a a a .
AdminService/UpdateOrganization     a . . . . .
AdminService/DeleteOrganization     a . . . . .
AdminService/UndeleteOrganization   a . . . . .
AdminService/CreateTeam             a . o . . .
AdminService/GetTeam                a a o t t .
AdminService/ListTeams              a a o . . .
AdminService/UpdateTeam             a . o . . .
AdminService/DeleteTeam             a . o . . .
AdminService/UndeleteTeam           a . o . . .
AdminService/CreateApiKey           a . o t . .
AdminService/GetApiKey              a a o t t .
AdminService/ListApiKeys            a a o t t .
AdminService/UpdateApiKey           a . o t . .
AdminService/RotateApiKey           a . o t . .
AdminService/RevokeApiKey           a . o t . .
AdminService/DeleteApiKey           a . o t . .
AdminService/UndeleteApiKey         a . o t . .
AdminService/CreateQuotaPolicy      a . o . . .
AdminService/GetQuotaPolicy         a a o t t .
AdminService/ListQuotaPolicies      a a o t t .
AdminService/UpdateQuotaPolicy      a . o . . .
AdminService/DeleteQuotaPolicy      a . o . . .
AdminService/GrantTemporaryQuota    a . o . . .
AdminService/EndTemporaryQuota      a . o . . .
AdminService/ApplyPolicies          a . . . . .
AdminService/SimulateQuotaPolicies  a a . . . .
AdminService/CreatePriorityClass    a . . . . .
AdminService/GetPriorityClass       a a a a a .
AdminService/ListPriorityClasses    a a a a a .
AdminService/UpdatePriorityClass    a . . . . .
AdminService/DeletePriorityClass    a . . . . .
AdminService/ListAuditEvents        a a . . . .
AdminService/ExportAudit            a a . . . .
AdminService/CreateJwtIssuer        a . . . . .
AdminService/GetJwtIssuer           a a . . . .
AdminService/ListJwtIssuers         a a . . . .
AdminService/UpdateJwtIssuer        a . . . . .
AdminService/DeleteJwtIssuer        a . . . . .
AdminService/CreateRoleBinding      a . o t . .
AdminService/GetRoleBinding         a a o t t .
AdminService/ListRoleBindings       a a o t t .
AdminService/DeleteRoleBinding      a . o t . .
AdminService/QueryUsage             a a o t t .
AdminService/QueryDenials           a a o t t .
AdminService/GetSystemStatus        a a . . . .
AdminService/ListQueue              a a o t t .
AdminService/ExplainRequest         a a . . . .
AdminService/CancelGenerations      a . o t . .
AdminService/SetSchedulingPolicy    a . . . . .
"""
EXPECTED = {name: tuple(marks) for name, *marks in (line.split() for line in TABLE.strip().splitlines())}

OWN, SIBLING, FOREIGN = ("acme", "search"), ("acme", "ads"), ("globex", "search")
KEY = "0123456789Ab"
ALL_SCOPES = frozenset({KeyScope.INFERENCE, KeyScope.QUOTA_READ, KeyScope.ADMIN})


@dataclass(frozen=True)
class Method:
    """A method, with a message about a tenant."""

    name: str
    request: type[Message]

    def about(self, organization: str, team: str) -> Message:
        """A message whose names are those of resources of the tenant, of the kind that the method is about."""
        message = self.request()
        at_organization, at_team = f"organizations/{organization}", f"organizations/{organization}/teams/{team}"
        noun = self.name.rpartition("/")[2]
        if noun in ("CreateTeam", "ListTeams"):
            fill(message, "parent", at_organization)
        elif noun.endswith(("Team", "Teams")):
            fill(message, "name", at_team)
        elif noun.endswith("Organization"):
            fill(message, "name", at_organization)
        elif "ApiKey" in noun:
            fill(message, "name", f"{at_team}/apiKeys/{KEY}")
        elif "Quota" in noun:
            fill(message, "name", f"{at_team}/quotaPolicies/default")
        elif "RoleBinding" in noun:
            fill(message, "name", f"{at_team}/roleBindings/{uuid4()}")
        fill(message, "parent", at_team)
        fill(message, "team", at_team)
        return message


def fill(message: Message, field: str, value: str) -> None:
    """The field, in the message or in the resource that it holds, is `value` where it was empty."""
    descriptor = message.DESCRIPTOR
    if field in descriptor.fields_by_name and not getattr(message, field):
        setattr(message, field, value)
    if field == "name":
        for held in descriptor.fields:
            is_resource = held.message_type is not None and not held.is_repeated
            if (
                is_resource
                and "name" in held.message_type.fields_by_name
                and "etag" in held.message_type.fields_by_name
            ):
                getattr(message, held.name).name = value


METHODS = [
    Method(f"{service.name}/{method.name}", method.input_type._concrete_class)
    for service in SERVICES
    for method in service.methods
]


def principal(role: Role, team: tuple[str, str] | None = OWN) -> Principal:
    """Somebody with one role, in the tenant OWN if it is not the platform's."""
    path = {Role.PLATFORM_ADMIN: PLATFORM, Role.PLATFORM_VIEWER: PLATFORM, Role.ORG_ADMIN: ResourcePath("acme")}
    return Principal(
        name="somebody",
        key_id=uuid4(),
        public_id=KEY,
        organization_id=UUID(int=1),
        team_id=UUID(int=2) if team else None,
        organization=team[0] if team else None,
        team=team[1] if team else None,
        scopes=ALL_SCOPES,
        model_grants=frozenset(),
        grants=(Grant(role, path.get(role, ResourcePath(*OWN))),),
    )


def is_allowed(method: Method, caller: Principal, message: Message, snapshot=EMPTY_SNAPSHOT) -> bool:
    service = "evenflow.admin.v1." if method.name.startswith("AdminService") else "evenflow.inference.v1."
    try:
        authorize_message(f"/{service}{method.name}", message, Verdict(caller, "hit", snapshot))
    except PermissionDeniedError:
        return False
    return True


def test_the_table_has_every_method_of_every_service_and_no_other() -> None:
    assert {method.name for method in METHODS} == set(EXPECTED)
    assert {name.replace("evenflow.inference.v1.", "").replace("evenflow.admin.v1.", "")[1:] for name in ROUTES} == set(
        EXPECTED
    )


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_each_role_may_do_what_the_table_says_in_its_own_tenant_and_elsewhere(method: Method) -> None:
    reach = {
        ".": (False, False, False),
        "t": (True, False, False),
        "o": (True, True, False),
        "a": (True, True, True),
        "*": (True, True, True),
    }
    for role, mark in zip(ROLES, EXPECTED[method.name], strict=True):
        caller = principal(role)
        allowed = tuple(is_allowed(method, caller, method.about(*tenant)) for tenant in (OWN, SIBLING, FOREIGN))
        assert allowed == reach[mark], (role, mark)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_nobody_without_a_role_may_do_anything(method: Method) -> None:
    nobody = replace(principal(Role.MEMBER), grants=())

    assert not any(is_allowed(method, nobody, method.about(*tenant)) for tenant in (OWN, SIBLING, FOREIGN))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_scope_that_is_missing_takes_the_method_away_from_every_role(method: Method) -> None:
    service = "evenflow.admin.v1." if method.name.startswith("AdminService") else "evenflow.inference.v1."
    for action in ROUTES[f"/{service}{method.name}"].actions:
        scopes = frozenset(KeyScope) - {SCOPE_BY_ACTION[action], KeyScope.ADMIN}
        for role in ROLES:
            caller = replace(principal(role), scopes=scopes)
            assert not is_allowed(method, caller, method.about(*OWN))


@pytest.mark.parametrize(
    "method", [m for m in METHODS if "*" in EXPECTED.get(m.name, ())], ids=lambda method: method.name
)
def test_whoever_belongs_to_no_team_cannot_spend_a_teams_quota(method: Method) -> None:
    for role in ROLES:
        with pytest.raises(NoTenantError):
            authorize_message(
                INFERENCE + method.name, method.request(), Verdict(principal(role, team=None), "hit", EMPTY_SNAPSHOT)
            )


def test_a_scope_for_one_kind_of_administration_is_for_no_other() -> None:
    caller = replace(principal(Role.PLATFORM_ADMIN), scopes=frozenset({KeyScope.ADMIN_KEYS}))
    by_name = {method.name: method for method in METHODS}

    assert is_allowed(by_name["AdminService/CreateApiKey"], caller, by_name["AdminService/CreateApiKey"].about(*OWN))
    get = by_name["AdminService/GetTeam"]
    with pytest.raises(ScopeNotGrantedError, match=r"admin\.read"):
        authorize_message(f"{ADMIN}GetTeam", get.about(*OWN), Verdict(caller, "hit", EMPTY_SNAPSHOT))


def test_every_action_is_allowed_to_somebody_and_has_a_scope() -> None:
    assert set(SCOPE_BY_ACTION) == set(Action)
    assert frozenset().union(*ACTIONS_BY_ROLE.values()) == frozenset(Action)


@pytest.mark.parametrize("name", ["", "-", "organizations", "organizations/", "teams/search", "organizations/acme-x"])
def test_a_name_that_does_not_lead_into_the_tenant_is_refused_to_its_administrator(name: str) -> None:
    caller = principal(Role.ORG_ADMIN)

    with pytest.raises(RoleNotGrantedError):
        authorize_message(
            f"{ADMIN}GetTeam", admin_pb2.GetTeamRequest(name=name), Verdict(caller, "hit", EMPTY_SNAPSHOT)
        )


def test_limits_are_set_from_above_and_never_by_those_they_bind() -> None:
    update = Method("AdminService/UpdateQuotaPolicy", admin_pb2.UpdateQuotaPolicyRequest)
    of_organization = admin_pb2.UpdateQuotaPolicyRequest()
    of_organization.quota_policy.name = "organizations/acme/quotaPolicies/default"
    of_key = admin_pb2.UpdateQuotaPolicyRequest()
    of_key.quota_policy.name = f"organizations/acme/teams/search/apiKeys/{KEY}/quotaPolicies/default"

    assert not is_allowed(update, principal(Role.ORG_ADMIN), of_organization)
    assert is_allowed(update, principal(Role.TEAM_ADMIN), of_key)


def test_a_key_that_acts_higher_up_is_changed_by_those_above_only() -> None:
    binding = BindingRecord(uuid4(), f"apiKeys/{KEY}", Role.ORG_ADMIN, ResourcePath("acme"), UUID(int=1), None)
    identity = IdentitySnapshot({}, {binding.principal: (binding,)})
    snapshot = replace(EMPTY_SNAPSHOT, identity=identity)
    rotate = Method("AdminService/RotateApiKey", admin_pb2.RotateApiKeyRequest)
    revoke = Method("AdminService/RevokeApiKey", admin_pb2.RevokeApiKeyRequest)

    # Whoever gets its secret acts as its holder; whoever ends it does not.
    assert not is_allowed(rotate, principal(Role.TEAM_ADMIN), rotate.about(*OWN), snapshot)
    assert is_allowed(rotate, principal(Role.ORG_ADMIN), rotate.about(*OWN), snapshot)
    assert is_allowed(revoke, principal(Role.TEAM_ADMIN), revoke.about(*OWN), snapshot)


def test_running_work_is_ended_by_those_over_the_key_that_runs_it_whatever_its_name_says() -> None:
    cancel = Method("AdminService/CancelGenerations", admin_pb2.CancelGenerationsRequest)
    key = replace(KEY_RECORD, team=GLOBEX)
    snapshot = replace(EMPTY_SNAPSHOT, keys={KEY: key})

    for name in (f"organizations/acme/teams/search/apiKeys/{KEY}", f"organizations/-/teams/-/apiKeys/{KEY}"):
        request = admin_pb2.CancelGenerationsRequest(api_key=name)
        assert not is_allowed(cancel, principal(Role.ORG_ADMIN), request, snapshot)
        own = replace(snapshot, keys={KEY: replace(key, team=ACME)})
        assert is_allowed(cancel, principal(Role.ORG_ADMIN), request, own)
    by_id = admin_pb2.CancelGenerationsRequest(generation_ids=["x"])
    assert not is_allowed(cancel, principal(Role.ORG_ADMIN), by_id)


def test_a_set_of_policies_is_applied_by_those_above_all_of_it() -> None:
    apply = Method("AdminService/ApplyPolicies", admin_pb2.ApplyPoliciesRequest)
    request = admin_pb2.ApplyPoliciesRequest()
    request.entries.add().team.name = "organizations/acme/teams/search"
    request.entries.add().quota_policy.name = "organizations/acme/teams/ads/quotaPolicies/default"
    mixed = admin_pb2.ApplyPoliciesRequest()
    mixed.CopyFrom(request)
    mixed.entries.add().quota_policy.name = "organizations/globex/teams/search/quotaPolicies/default"
    with_class = admin_pb2.ApplyPoliciesRequest()
    with_class.CopyFrom(request)
    with_class.entries.add().priority_class.name = "priorityClasses/batch"

    assert is_allowed(apply, principal(Role.ORG_ADMIN), request)
    assert not is_allowed(apply, principal(Role.TEAM_ADMIN), request)
    assert not is_allowed(apply, principal(Role.ORG_ADMIN), mixed)
    assert not is_allowed(apply, principal(Role.ORG_ADMIN), with_class)
