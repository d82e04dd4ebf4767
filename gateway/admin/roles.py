"""Role bindings: from requests to statements, from records to resources.

Whoever manages an organization or team may give roles there, to its own keys and to subjects of issuers that speak for
it. A key of somebody else gets the answer of one that does not exist.
"""

import re
from uuid import UUID

from google.protobuf.empty_pb2 import Empty

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.backend import Backend
from gateway.admin.names import PUBLIC_ID, SLUG, invalid, parse_organization, parse_team
from gateway.admin.values import timestamp
from gateway.auth.claims import MAX_SUBJECT_CHARS
from gateway.store.enums import Role
from gateway.store.identity import PLATFORM, RoleBinding
from gateway.store.records import ANY, ResourcePath
from gateway.store.roles import create_binding, delete_binding, get_binding, list_bindings
from gateway.store.snapshot import TenancySnapshot

FIELD = "role_binding"
_KEY = re.compile(rf"apiKeys/({PUBLIC_ID.pattern})")
_SUBJECT = re.compile(rf"jwtIssuers/({SLUG.pattern})/subjects/(.{{1,{MAX_SUBJECT_CHARS}}})")
_PLATFORM_ROLES = frozenset({Role.PLATFORM_ADMIN, Role.PLATFORM_VIEWER})


class RoleBindings:
    """The methods of AdminService on role bindings."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def create(self, request: pb.CreateRoleBindingRequest) -> pb.RoleBinding:
        path, message = _parse_place(request.parent, "parent"), request.role_binding
        change = self._backend.change(request, request.request_id, validate_only=request.validate_only)
        role = _parse_role(message.role, path)
        await self._backend.catch_up()  # a key that was just made elsewhere is there
        _check_principal(message.principal, path, self._backend.cache.current)
        statement = create_binding(self._backend.database, change, path, message.principal, role)
        return _to_pb(await self._backend.commit(statement, change, FIELD))

    async def get(self, request: pb.GetRoleBindingRequest) -> pb.RoleBinding:
        path, binding_id = _parse_name(request.name)
        return _to_pb(await self._backend.read(get_binding(self._backend.database, path, binding_id)))

    async def list(self, request: pb.ListRoleBindingsRequest) -> pb.ListRoleBindingsResponse:
        anywhere = request.parent == f"organizations/{ANY}"
        parent = ResourcePath(ANY) if anywhere else _parse_place(request.parent, "parent")
        records, token = await self._backend.page(
            lambda page: list_bindings(self._backend.database, parent, page, request.principal),
            request.page_size,
            request.page_token,
            f"{parent.name}/roleBindings\0{request.principal}",
        )
        return pb.ListRoleBindingsResponse(role_bindings=map(_to_pb, records), next_page_token=token)

    async def delete(self, request: pb.DeleteRoleBindingRequest) -> Empty:
        path, binding_id = _parse_name(request.name)
        change = self._backend.change(
            request, request.request_id, validate_only=request.validate_only, etag=request.etag
        )
        await self._backend.commit(delete_binding(self._backend.database, change, path, binding_id), change, FIELD)
        return Empty()


def _parse_place(text: str, field: str) -> ResourcePath:
    if not text:
        return PLATFORM
    return parse_team(text, field) if "/teams/" in text else parse_organization(text, field)


def _parse_name(name: str) -> tuple[ResourcePath, UUID]:
    place, _, binding = f"/{name}".rpartition("/roleBindings/")
    try:
        return _parse_place(place.removeprefix("/"), "name"), UUID(binding)
    except ValueError:
        raise invalid("name", "must be the place of a role followed by roleBindings/*") from None


def _parse_role(value: pb.Role.ValueType, path: ResourcePath) -> Role:
    """The role, which must be one that can be bound at a place of this depth."""
    field = f"{FIELD}.role"
    if value == pb.ROLE_UNSPECIFIED or value not in pb.Role.values():
        raise invalid(field, "must be one of the roles that are defined")
    role = Role(pb.Role.Name(value).removeprefix("ROLE_"))
    if path.organization is None:
        allowed = role in _PLATFORM_ROLES
    else:
        allowed = role not in _PLATFORM_ROLES and (path.team is None) == (role is Role.ORG_ADMIN)
    if not allowed:
        raise invalid(field, f"{role} cannot be bound at {path.name or 'the platform'}")
    return role


def _check_principal(principal: str, path: ResourcePath, snapshot: TenancySnapshot) -> None:
    """Raises InvalidFieldError unless there is such a principal and a role at `path` is for it."""
    field = f"{FIELD}.principal"
    if found := _KEY.fullmatch(principal):
        key = snapshot.keys.get(found[1])
        owner = None if key is None or key.team is None else key.team.organization.slug
        if key is None or path.organization not in (None, owner):
            raise invalid(field, "there is no such key, or not in the organization")
        return
    found = _SUBJECT.fullmatch(principal)
    if found is None or not principal.isprintable():
        raise invalid(field, "must be apiKeys/* or jwtIssuers/*/subjects/*")
    issuers = {issuer.slug: issuer for issuer in snapshot.identity.issuers.values()}
    issuer = issuers.get(found[1])
    if issuer is None:
        raise invalid(field, f"there is no issuer jwtIssuers/{found[1]}")
    own = None if issuer.organization_id is None else snapshot.organizations.get(issuer.organization_id)
    if own is not None and own.slug != path.organization:
        raise invalid(field, "its issuer speaks for another organization")


def _to_pb(record: RoleBinding) -> pb.RoleBinding:
    return pb.RoleBinding(
        name=record.name,
        principal=record.principal,
        role=pb.Role.Value(f"ROLE_{record.role}"),
        etag=record.etag,
        create_time=timestamp(record.created_at),
    )
