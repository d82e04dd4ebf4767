"""Lists: what a filter finds, in which order, and page by page whatever else changes meanwhile."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC
from fnmatch import fnmatchcase

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.filters import parse_filter, parse_order
from gateway.errors import InvalidFieldError
from gateway.store.listing import Alternative, Comparison, Conjunction, Negation
from gateway.store.records import Order
from tests.admin.service import AdminService, Refused

SLOW = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
NAMES = ("", "a", "ab", "b%", "b_c", 'q"uo\\te', "AND", "z*")
STATES = ("ACTIVE", "SUSPENDED")


@dataclass(frozen=True)
class Written:
    """A filter as text, and what it finds."""

    text: str
    finds: object  # of an organization's display name and state, whether it is found


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def comparison(path: str, operator: str, value: str) -> Written:
    def finds(organization: dict[str, str]) -> bool:
        own = organization[path]
        if "*" in value:
            pattern = "".join("*" if char == "*" else f"[{char}]" if char in "[?]" else char for char in value)
            return fnmatchcase(own, pattern) == (operator == "=")
        return {"=": own == value, "!=": own != value, "<": own < value, ">=": own >= value}[operator]

    return Written(f"{path} {operator} {quoted(value)}", finds)


comparisons = st.one_of(
    st.builds(comparison, st.just("state"), st.sampled_from(["=", "!="]), st.sampled_from(STATES)),
    st.builds(comparison, st.just("display_name"), st.sampled_from(["=", "!="]), st.sampled_from([*NAMES, "*b*"])),
)
conditions = st.recursive(
    comparisons,
    lambda parts: st.one_of(
        st.builds(lambda part: Written(f"NOT ({part.text})", lambda org: not part.finds(org)), parts),
        st.builds(lambda part: Written(f"-({part.text})", lambda org: not part.finds(org)), parts),
        st.builds(
            lambda a, b: Written(f"({a.text}) AND ({b.text})", lambda org: a.finds(org) and b.finds(org)), parts, parts
        ),
        st.builds(
            lambda a, b: Written(f"({a.text}) ({b.text})", lambda org: a.finds(org) and b.finds(org)), parts, parts
        ),
        st.builds(
            lambda a, b: Written(f"({a.text}) OR ({b.text})", lambda org: a.finds(org) or b.finds(org)), parts, parts
        ),
    ),
    max_leaves=6,
)


async def make_organizations(service: AdminService) -> list[dict[str, str]]:
    """An organization of each name and state, as the filters' fields have them."""
    listed = await service.call(service.stub.ListOrganizations, pb.ListOrganizationsRequest())
    if not listed.organizations:
        for index, (name, state) in enumerate((name, state) for name in NAMES for state in STATES):
            fields = {"display_name": name, "state": f"STATE_{state}"}
            await service.create_org(f"o{index}", **fields)
    listed = await service.call(service.stub.ListOrganizations, pb.ListOrganizationsRequest())
    return [
        {
            "name": organization.name,
            "display_name": organization.display_name,
            "state": pb.State.Name(organization.state).removeprefix("STATE_"),
        }
        for organization in listed.organizations
    ]


async def list_in_pages(service: AdminService, page_size: int, **fields) -> list[str]:
    names, token = [], ""
    while True:
        request = pb.ListOrganizationsRequest(page_size=page_size, page_token=token, **fields)
        page = await service.call(service.stub.ListOrganizations, request)
        names += [organization.name for organization in page.organizations]
        token = page.next_page_token
        if not token:
            return names


@SLOW
@given(written=conditions, page_size=st.integers(3, 20))
async def test_filter_finds_what_it_says_on_pages_of_any_size(service: AdminService, written, page_size: int):
    organizations = await make_organizations(service)

    found = await list_in_pages(service, page_size, filter=written.text)

    assert found == [each["name"] for each in organizations if written.finds(each)]


@SLOW
@given(
    order=st.lists(st.sampled_from(["display_name", "state", "name", "create_time"]), unique=True, max_size=3),
    is_descending=st.lists(st.booleans(), min_size=3, max_size=3),
    page_size=st.integers(3, 20),
)
async def test_pages_in_any_order_have_everything_once(service: AdminService, order, is_descending, page_size: int):
    await make_organizations(service)
    text = ", ".join(
        f"{field} desc" if descending else field for field, descending in zip(order, is_descending, strict=False)
    )

    in_pages = await list_in_pages(service, page_size, order_by=text)
    at_once = await list_in_pages(service, 1000, order_by=text)

    assert in_pages == at_once
    assert len(set(in_pages)) == len(NAMES) * len(STATES)


async def test_order_is_what_was_asked_for(service: AdminService):
    await make_organizations(service)

    found = await list_in_pages(service, 3, order_by="state desc, create_time desc")

    numbers = [int(name.partition("/o")[2]) for name in found]
    assert numbers == [*range(15, 0, -2), *range(14, -1, -2)]


