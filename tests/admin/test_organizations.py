"""Organizations and teams through the wire: names, etags, masks, pages, retries, dry runs."""

from uuid import uuid4

from google.protobuf.field_mask_pb2 import FieldMask

from evenflow.admin.v1 import admin_pb2 as pb
from tests.admin.service import AdminService, Refused, bearer


async def test_created_organization_is_found_and_listed(service: AdminService):
    created = await service.create_org("acme", display_name="Acme Ltd")

    found = await service.call(service.stub.GetOrganization, pb.GetOrganizationRequest(name="organizations/acme"))
    listed = await service.call(service.stub.ListOrganizations, pb.ListOrganizationsRequest())

    assert found == created
    assert list(listed.organizations) == [created]
    assert (found.name, found.display_name, found.state) == ("organizations/acme", "Acme Ltd", pb.STATE_ACTIVE)
    assert found.etag
    assert found.create_time.seconds > 0


async def test_new_organization_and_team_have_a_default_policy_of_weight_one(service: AdminService):
    await service.create_org()
    await service.create_team()

    for node in ("organizations/acme", "organizations/acme/teams/search"):
        name = f"{node}/quotaPolicies/default"
        policy = await service.call(service.stub.GetQuotaPolicy, pb.GetQuotaPolicyRequest(name=name))
        assert (policy.name, policy.weight, len(policy.limits)) == (name, 1.0, 0)


async def test_organization_id_outside_the_grammar_is_refused(service: AdminService):
    for org_id in ("", "Acme", "1st", "a" * 64, "a b", "ä", "-", "a/b"):
        request = pb.CreateOrganizationRequest(organization_id=org_id)
        refused = await service.refused(service.stub.CreateOrganization, request)
        assert refused == Refused("INVALID_ARGUMENT", "INVALID_FIELD", ("organization_id",)), org_id


async def test_bad_value_is_refused_by_its_path(service: AdminService):
    for fields, path in (
        ({"display_name": "x" * 201}, "organization.display_name"),
        ({"display_name": "two\nlines"}, "organization.display_name"),
        ({"state": pb.STATE_DELETED}, "organization.state"),
        ({"state": 99}, "organization.state"),
    ):
        request = pb.CreateOrganizationRequest(organization_id="acme", organization=pb.Organization(**fields))
        refused = await service.refused(service.stub.CreateOrganization, request)
        assert refused == Refused("INVALID_ARGUMENT", "INVALID_FIELD", (path,)), fields


async def test_fields_that_only_the_service_writes_are_ignored_at_creation(service: AdminService):
    created = await service.create_org("acme", uid="mine", name="organizations/other", etag="e1")

    assert created.name == "organizations/acme"
    assert created.uid != "mine"


async def test_taken_name_is_refused(service: AdminService):
    await service.create_org()

    refused = await service.refused(
        service.stub.CreateOrganization, pb.CreateOrganizationRequest(organization_id="acme")
    )

    assert (refused.code, refused.reason) == ("ALREADY_EXISTS", "RESOURCE_EXISTS")


async def test_unknown_name_is_not_found(service: AdminService):
    for name in ("organizations/ghost", "organizations/acme"):
        refused = await service.refused(service.stub.GetOrganization, pb.GetOrganizationRequest(name=name))
        assert (refused.code, refused.reason) == ("NOT_FOUND", "RESOURCE_NOT_FOUND")


async def test_malformed_name_is_refused_by_its_path(service: AdminService):
    for name in ("", "acme", "organizations/", "organizations/-", "organizations/a/b", "teams/a"):
        refused = await service.refused(service.stub.GetOrganization, pb.GetOrganizationRequest(name=name))
        assert refused == Refused("INVALID_ARGUMENT", "INVALID_FIELD", ("name",)), name


async def test_update_changes_only_what_the_mask_names(service: AdminService):
    created = await service.create_org("acme", display_name="Acme")
    changed = pb.Organization(name=created.name, display_name="ignored", state=pb.STATE_SUSPENDED)

    request = pb.UpdateOrganizationRequest(organization=changed, update_mask=FieldMask(paths=["state"]))
    updated = await service.call(service.stub.UpdateOrganization, request)

    assert (updated.display_name, updated.state) == ("Acme", pb.STATE_SUSPENDED)
    assert updated.etag != created.etag


