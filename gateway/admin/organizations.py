"""Organizations: from requests to statements, from records to resources."""

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.backend import Backend, Listing
from gateway.admin.masks import changed_fields, set_fields
from gateway.admin.names import check_slug, parse_organization
from gateway.admin.values import parse_display_name, parse_state, state_to_pb, timestamp
from gateway.store.organizations import (
    FIELDS,
    create_organization,
    delete_organization,
    get_organization,
    list_organizations,
    undelete_organization,
    update_organization,
)
from gateway.store.records import Organization, OrganizationSettings, ResourcePath

FIELD = "organization"
WRITABLE = frozenset({"display_name", "state"})


class Organizations:
    """The methods of AdminService on organizations."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def create(self, request: pb.CreateOrganizationRequest) -> pb.Organization:
        path = ResourcePath(check_slug(request.organization_id, "organization_id"))
        change = self._backend.change(request, request.request_id, validate_only=request.validate_only)
        settings = edited_organization(
            OrganizationSettings(), request.organization, set_fields(request.organization, WRITABLE)
        )
        statement = create_organization(self._backend.database, change, path, settings)
        return _to_pb(await self._backend.commit(statement, change, FIELD))

    async def get(self, request: pb.GetOrganizationRequest) -> pb.Organization:
        path = parse_organization(request.name, "name")
        return _to_pb(await self._backend.read(get_organization(self._backend.database, path)))

    async def list(self, request: pb.ListOrganizationsRequest) -> pb.ListOrganizationsResponse:
        records, token = await self._backend.filtered_page(
            lambda page: list_organizations(self._backend.database, page),
            request,
            Listing("organizations", FIELDS),
            shows_deleted=request.show_deleted,
        )
        return pb.ListOrganizationsResponse(organizations=map(_to_pb, records), next_page_token=token)

    async def update(self, request: pb.UpdateOrganizationRequest) -> pb.Organization:
        message = request.organization
        path = parse_organization(message.name, f"{FIELD}.name")
        fields = changed_fields(request.update_mask, message, FIELD, WRITABLE)
        change = self._backend.change(
            request, request.request_id, validate_only=request.validate_only, etag=message.etag
        )
        statement = update_organization(
            self._backend.database,
            change,
            path,
            lambda current: edited_organization(current, message, fields),
        )
        return _to_pb(await self._backend.commit(statement, change, FIELD))

    async def delete(self, request: pb.DeleteOrganizationRequest) -> pb.Organization:
        path = parse_organization(request.name, "name")
        change = self._backend.change(
            request, request.request_id, validate_only=request.validate_only, etag=request.etag
        )
        statement = delete_organization(self._backend.database, change, path)
        return _to_pb(await self._backend.commit(statement, change, FIELD))

    async def undelete(self, request: pb.UndeleteOrganizationRequest) -> pb.Organization:
        path = parse_organization(request.name, "name")
        change = self._backend.change(
            request, request.request_id, validate_only=request.validate_only, etag=request.etag
        )
        statement = undelete_organization(self._backend.database, change, path)
        return _to_pb(await self._backend.commit(statement, change, FIELD))


def edited_organization(
    current: OrganizationSettings, message: pb.Organization, fields: frozenset[str]
) -> OrganizationSettings:
    """`current` with `fields` taken from `message`. Raises InvalidFieldError."""
    display_name, state = current.display_name, current.state
    if "display_name" in fields:
        display_name = parse_display_name(message.display_name, f"{FIELD}.display_name")
    if "state" in fields:
        state = parse_state(message.state, f"{FIELD}.state")
    return OrganizationSettings(display_name, state)


def _to_pb(record: Organization) -> pb.Organization:
    return pb.Organization(
        name=record.path.name,
        uid=str(record.id),
        display_name=record.settings.display_name,
        state=state_to_pb(record),
        etag=record.etag,
        create_time=timestamp(record.created_at),
        update_time=timestamp(record.updated_at),
        delete_time=timestamp(record.deleted_at),
        expire_time=timestamp(record.purge_at),
    )