async def test_what_does_not_change_is_in_exactly_one_page_whatever_else_does(service: AdminService):
    await make_organizations(service)
    request = pb.ListOrganizationsRequest(page_size=5, order_by="update_time")
    first = await service.call(service.stub.ListOrganizations, request)
    touched = first.organizations[-1]
    await service.call(
        service.stub.UpdateOrganization,
        pb.UpdateOrganizationRequest(organization=pb.Organization(name=touched.name, display_name="moved")),
    )

    names = [organization.name for organization in first.organizations]
    token = first.next_page_token
    while token:
        request = pb.ListOrganizationsRequest(page_size=5, order_by="update_time", page_token=token)
        page = await service.call(service.stub.ListOrganizations, request)
        names += [organization.name for organization in page.organizations]
        token = page.next_page_token

    assert all(names.count(f"organizations/o{index}") == 1 for index in range(16) if f"o{index}" not in touched.name)


async def test_page_token_continues_only_its_own_filter_and_order(service: AdminService):
    await make_organizations(service)
    page = await service.call(service.stub.ListOrganizations, pb.ListOrganizationsRequest(page_size=1))

    for fields in ({"filter": 'state = "ACTIVE"'}, {"order_by": "name"}, {"show_deleted": True}):
        request = pb.ListOrganizationsRequest(page_token=page.next_page_token, **fields)
        refused = await service.refused(service.stub.ListOrganizations, request)
        assert refused == Refused("INVALID_ARGUMENT", "INVALID_FIELD", ("page_token",))


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("state", "filter"),
        ("state =", "filter"),
        ("= x", "filter"),
        ("(state = ACTIVE", "filter"),
        ("state = ACTIVE)", "filter"),
        ('state = "ACTIVE', "filter"),
        ("colour = red", "filter"),
        ("create_time > yesterday", "filter"),
        ("state:ACTIVE", "filter"),
        ("(" * 30 + "state = x" + ")" * 30, "filter"),
        ("x" * 3000, "filter"),
        ("colour", "order_by"),
        ("name up", "order_by"),
        ("name, name desc", "order_by"),
        ("delete_time;", "order_by"),
    ],
)
async def test_what_cannot_be_read_is_refused_by_its_field(module_service: AdminService, text: str, field: str):
    refused = await module_service.refused(
        module_service.stub.ListOrganizations, pb.ListOrganizationsRequest(**{field: text})
    )

    assert refused == Refused("INVALID_ARGUMENT", "INVALID_FIELD", (field,))


@settings(max_examples=300)
@given(text=st.text(alphabet="abc()\"'\\=<>!:-* \n*ANDORNT,.0", max_size=60))
def test_any_text_is_read_or_refused(text: str):
    for parse in (parse_filter, parse_order):
        with suppress(InvalidFieldError):
            parse(text)


def test_or_binds_tighter_than_and():
    a, b, c = (Comparison(name, "=", "1") for name in "abc")

    assert parse_filter("a = 1 AND b = 1 OR c = 1") == Conjunction((a, Alternative((b, c))))
    assert parse_filter("a=1 b=1 OR -c=1") == Conjunction((a, Alternative((b, Negation(c)))))
    assert parse_filter("NOT (a=1 OR b=1)") == Negation(Alternative((a, b)))
    assert parse_filter("  ") is None


def test_values_may_be_bare_or_quoted():
    assert parse_filter('a = "x y"') == parse_filter("a = 'x y'") == Comparison("a", "=", "x y")
    assert parse_filter('a = "AND"') == Comparison("a", "=", "AND")
    assert parse_filter("t >= 2026-01-31T00:00:00Z") == Comparison("t", ">=", "2026-01-31T00:00:00Z")


def test_order_is_a_list_of_fields():
    assert parse_order("a desc,  b asc , c") == (Order("a", descending=True), Order("b"), Order("c"))
    assert parse_order("") == ()


async def test_times_flags_and_lists_are_compared_as_such(service: AdminService):
    await service.create_org()
    await service.create_team()
    key, other = await service.create_key(scopes=["inference"]), await service.create_key(model_grants=["m"])
    await service.call(service.stub.RevokeApiKey, pb.RevokeApiKeyRequest(name=key.name))
    middle = other.create_time.ToDatetime(tzinfo=UTC).isoformat()

    async def found(text: str) -> list[str]:
        request = pb.ListApiKeysRequest(parent="organizations/acme/teams/search", filter=text)
        return [each.name for each in (await service.call(service.stub.ListApiKeys, request)).api_keys]

    assert await found("revoke_time:*") == [key.name]
    assert await found("NOT revoke_time:*") == [other.name]
    assert await found("model_grants:m") == [other.name]
    assert await found("model_grants:*") == [other.name]
    assert await found('scopes:"quota.read"') == [other.name]
    assert await found(f'create_time < "{middle}"') == [key.name]
    assert await found(f'create_time >= "{middle}"') == [other.name]
    assert await found("NOT expire_time > 2000-01-01") == []
    assert await found(f"name = {key.name}") == [key.name]
