"""Administration by those who administrate a part: what they can do there, and that they learn nothing of the rest."""

from collections import abc
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from google.protobuf.message import Message

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin import backend
from gateway.store.db import Database
from tests.admin.service import AdminService, Metadata, bearer, read_refusal, serve_admin

ADMIN_SCOPES = ["admin.read", "admin.tenancy", "admin.keys", "admin.quota", "admin.roles"]
ACME, GLOBEX = "organizations/acme", "organizations/globex"
SEARCH, ADS = f"{ACME}/teams/search", f"{ACME}/teams/ads"


@pytest_asyncio.fixture
async def service(database: Database, database_url: str, tmp_path: Path) -> abc.AsyncIterator[AdminService]:
    """Two organizations: acme with the teams search and ads, globex with search."""
    async with serve_admin(database, database_url, tmp_path / "data") as running:
        for org, teams in (("acme", ("search", "ads")), ("globex", ("search",))):
            await running.create_org(org)
            for team in teams:
                await running.create_team(team, org)
        yield running


async def holder(
    service: AdminService, role: pb.Role.ValueType, place: str, team: str = SEARCH, scopes: list[str] | None = None
) -> Metadata:
    """The credentials of a key of `team` that has the role at the place."""
    key = await service.create_key(team, scopes=ADMIN_SCOPES if scopes is None else scopes)
    await bind(service, key, role, place)
    return bearer(key.secret)


async def bind(service: AdminService, key: pb.ApiKey, role: pb.Role.ValueType, place: str) -> pb.RoleBinding:
    principal = f"apiKeys/{key.name.rpartition('/')[2]}"
    request = pb.CreateRoleBindingRequest(parent=place, role_binding=pb.RoleBinding(principal=principal, role=role))
    return await service.call(service.stub.CreateRoleBinding, request)


async def answer(service: AdminService, method, request: Message, metadata: Metadata) -> str:
    """OK, or the code and reason of the refusal."""
    try:
        await service.call(method, request, metadata)
    except grpc.aio.AioRpcError as error:
        refused = read_refusal(error)
        return f"{refused.code} {refused.reason}"
    return "OK"


async def test_an_organizations_administrator_runs_it(service: AdminService) -> None:
    stub, boss = service.stub, await holder(service, pb.ROLE_ORG_ADMIN, ACME)
    team = await service.call(stub.CreateTeam, pb.CreateTeamRequest(parent=ACME, team_id="new"), boss)
    key = await service.call(stub.CreateApiKey, pb.CreateApiKeyRequest(parent=team.name), boss)
    policy = pb.QuotaPolicy(name=f"{team.name}/quotaPolicies/default", weight=3)
    update = pb.UpdateQuotaPolicyRequest(quota_policy=policy)
    update.update_mask.paths.append("weight")

    changed = await service.call(stub.UpdateQuotaPolicy, update, boss)
    revoked = await service.call(stub.RevokeApiKey, pb.RevokeApiKeyRequest(name=key.name), boss)

    assert changed.weight == 3
    assert revoked.HasField("revoke_time")