async def test_update_without_a_mask_changes_the_fields_that_are_set(service: AdminService):
    created = await service.create_org("acme", display_name="Acme")

    request = pb.UpdateOrganizationRequest(organization=pb.Organization(name=created.name, display_name="Acme Ltd"))
    updated = await service.call(service.stub.UpdateOrganization, request)

    assert (updated.display_name, updated.state) == ("Acme Ltd", pb.STATE_ACTIVE)


async def test_whole_update_must_say_the_state(service: AdminService):
    created = await service.create_org("acme", display_name="Acme")
    request = pb.UpdateOrganizationRequest(
        organization=pb.Organization(name=created.name), update_mask=FieldMask(paths=["*"])
    )

    refused = await service.refused(service.stub.UpdateOrganization, request)

    assert refused.fields == ("organization.state",)


async def test_mask_of_a_field_that_cannot_be_written_is_refused(service: AdminService):
    created = await service.create_org()

    for path in ("name", "uid", "etag", "create_time", "no_such_field", "display_name.x"):
        request = pb.UpdateOrganizationRequest(organization=created, update_mask=FieldMask(paths=[path]))
        refused = await service.refused(service.stub.UpdateOrganization, request)
        assert refused == Refused("INVALID_ARGUMENT", "INVALID_FIELD", ("update_mask",)), path


async def test_stale_etag_aborts_and_changes_nothing(service: AdminService):
    created = await service.create_org("acme", display_name="first")
    newer = pb.Organization(name=created.name, display_name="second", etag=created.etag)
    await service.call(service.stub.UpdateOrganization, pb.UpdateOrganizationRequest(organization=newer))
    stale = pb.Organization(name=created.name, display_name="third", etag=created.etag)

    refused = await service.refused(service.stub.UpdateOrganization, pb.UpdateOrganizationRequest(organization=stale))

    assert (refused.code, refused.reason) == ("ABORTED", "ETAG_MISMATCH")
    found = await service.call(service.stub.GetOrganization, pb.GetOrganizationRequest(name=created.name))
    assert found.display_name == "second"


async def test_dry_run_checks_and_keeps_nothing(service: AdminService):
    request = pb.CreateOrganizationRequest(organization_id="acme", validate_only=True)

    answer = await service.call(service.stub.CreateOrganization, request)

    assert answer.name == "organizations/acme"
    refused = await service.refused(service.stub.GetOrganization, pb.GetOrganizationRequest(name=answer.name))
    assert refused.code == "NOT_FOUND"


async def test_retry_with_the_same_request_id_makes_one_organization(service: AdminService):
    request = pb.CreateOrganizationRequest(organization_id="acme", request_id=str(uuid4()))

    first = await service.call(service.stub.CreateOrganization, request)
    second = await service.call(service.stub.CreateOrganization, request)

    assert first == second


async def test_request_id_of_another_request_is_refused(service: AdminService):
    request_id = str(uuid4())
    await service.call(
        service.stub.CreateOrganization, pb.CreateOrganizationRequest(organization_id="acme", request_id=request_id)
    )

    refused = await service.refused(
        service.stub.CreateOrganization, pb.CreateOrganizationRequest(organization_id="other", request_id=request_id)
    )

    assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "REQUEST_ID_REUSED")


async def test_request_id_that_is_no_uuid_is_refused(service: AdminService):
    request = pb.CreateOrganizationRequest(organization_id="acme", request_id="again")

    refused = await service.refused(service.stub.CreateOrganization, request)

    assert refused.fields == ("request_id",)


async def test_pages_hold_every_organization_once_in_order(service: AdminService):
    names = [(await service.create_org(f"org-{n}")).name for n in range(5)]

    seen, token, num_pages = [], "", 0
    while num_pages == 0 or token:
        page = await service.call(
            service.stub.ListOrganizations, pb.ListOrganizationsRequest(page_size=2, page_token=token)
        )
        seen += [org.name for org in page.organizations]
        token, num_pages = page.next_page_token, num_pages + 1

    assert seen == names
    assert num_pages == 3


async def test_page_of_exactly_the_rest_has_no_next_token(service: AdminService):
    for n in range(2):
        await service.create_org(f"org-{n}")

    page = await service.call(service.stub.ListOrganizations, pb.ListOrganizationsRequest(page_size=2))

    assert (len(page.organizations), page.next_page_token) == (2, "")


