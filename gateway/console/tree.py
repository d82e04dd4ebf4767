"""The tenants that a visitor may see, as a tree: organizations, each with its teams."""

from collections import abc
from dataclasses import dataclass, field
from uuid import UUID

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.servicer import AdminServicer
from gateway.auth import Action
from gateway.console.visit import Visit
from gateway.store.identity import PLATFORM
from gateway.store.snapshot import TenancySnapshot

ORGANIZATIONS_PER_PAGE = 20
TEAMS_PER_ORGANIZATION = 100
MAX_FOUND = 1000
NOT_TO_BE_QUOTED = str.maketrans("", "", "\"\\*'")


@dataclass(slots=True)
class Branch:
    """An organization with its teams. `organization` None: the visitor may see teams of it only."""

    slug: str
    organization: pb.Organization | None
    teams: list[pb.Team] = field(default_factory=list)
    has_more_teams: bool = False


@dataclass(frozen=True, slots=True)
class Tree:
    """A page of it, and the token of the next one or "". `is_cut`: there is more, and no next page."""

    branches: abc.Sequence[Branch]
    next_page: str = ""
    is_cut: bool = False


async def read_tree(visit: Visit, page: str, search: str, *, shows_deleted: bool) -> Tree:
    """Sorted by name. `search` is looked for in the names. Raises GatewayError."""
    wanted = search.translate(NOT_TO_BE_QUOTED)
    if wanted:
        return await _found(visit, f'name = "*{wanted}*" OR display_name = "*{wanted}*"', shows_deleted=shows_deleted)
    if not visit.may(Action.READ, PLATFORM):
        return await _found(visit, "", shows_deleted=shows_deleted)
    answer = await visit.call(
        AdminServicer.ListOrganizations,
        pb.ListOrganizationsRequest(
            page_size=ORGANIZATIONS_PER_PAGE, page_token=page, order_by="name", show_deleted=shows_deleted
        ),
    )
    branches = [await _branch(visit, each, shows_deleted=shows_deleted) for each in answer.organizations]
    return Tree(branches, answer.next_page_token)


def weight_of(snapshot: TenancySnapshot, resource: pb.Organization | pb.Team) -> float | None:
    """Its share against siblings as this gateway goes by now; None for one that it does not know yet."""
    known = snapshot.teams if isinstance(resource, pb.Team) else snapshot.organizations
    record = known.get(UUID(resource.uid))
    return None if record is None else record.weight


async def _branch(visit: Visit, organization: pb.Organization, *, shows_deleted: bool) -> Branch:
    answer = await visit.call(
        AdminServicer.ListTeams,
        pb.ListTeamsRequest(
            parent=organization.name, page_size=TEAMS_PER_ORGANIZATION, order_by="name", show_deleted=shows_deleted
        ),
    )
    slug = organization.name.rpartition("/")[2]
    return Branch(slug, organization, list(answer.teams), has_more_teams=bool(answer.next_page_token))


async def _found(visit: Visit, condition: str, *, shows_deleted: bool) -> Tree:
    """All that the condition finds on one page, up to MAX_FOUND of each kind."""
    organizations = await visit.call(
        AdminServicer.ListOrganizations,
        pb.ListOrganizationsRequest(page_size=MAX_FOUND, filter=condition, order_by="name", show_deleted=shows_deleted),
    )
    teams = await visit.call(
        AdminServicer.ListTeams,
        pb.ListTeamsRequest(
            parent="organizations/-",
            page_size=MAX_FOUND,
            filter=condition,
            order_by="name",
            show_deleted=shows_deleted,
        ),
    )
    branch_by_slug: dict[str, Branch] = {}
    for organization in organizations.organizations:
        slug = organization.name.rpartition("/")[2]
        branch_by_slug[slug] = Branch(slug, organization)
    for team in teams.teams:
        slug = team.name.split("/")[1]
        branch_by_slug.setdefault(slug, Branch(slug, None)).teams.append(team)
    is_cut = bool(organizations.next_page_token or teams.next_page_token)
    return Tree([branch for _, branch in sorted(branch_by_slug.items())], is_cut=is_cut)