async def test_nobody_tells_whether_a_strangers_resource_exists(service: AdminService) -> None:
    stub, boss = service.stub, await holder(service, pb.ROLE_ORG_ADMIN, ACME)
    there = await service.create_key(f"{GLOBEX}/teams/search")
    elsewhere = f"{GLOBEX}/teams/nothing/apiKeys/000000000000"
    public_id = there.name.rpartition("/")[2]
    answers = {
        await answer(service, method, request, boss)
        for method, request in (
            (stub.GetOrganization, pb.GetOrganizationRequest(name=GLOBEX)),
            (stub.GetOrganization, pb.GetOrganizationRequest(name="organizations/nobody")),
            (stub.GetApiKey, pb.GetApiKeyRequest(name=there.name)),
            (stub.GetApiKey, pb.GetApiKeyRequest(name=elsewhere)),
            (stub.GetApiKey, pb.GetApiKeyRequest(name=f"organizations/-/teams/-/apiKeys/{public_id}")),
            (stub.GetApiKey, pb.GetApiKeyRequest(name="organizations/-/teams/-/apiKeys/000000000000")),
            (stub.GetApiKey, pb.GetApiKeyRequest(name=f"{ACME}/teams/-/apiKeys/{public_id}")),
            (stub.RevokeApiKey, pb.RevokeApiKeyRequest(name=there.name)),
            (stub.RevokeApiKey, pb.RevokeApiKeyRequest(name=elsewhere)),
            (stub.CreateTeam, pb.CreateTeamRequest(parent=GLOBEX, team_id="search")),
            (stub.CreateTeam, pb.CreateTeamRequest(parent="organizations/nobody", team_id="search")),
            (stub.ListTeams, pb.ListTeamsRequest(parent=GLOBEX)),
            (stub.ListTeams, pb.ListTeamsRequest(parent="organizations/nobody")),
            (stub.GetTeam, pb.GetTeamRequest(name="no name at all")),
        )
    }

    assert answers == {"PERMISSION_DENIED ROLE_NOT_GRANTED"}