async def test_negative_page_size_is_refused_and_a_huge_one_is_cut(service: AdminService):
    await service.create_org()

    refused = await service.refused(service.stub.ListOrganizations, pb.ListOrganizationsRequest(page_size=-1))
    page = await service.call(service.stub.ListOrganizations, pb.ListOrganizationsRequest(page_size=2**31 - 1))

    assert refused.fields == ("page_size",)
    assert len(page.organizations) == 1


async def test_token_of_another_list_or_an_edited_one_is_refused(service: AdminService):
    await service.create_org("acme")
    await service.create_org("other")
    page = await service.call(service.stub.ListOrganizations, pb.ListOrganizationsRequest(page_size=1))
    token = page.next_page_token
    edited = token[:-2] + ("AA" if token[-2:] != "AA" else "BB")

    elsewhere = await service.refused(
        service.stub.ListTeams, pb.ListTeamsRequest(parent="organizations/acme", page_token=token)
    )
    forged = [
        await service.refused(service.stub.ListOrganizations, pb.ListOrganizationsRequest(page_token=text))
        for text in (edited, "x", "not base64!", "é")
    ]

    assert {refused.fields for refused in [elsewhere, *forged]} == {("page_token",)}


async def test_teams_of_one_organization_or_of_all_are_listed(service: AdminService):
    for org_id, team_id in (("acme", "search"), ("acme", "ads"), ("beta", "search")):
        if team_id == "search":
            await service.create_org(org_id)
        await service.create_team(team_id, org_id)

    one = await service.call(service.stub.ListTeams, pb.ListTeamsRequest(parent="organizations/acme"))
    every = await service.call(service.stub.ListTeams, pb.ListTeamsRequest(parent="organizations/-"))

    assert [team.name for team in one.teams] == ["organizations/acme/teams/search", "organizations/acme/teams/ads"]
    assert len(every.teams) == 3


async def test_team_takes_its_classes_by_name(service: AdminService):
    await service.create_org()
    team = await service.create_team(
        default_priority_class="priorityClasses/batch", priority_class_grants=["priorityClasses/priority"]
    )

    assert team.default_priority_class == "priorityClasses/batch"
    assert "priorityClasses/priority" in team.priority_class_grants


async def test_class_that_does_not_exist_is_refused_by_its_path(service: AdminService):
    await service.create_org()

    for fields, path in (
        ({"default_priority_class": "batch"}, "team.default_priority_class"),
        ({"default_priority_class": "priorityClasses/ghost"}, "team.default_priority_class"),
        ({"priority_class_grants": ["priorityClasses/ghost"]}, "team.priority_class_grants"),
        ({"priority_class_grants": ["priorityClasses/batch", "x"]}, "team.priority_class_grants[1]"),
        ({"priority_class_grants": ["priorityClasses/batch"] * 2}, "team.priority_class_grants[1]"),
    ):
        request = pb.CreateTeamRequest(parent="organizations/acme", team_id="search", team=pb.Team(**fields))
        refused = await service.refused(service.stub.CreateTeam, request)
        assert refused == Refused("INVALID_ARGUMENT", "INVALID_FIELD", (path,)), fields


async def test_change_is_in_force_before_the_answer(service: AdminService):
    await service.create_org()
    team = await service.create_team()

    request = pb.UpdateTeamRequest(team=pb.Team(name=team.name, state=pb.STATE_SUSPENDED))
    await service.call(service.stub.UpdateTeam, request)

    (record,) = service.cache.current.teams.values()
    assert record.state == "SUSPENDED"


async def test_nobody_but_a_platform_administrator_gets_in(service: AdminService):
    await service.create_org()
    await service.create_team()
    key = await service.create_key()

    as_tenant = await service.refused(
        service.stub.ListOrganizations, pb.ListOrganizationsRequest(), metadata=bearer(key.secret)
    )
    as_nobody = await service.refused(service.stub.ListOrganizations, pb.ListOrganizationsRequest(), metadata=())

    assert (as_tenant.code, as_tenant.reason) == ("PERMISSION_DENIED", "SCOPE_NOT_GRANTED")
    assert (as_nobody.code, as_nobody.reason) == ("UNAUTHENTICATED", "CREDENTIAL_INVALID")
