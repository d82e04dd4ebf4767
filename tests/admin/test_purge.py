"""What a purge takes of roles, issuers and request ids, beside what was deleted."""

from uuid import uuid4

from sqlalchemy import text

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.store.cache import TenancyCache
from gateway.store.deletion import purge
from gateway.store.enums import Role
from tests.admin.service import AdminService
from tests.admin.test_deletion import ORG, TEAM, delete_key, delete_org, delete_team, let_time_pass, tenant

__all__ = ["tenant"]


async def bind(service: AdminService, principal: str, role: pb.Role.ValueType, place: str) -> None:
    binding = pb.RoleBinding(principal=principal, role=role)
    await service.call(service.stub.CreateRoleBinding, pb.CreateRoleBindingRequest(parent=place, role_binding=binding))


def issuer_request() -> pb.CreateJwtIssuerRequest:
    issuer = pb.JwtIssuer(
        issuer="https://login.example.test/",
        organization=ORG,
        audiences=["evenflow"],
        jwks_uri="https://login.example.test/keys",
        claim_map={"team": "team"},
    )
    return pb.CreateJwtIssuerRequest(jwt_issuer_id="login", jwt_issuer=issuer)


async def test_purge_ends_the_roles_and_issuers_of_what_it_takes_on_every_gateway(tenant: AdminService):
    other, key = TenancyCache(tenant.database), await tenant.create_key()
    short_name = f"apiKeys/{key.name.rpartition('/')[2]}"
    await tenant.call(tenant.stub.CreateJwtIssuer, issuer_request())
    await bind(tenant, "jwtIssuers/login/subjects/ada", pb.ROLE_ORG_ADMIN, ORG)
    await bind(tenant, "jwtIssuers/login/subjects/ada", pb.ROLE_TEAM_ADMIN, TEAM)
    await bind(tenant, short_name, pb.ROLE_MEMBER, TEAM)
    await bind(tenant, short_name, pb.ROLE_PLATFORM_VIEWER, "")
    await delete_key(tenant, key)
    await delete_team(tenant)
    await delete_org(tenant)
    before = (await other.refresh()).identity
    await let_time_pass(tenant)
    await purge(tenant.database)

    after = (await other.refresh()).identity
    bindings = await tenant.call(tenant.stub.ListRoleBindings, pb.ListRoleBindingsRequest(parent="organizations/-"))
    assert list(before.issuers) == ["https://login.example.test/"]
    assert (len(before.bindings[short_name]), after.issuers, list(bindings.role_bindings)) == (2, {}, [])
    assert Role.PLATFORM_VIEWER not in {binding.role for binding in after.bindings.get(short_name, ())}
    await tenant.create_org()
    assert (await tenant.call(tenant.stub.CreateJwtIssuer, issuer_request())).organization == ORG


async def test_another_issuer_of_the_same_name_inherits_no_role(tenant: AdminService) -> None:
    await tenant.call(tenant.stub.CreateJwtIssuer, issuer_request())
    await bind(tenant, "jwtIssuers/login/subjects/ada", pb.ROLE_ORG_ADMIN, ORG)
    login_2 = issuer_request()
    login_2.jwt_issuer_id, login_2.jwt_issuer.issuer = "login-2", "https://login-2.example.test/"
    await tenant.call(tenant.stub.CreateJwtIssuer, login_2)
    await bind(tenant, "jwtIssuers/login-2/subjects/ada", pb.ROLE_ORG_ADMIN, ORG)
    gateway = TenancyCache(tenant.database)
    await gateway.refresh()

    await tenant.call(tenant.stub.DeleteJwtIssuer, pb.DeleteJwtIssuerRequest(name="jwtIssuers/login"))
    await tenant.call(tenant.stub.CreateJwtIssuer, issuer_request())

    bindings = await tenant.call(tenant.stub.ListRoleBindings, pb.ListRoleBindingsRequest(parent=ORG))
    assert [binding.principal for binding in bindings.role_bindings] == ["jwtIssuers/login-2/subjects/ada"]
    assert "jwtIssuers/login/subjects/ada" not in (await gateway.refresh()).identity.bindings


async def test_purge_forgets_roles_and_issuers_that_were_deleted_long_ago_and_no_others(tenant: AdminService):
    key = await tenant.create_key()
    short_name = f"apiKeys/{key.name.rpartition('/')[2]}"
    made = await tenant.call(tenant.stub.CreateJwtIssuer, issuer_request())
    await tenant.call(tenant.stub.DeleteJwtIssuer, pb.DeleteJwtIssuerRequest(name=made.name))
    await tenant.call(tenant.stub.CreateJwtIssuer, issuer_request())
    for place, role in ((TEAM, pb.ROLE_MEMBER), ("", pb.ROLE_PLATFORM_VIEWER)):
        await bind(tenant, short_name, role, place)
    listed = await tenant.call(tenant.stub.ListRoleBindings, pb.ListRoleBindingsRequest(principal=short_name))
    await tenant.call(tenant.stub.DeleteRoleBinding, pb.DeleteRoleBindingRequest(name=listed.role_bindings[0].name))

    await purge(tenant.database)
    numbers = [await count(tenant, "jwt_issuer"), await count(tenant, "role_binding")]
    async with tenant.database.session() as session:
        for table in ("jwt_issuer", "role_binding"):
            await session.execute(text(f"UPDATE {table} SET deleted_at = deleted_at - interval '31 days'"))
    await purge(tenant.database)

    assert numbers == [2, 2]
    assert [await count(tenant, "jwt_issuer"), await count(tenant, "role_binding")] == [1, 1]


async def count(service: AdminService, table: str) -> int:
    async with service.database.session() as session:
        return (await session.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one()


async def test_no_role_is_bound_and_no_issuer_made_in_what_is_deleted(tenant: AdminService):
    key = await tenant.create_key()
    await delete_key(tenant, key)
    await delete_team(tenant)
    principal = f"apiKeys/{key.name.rpartition('/')[2]}"
    member = pb.RoleBinding(principal=principal, role=pb.ROLE_MEMBER)
    boss = pb.RoleBinding(principal=principal, role=pb.ROLE_ORG_ADMIN)

    in_team = await tenant.refused(
        tenant.stub.CreateRoleBinding, pb.CreateRoleBindingRequest(parent=TEAM, role_binding=member)
    )
    await delete_org(tenant)
    in_org = await tenant.refused(
        tenant.stub.CreateRoleBinding, pb.CreateRoleBindingRequest(parent=ORG, role_binding=boss)
    )
    of_org = await tenant.refused(tenant.stub.CreateJwtIssuer, issuer_request())

    assert {in_team.code, in_org.code, of_org.code} == {"FAILED_PRECONDITION"}


async def test_a_request_id_of_long_ago_is_as_good_as_new(tenant: AdminService):
    request = pb.CreateOrganizationRequest(organization_id="brief", request_id=str(uuid4()))
    made = await tenant.call(tenant.stub.CreateOrganization, request)
    await tenant.call(tenant.stub.DeleteOrganization, pb.DeleteOrganizationRequest(name=made.name))
    await let_time_pass(tenant)
    await purge(tenant.database)
    async with tenant.database.session() as session:
        await session.execute(text("UPDATE admin_request SET created_at = created_at - interval '25 hours'"))

    assert (await tenant.call(tenant.stub.CreateOrganization, request)).uid != made.uid