@pytest.mark.parametrize("order_by", ["", "create_time desc"])
async def test_lists_hold_what_the_caller_may_see_page_by_page(
    service: AdminService, order_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = service.stub
    monkeypatch.setattr(backend, "MAX_PAGE_SIZE", 3)  # so that a page of theirs is several of all
    for index in range(5):
        await service.create_org(f"other-{index}")
    for _ in range(3):
        await service.create_key(ADS)
        await service.create_key(f"{GLOBEX}/teams/search")
    boss, lead = (
        await holder(service, pb.ROLE_ORG_ADMIN, ACME),
        await holder(service, pb.ROLE_TEAM_ADMIN, ADS, team=ADS),
    )

    organizations = await service.call(stub.ListOrganizations, pb.ListOrganizationsRequest(), boss)
    teams = await service.call(stub.ListTeams, pb.ListTeamsRequest(parent="organizations/-"), boss)
    own = await service.call(stub.ListTeams, pb.ListTeamsRequest(parent="organizations/-"), lead)
    keys, token = [], ""
    while True:
        request = pb.ListApiKeysRequest(
            parent="organizations/-/teams/-", page_size=2, page_token=token, order_by=order_by
        )
        page = await service.call(stub.ListApiKeys, request, boss)
        keys += [key.name for key in page.api_keys]
        token = page.next_page_token
        if not token:
            break

    assert [organization.name for organization in organizations.organizations] == [ACME]
    assert sorted(team.name for team in teams.teams) == [ADS, SEARCH]
    assert [team.name for team in own.teams] == [ADS]
    assert len(keys) == len(set(keys)) == 5
    assert all(name.startswith(ACME) for name in keys)


async def test_a_teams_administrator_sets_the_limits_of_its_keys_and_not_its_own(service: AdminService) -> None:
    stub, lead = service.stub, await holder(service, pb.ROLE_TEAM_ADMIN, SEARCH)
    key = await service.create_key(SEARCH)
    limit = pb.QuotaLimit(dimension=pb.QUOTA_DIMENSION_REQUESTS, limit=10)
    create = pb.CreateQuotaPolicyRequest(
        parent=key.name, quota_policy_id="mine", quota_policy=pb.QuotaPolicy(limits=[limit])
    )
    own = pb.UpdateQuotaPolicyRequest(quota_policy=pb.QuotaPolicy(name=f"{SEARCH}/quotaPolicies/default", weight=9))

    assert await answer(service, stub.CreateQuotaPolicy, create, lead) == "OK"
    assert await answer(service, stub.UpdateQuotaPolicy, own, lead) == "PERMISSION_DENIED ROLE_NOT_GRANTED"
    assert (
        await answer(service, stub.UpdateTeam, pb.UpdateTeamRequest(team=pb.Team(name=SEARCH)), lead)
        == "PERMISSION_DENIED ROLE_NOT_GRANTED"
    )


async def test_a_viewer_reads_everything_and_changes_nothing(service: AdminService) -> None:
    stub, viewer = service.stub, None
    key = await service.create_key(scopes=[*ADMIN_SCOPES, "admin.system"])
    await bind(service, key, pb.ROLE_PLATFORM_VIEWER, "")
    viewer = bearer(key.secret)

    organizations = await service.call(stub.ListOrganizations, pb.ListOrganizationsRequest(), viewer)
    assert len(organizations.organizations) == 2
    assert await answer(service, stub.GetSystemStatus, pb.GetSystemStatusRequest(), viewer) == "OK"
    for method, request in (
        (stub.CreateOrganization, pb.CreateOrganizationRequest(organization_id="new")),
        (stub.RevokeApiKey, pb.RevokeApiKeyRequest(name=key.name)),
        (stub.SetSchedulingPolicy, pb.SetSchedulingPolicyRequest(scheduling_policy="fcfs")),
    ):
        assert await answer(service, method, request, viewer) == "PERMISSION_DENIED ROLE_NOT_GRANTED"


async def test_a_key_does_what_its_scopes_say_of_what_its_roles_allow(service: AdminService) -> None:
    stub = service.stub
    reader = await holder(service, pb.ROLE_ORG_ADMIN, ACME, scopes=["admin.read"])

    assert await answer(service, stub.GetTeam, pb.GetTeamRequest(name=SEARCH), reader) == "OK"
    assert (
        await answer(service, stub.CreateApiKey, pb.CreateApiKeyRequest(parent=SEARCH), reader)
        == "PERMISSION_DENIED SCOPE_NOT_GRANTED"
    )


async def test_nobody_gives_a_key_more_than_they_have(service: AdminService) -> None:
    stub = service.stub
    keeper = await holder(service, pb.ROLE_ORG_ADMIN, ACME, scopes=["admin.read", "admin.keys"])
    powerful = await service.create_key(scopes=ADMIN_SCOPES)
    more = pb.CreateApiKeyRequest(parent=SEARCH, api_key=pb.ApiKey(scopes=["admin.roles"]))
    same = pb.CreateApiKeyRequest(parent=SEARCH, api_key=pb.ApiKey(scopes=["admin.keys", "inference"]))

    assert await answer(service, stub.CreateApiKey, more, keeper) == "PERMISSION_DENIED SCOPE_NOT_GRANTED"
    assert await answer(service, stub.CreateApiKey, same, keeper) == "OK"
    rotate = pb.RotateApiKeyRequest(name=powerful.name)
    assert await answer(service, stub.RotateApiKey, rotate, keeper) == "PERMISSION_DENIED SCOPE_NOT_GRANTED"


async def test_a_teams_administrator_cannot_take_over_a_key_that_runs_the_organization(service: AdminService) -> None:
    stub, lead = service.stub, await holder(service, pb.ROLE_TEAM_ADMIN, SEARCH)
    boss = await service.create_key(SEARCH)
    rotate = pb.RotateApiKeyRequest(name=boss.name, discard_newest=False)
    assert await answer(service, stub.RotateApiKey, rotate, lead) == "OK"

    await bind(service, boss, pb.ROLE_ORG_ADMIN, ACME)
    again = pb.RotateApiKeyRequest(name=boss.name, discard_newest=True)
    assert await answer(service, stub.RotateApiKey, again, lead) == "PERMISSION_DENIED ROLE_NOT_GRANTED"


async def test_a_role_that_is_taken_away_ends_at_once(service: AdminService) -> None:
    stub = service.stub
    key = await service.create_key(scopes=ADMIN_SCOPES)
    binding = await bind(service, key, pb.ROLE_ORG_ADMIN, ACME)
    get = pb.GetTeamRequest(name=SEARCH)
    assert await answer(service, stub.GetTeam, get, bearer(key.secret)) == "OK"

    await service.call(stub.DeleteRoleBinding, pb.DeleteRoleBindingRequest(name=binding.name))

    assert await answer(service, stub.GetTeam, get, bearer(key.secret)) == "PERMISSION_DENIED ROLE_NOT_GRANTED"


@pytest.mark.parametrize(
    ("place", "role"),
    [
        ("", pb.ROLE_ORG_ADMIN),
        ("", pb.ROLE_MEMBER),
        (ACME, pb.ROLE_PLATFORM_ADMIN),
        (ACME, pb.ROLE_TEAM_ADMIN),
        (SEARCH, pb.ROLE_ORG_ADMIN),
        (SEARCH, pb.ROLE_UNSPECIFIED),
        (SEARCH, 77),
    ],
)
async def test_a_role_is_bound_at_its_own_depth(service: AdminService, place: str, role: pb.Role.ValueType) -> None:
    key = await service.create_key()
    principal = f"apiKeys/{key.name.rpartition('/')[2]}"
    request = pb.CreateRoleBindingRequest(parent=place, role_binding=pb.RoleBinding(principal=principal, role=role))

    refused = await service.refused(service.stub.CreateRoleBinding, request)

    assert (refused.code, refused.fields) == ("INVALID_ARGUMENT", ("role_binding.role",))


async def test_a_strangers_key_is_bound_nowhere_here_and_nobody_learns_that_it_exists(service: AdminService) -> None:
    stub, boss = service.stub, await holder(service, pb.ROLE_ORG_ADMIN, ACME)
    there = await service.create_key(f"{GLOBEX}/teams/search")
    requests = [
        pb.CreateRoleBindingRequest(
            parent=ACME, role_binding=pb.RoleBinding(principal=f"apiKeys/{key}", role=pb.ROLE_ORG_ADMIN)
        )
        for key in (there.name.rpartition("/")[2], "000000000000")
    ]

    refusals = [await service.refused(stub.CreateRoleBinding, request, boss) for request in requests]

    assert refusals[0] == refusals[1]
    assert refusals[0].fields == ("role_binding.principal",)


async def test_bindings_are_listed_where_they_hold_and_below(service: AdminService) -> None:
    stub = service.stub
    key = await service.create_key()
    for place, role in ((SEARCH, pb.ROLE_MEMBER), (ACME, pb.ROLE_ORG_ADMIN), ("", pb.ROLE_PLATFORM_VIEWER)):
        await bind(service, key, role, place)
    boss = await holder(service, pb.ROLE_ORG_ADMIN, ACME)

    async def listed(parent: str, metadata: Metadata | None = None, **fields: str) -> set[int]:
        request = pb.ListRoleBindingsRequest(parent=parent, **fields)
        found = await service.call(stub.ListRoleBindings, request, metadata)
        return {binding.role for binding in found.role_bindings}

    assert await listed(SEARCH) == {pb.ROLE_MEMBER}
    assert await listed(ACME) == {pb.ROLE_MEMBER, pb.ROLE_ORG_ADMIN}
    assert await listed("") == {pb.ROLE_MEMBER, pb.ROLE_ORG_ADMIN, pb.ROLE_PLATFORM_VIEWER}
    assert await listed("organizations/-", boss) == {pb.ROLE_MEMBER, pb.ROLE_ORG_ADMIN}
    assert await listed(ACME, principal="apiKeys/000000000000") == set()


async def test_a_binding_is_found_by_its_whole_name_only(service: AdminService) -> None:
    stub, key = service.stub, await service.create_key()
    made = await bind(service, key, pb.ROLE_MEMBER, SEARCH)
    binding_id = made.name.rpartition("/")[2]

    assert await service.call(stub.GetRoleBinding, pb.GetRoleBindingRequest(name=made.name)) == made
    for name in (f"{ADS}/roleBindings/{binding_id}", f"roleBindings/{binding_id}"):
        refused = await service.refused(stub.GetRoleBinding, pb.GetRoleBindingRequest(name=name))
        assert refused.code == "NOT_FOUND"
    twice = await service.refused(
        stub.CreateRoleBinding,
        pb.CreateRoleBindingRequest(
            parent=SEARCH, role_binding=pb.RoleBinding(principal=made.principal, role=made.role)
        ),
    )
    assert twice.code == "ALREADY_EXISTS"
