"""Values that no resource can have: refused by the name of their field, and never as if the database were away."""

import pytest
from sqlalchemy import text

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.backend import refusal
from gateway.errors import InvalidFieldError
from gateway.store.db import Database, DatabaseOptions
from gateway.store.errors import InvalidValueError
from tests.admin.service import AdminService, Refused


def invalid(field: str) -> Refused:
    return Refused("INVALID_ARGUMENT", "INVALID_FIELD", (field,))


@pytest.mark.parametrize("reason", ["\0", "two\nlines", "x" * 501])
async def test_the_reason_of_a_revocation_is_one_line(service: AdminService, reason: str):
    await service.create_org()
    await service.create_team()
    key = await service.create_key()
    request = pb.RevokeApiKeyRequest(name=key.name, reason=reason)

    assert await service.refused(service.stub.RevokeApiKey, request) == invalid("reason")


@pytest.mark.parametrize("condition", ["\0", 'display_name = "\0"', "name = a\0b", "state:\0"])
async def test_a_filter_holds_no_nul(module_service: AdminService, condition: str):
    request = pb.ListOrganizationsRequest(filter=condition)

    assert await module_service.refused(module_service.stub.ListOrganizations, request) == invalid("filter")


@pytest.mark.parametrize("text", ["\0", "x" * 201])
@pytest.mark.parametrize(
    "field", ["scheduling_policy", "preemption_policy", "scheduling_options", "preemption_options"]
)
async def test_what_engines_are_told_is_short(module_service: AdminService, field: str, text: str):
    request = pb.SetSchedulingPolicyRequest(scheduling_policy="fair")
    if field.endswith("options"):
        getattr(request, field)["slack"] = text
    else:
        setattr(request, field, text)

    assert await module_service.refused(module_service.stub.SetSchedulingPolicy, request) == invalid(field)
    assert not module_service.engines[0].told


def test_a_value_whose_field_the_database_does_not_say_is_given_no_wrong_one():
    error = refusal(InvalidValueError("", "a text has a NUL character, or a number is out of range"), "api_key")

    assert isinstance(error, InvalidFieldError)
    assert [(each.field, each.description) for each in error.field_violations] == [
        ("", "a text has a NUL character, or a number is out of range")
    ]


async def test_a_change_that_waits_too_long_for_another_is_told_so(
    service: AdminService, database_url: str, monkeypatch: pytest.MonkeyPatch
):
    hurried = Database(database_url, DatabaseOptions(lock_timeout_s=0.1))
    monkeypatch.setattr(service.database, "session", hurried.session)
    other = Database(database_url)
    async with other.session() as holding:
        await holding.execute(text("SELECT * FROM policy_revision FOR UPDATE"))
        request = pb.CreateOrganizationRequest(organization_id="acme")

        refused = await service.refused(service.stub.CreateOrganization, request)

    assert (refused.code, refused.reason) == ("UNAVAILABLE", "STORE_TIMEOUT")
    await service.create_org()
    await hurried.close()
    await other.close()


async def test_a_page_of_large_events_is_shorter_and_the_next_one_goes_on(
    service: AdminService, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gateway.admin.backend.MAX_PAGE_BYTES", 300)
    for number in range(6):
        await service.create_org(f"org-{number}")
    request, seen, sizes = pb.ListAuditEventsRequest(page_size=1000, order_by="revision desc"), [], []
    while True:
        page = await service.call(service.stub.ListAuditEvents, request)
        seen += [event.name for event in page.audit_events]
        sizes.append(len(page.audit_events))
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token

    assert seen == [f"auditEvents/{number}" for number in range(7, 0, -1)]
    assert len(sizes) > 1
    assert all(sizes)
