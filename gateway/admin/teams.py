"""Teams: from requests to statements, from records to resources."""

from collections import abc

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.backend import Backend, Listing
from gateway.admin.masks import changed_fields, set_fields
from gateway.admin.names import check_slug, class_name, parse_organization, parse_priority_class, parse_team
from gateway.admin.values import parse_display_name, parse_state, require_distinct, state_to_pb, timestamp
from gateway.store.records import DEFAULT_CLASS, ResourcePath, Team, TeamSettings
from gateway.store.teams import (
    FIELDS,
    create_team,
    delete_team,
    get_team,
    list_teams,
    undelete_team,
    update_team,
)

FIELD = "team"
WRITABLE = frozenset(
    {
        "display_name",
        "state",
        "default_priority_class",
        "priority_class_grants",
        "durable_usage",
        "shares_prefix_cache",
        "speculation_disabled",
    }
)


class Teams:
    """The methods of AdminService on teams."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def create(self, request: pb.CreateTeamRequest) -> pb.Team:
        parent = parse_organization(request.parent, "parent")
        path = ResourcePath(parent.organization, check_slug(request.team_id, "team_id"))
        change = self._backend.change(request, request.request_id, validate_only=request.validate_only)
        settings = edited_team(TeamSettings(), request.team, set_fields(request.team, WRITABLE))
        statement = create_team(self._backend.database, change, path, settings)
        return _to_pb(await self._backend.commit(statement, change, FIELD))

    async def get(self, request: pb.GetTeamRequest) -> pb.Team:
        path = parse_team(request.name, "name")
        return _to_pb(await self._backend.read(get_team(self._backend.database, path)))

    async def list(self, request: pb.ListTeamsRequest) -> pb.ListTeamsResponse:
        parent = parse_organization(request.parent, "parent", wildcards=True)
        records, token = await self._backend.filtered_page(
            lambda page: list_teams(self._backend.database, parent, page),
            request,
            Listing(f"{parent.name}/teams", FIELDS),
            shows_deleted=request.show_deleted,
        )
        return pb.ListTeamsResponse(teams=map(_to_pb, records), next_page_token=token)

    async def update(self, request: pb.UpdateTeamRequest) -> pb.Team:
        message = request.team
        path = parse_team(message.name, f"{FIELD}.name")
        fields = changed_fields(request.update_mask, message, FIELD, WRITABLE)
        change = self._backend.change(
            request, request.request_id, validate_only=request.validate_only, etag=message.etag
        )
        statement = update_team(
            self._backend.database,
            change,
            path,
            lambda current: edited_team(current, message, fields),
        )
        return _to_pb(await self._backend.commit(statement, change, FIELD))

    async def delete(self, request: pb.DeleteTeamRequest) -> pb.Team:
        path = parse_team(request.name, "name")
        change = self._backend.change(
            request, request.request_id, validate_only=request.validate_only, etag=request.etag
        )
        statement = delete_team(self._backend.database, change, path)
        return _to_pb(await self._backend.commit(statement, change, FIELD))

    async def undelete(self, request: pb.UndeleteTeamRequest) -> pb.Team:
        path = parse_team(request.name, "name")
        change = self._backend.change(
            request, request.request_id, validate_only=request.validate_only, etag=request.etag
        )
        statement = undelete_team(self._backend.database, change, path)
        return _to_pb(await self._backend.commit(statement, change, FIELD))


def parse_class_grants(names: abc.Iterable[str], field: str) -> tuple[str, ...]:
    """The ids of priority classes, given by name. Raises InvalidFieldError."""
    ids = [parse_priority_class(name, f"{field}[{index}]") for index, name in enumerate(names)]
    return require_distinct(ids, field)


def edited_team(current: TeamSettings, message: pb.Team, fields: frozenset[str]) -> TeamSettings:
    """`current` with `fields` taken from `message`; a default class left empty is the usual one."""
    display_name, state = current.display_name, current.state
    default_class, class_grants = current.default_class, current.class_grants
    if "display_name" in fields:
        display_name = parse_display_name(message.display_name, f"{FIELD}.display_name")
    if "state" in fields:
        state = parse_state(message.state, f"{FIELD}.state")
    if "default_priority_class" in fields:
        name = message.default_priority_class or class_name(DEFAULT_CLASS)
        default_class = parse_priority_class(name, f"{FIELD}.default_priority_class")
    if "priority_class_grants" in fields:
        class_grants = parse_class_grants(message.priority_class_grants, f"{FIELD}.priority_class_grants")
    durable_usage = message.durable_usage if "durable_usage" in fields else current.durable_usage
    shares = message.shares_prefix_cache if "shares_prefix_cache" in fields else current.shares_prefix_cache
    disabled = message.speculation_disabled if "speculation_disabled" in fields else current.speculation_disabled
    return TeamSettings(display_name, state, default_class, class_grants, durable_usage, shares, disabled)


def _to_pb(record: Team) -> pb.Team:
    settings = record.settings
    return pb.Team(
        name=record.path.name,
        uid=str(record.id),
        display_name=settings.display_name,
        state=state_to_pb(record),
        etag=record.etag,
        create_time=timestamp(record.created_at),
        update_time=timestamp(record.updated_at),
        delete_time=timestamp(record.deleted_at),
        expire_time=timestamp(record.purge_at),
        default_priority_class=class_name(settings.default_class),
        priority_class_grants=map(class_name, settings.class_grants),
        durable_usage=settings.durable_usage,
        shares_prefix_cache=settings.shares_prefix_cache,
        speculation_disabled=settings.speculation_disabled,
    )
