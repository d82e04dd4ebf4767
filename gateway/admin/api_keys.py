"""API keys: from requests to statements, from records to resources.

The key's text leaves this service once, in the answer that made it. A retry of that call under its `request_id` returns
the same key without it: what was not read is lost, by design, and the key can be revoked.

Expiry: unset at creation means DEFAULT_LIFETIME; the last second of the year 9999 means never, as does unsetting
`expire_time` in an update that names it. A key that never expires has no `expire_time`.

Scopes: of a team's key by default those for inference; of a platform key, which belongs to no team, all for
administrators.
"""

from collections import abc
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network

from evenflow.admin.v1 import admin_pb2 as pb
from gateway import api_key
from gateway.admin.backend import Backend, Listing
from gateway.admin.masks import changed_fields, set_fields
from gateway.admin.names import class_name, invalid, parse_any_api_key, parse_key_parent, parse_team_or_platform
from gateway.admin.teams import parse_class_grants
from gateway.admin.values import parse_display_name, parse_time, require_distinct, timestamp
from gateway.auth import current_principal
from gateway.auth.roles import has_scope
from gateway.errors import NotFoundError
from gateway.errors_auth import ScopeNotGrantedError
from gateway.pepper import Peppers
from gateway.store.enums import KeyScope
from gateway.store.keys import FIELDS, create_key, get_key, list_keys, update_key
from gateway.store.records import (
    ANY,
    ApiKey,
    ApiKeySettings,
    IPNetwork,
    KeySecret,
    ResourcePath,
)

FIELD = "api_key"
WRITABLE = frozenset({"display_name", "scopes", "model_grants", "priority_class_grants", "ip_cidrs", "expire_time"})
DEFAULT_LIFETIME = timedelta(days=90)
MAX_MODEL_CHARS = 200
DEFAULT_SCOPES = (KeyScope.INFERENCE, KeyScope.QUOTA_READ)
TEAM_SCOPES = tuple(scope for scope in KeyScope if scope is not KeyScope.ADMIN)
PLATFORM_SCOPES = tuple(scope for scope in KeyScope if scope not in DEFAULT_SCOPES)
TENANT_FIELDS = frozenset({"model_grants", "priority_class_grants"})


class ApiKeys:
    """The methods of AdminService on API keys."""

    def __init__(self, backend: Backend, pepper: bytes) -> None:
        self._backend = backend
        self._peppers = Peppers.parse(pepper)

    async def create(self, request: pb.CreateApiKeyRequest) -> pb.ApiKey:
        parent = parse_team_or_platform(request.parent, "parent")
        change = self._backend.change(request, request.request_id, validate_only=request.validate_only)
        fresh = ApiKeySettings(expires_at=datetime.now(UTC) + DEFAULT_LIFETIME)
        fields = set_fields(request.api_key, WRITABLE) | {"scopes"}  # the default ones are checked, too
        settings = _edited(fresh, request.api_key, fields, parent)
        key = api_key.generate()
        path = ResourcePath(parent.organization, parent.team, key.public_id)
        secret = KeySecret(self._peppers.digest(key.secret), self._peppers.version)
        statement = create_key(self._backend.database, change, path, settings, secret)
        record = await self._backend.commit(statement, change, FIELD)
        answer = key_to_pb(record)
        if record.path.api_key == key.public_id and not change.validate_only:
            answer.secret = key.text
        return answer

    async def get(self, request: pb.GetApiKeyRequest) -> pb.ApiKey:
        """The organization and team may be `-`, any: a public id is unique. A platform key has neither of them."""
        path = await self._canonical(parse_any_api_key(request.name, "name", wildcards=True))
        return key_to_pb(await self._backend.read(get_key(self._backend.database, path)))

    async def list(self, request: pb.ListApiKeysRequest) -> pb.ListApiKeysResponse:
        parent = parse_key_parent(request.parent, "parent")
        records, token = await self._backend.filtered_page(
            lambda page: list_keys(self._backend.database, parent, page),
            request,
            Listing(f"{parent.name}/apiKeys", FIELDS),
            shows_deleted=request.show_deleted,
        )
        return pb.ListApiKeysResponse(api_keys=map(key_to_pb, records), next_page_token=token)

    async def update(self, request: pb.UpdateApiKeyRequest) -> pb.ApiKey:
        message = request.api_key
        path = parse_any_api_key(message.name, f"{FIELD}.name")
        fields = changed_fields(request.update_mask, message, FIELD, WRITABLE)
        change = self._backend.change(
            request, request.request_id, validate_only=request.validate_only, etag=message.etag
        )
        statement = update_key(
            self._backend.database,
            change,
            path,
            lambda current: _edited(current, message, fields, path),
        )
        return key_to_pb(await self._backend.commit(statement, change, FIELD))

    async def _canonical(self, path: ResourcePath) -> ResourcePath:
        if ANY not in (path.organization, path.team):
            return path
        await self._backend.cache.refresh()
        key = self._backend.cache.current.keys.get(path.api_key or "")
        if key is None or key.team is None:
            raise NotFoundError(path.name)
        found = ResourcePath(key.team.organization.slug, key.team.slug, key.public_id)
        if path.organization not in (ANY, found.organization) or path.team not in (ANY, found.team):
            raise NotFoundError(path.name)
        return found


def _edited(current: ApiKeySettings, message: pb.ApiKey, fields: frozenset[str], path: ResourcePath) -> ApiKeySettings:
    """`current` with `fields` taken from `message`, of a key that is at or below `path`. Raises InvalidFieldError."""
    is_platform = path.team is None
    edited = current
    if "display_name" in fields:
        edited = replace(edited, display_name=parse_display_name(message.display_name, f"{FIELD}.display_name"))
    if "scopes" in fields:
        edited = replace(edited, scopes=_parse_scopes(message.scopes, is_platform=is_platform))
    for field in TENANT_FIELDS & fields if is_platform else ():
        if getattr(message, field):
            raise invalid(f"{FIELD}.{field}", "is for inference, which a platform key is not for")
    if "model_grants" in fields:
        edited = replace(edited, model_grants=_parse_models(message.model_grants))
    if "priority_class_grants" in fields:
        grants = parse_class_grants(message.priority_class_grants, f"{FIELD}.priority_class_grants")
        edited = replace(edited, class_grants=grants)
    if "ip_cidrs" in fields:
        edited = replace(edited, ip_cidrs=tuple(_parse_networks(message.ip_cidrs)))
    if "expire_time" in fields:
        edited = replace(edited, expires_at=_parse_expiry(message))
    return edited


def _parse_scopes(scopes: abc.Iterable[str], *, is_platform: bool) -> tuple[KeyScope, ...]:
    field, allowed = f"{FIELD}.scopes", PLATFORM_SCOPES if is_platform else TEAM_SCOPES
    names = require_distinct(scopes, field) or ((KeyScope.ADMIN,) if is_platform else DEFAULT_SCOPES)
    other = f"others are for {'a team' if is_platform else 'a platform'} key"
    for index, name in enumerate(names):
        if name not in allowed:
            raise invalid(f"{field}[{index}]", f"must be one of {', '.join(allowed)}: {other}")
        if name not in DEFAULT_SCOPES and not has_scope(current_principal().scopes, KeyScope(name)):
            raise ScopeNotGrantedError(name)  # nobody gives more than they have
    return tuple(KeyScope(name) for name in names)


def _parse_models(models: abc.Iterable[str]) -> tuple[str, ...]:
    field = f"{FIELD}.model_grants"
    names = require_distinct(models, field)
    for index, name in enumerate(names):
        if not name or len(name) > MAX_MODEL_CHARS or not name.isprintable():
            raise invalid(f"{field}[{index}]", f"must be a model's name of at most {MAX_MODEL_CHARS} characters")
    return names


def _parse_networks(cidrs: abc.Iterable[str]) -> abc.Iterator[IPNetwork]:
    field = f"{FIELD}.ip_cidrs"
    for index, cidr in enumerate(require_distinct(cidrs, field)):
        try:
            yield ip_network(cidr)
        except ValueError as error:
            raise invalid(f"{field}[{index}]", f"is no network in CIDR form: {error}") from error


def _parse_expiry(message: pb.ApiKey) -> datetime | None:
    if not message.HasField("expire_time"):
        return None
    moment = parse_time(message.expire_time, f"{FIELD}.expire_time")
    if moment >= api_key.NEVER_EXPIRES:
        return None
    if moment <= datetime.now(UTC):
        raise invalid(f"{FIELD}.expire_time", "must be in the future")
    return moment


def key_to_pb(record: ApiKey) -> pb.ApiKey:
    """The resource, without its secret. Of its secrets, those that have not ended."""
    now = datetime.now(UTC)
    settings = record.settings
    return pb.ApiKey(
        name=record.path.name,
        uid=str(record.id),
        display_name=settings.display_name,
        scopes=settings.scopes,
        model_grants=settings.model_grants,
        priority_class_grants=map(class_name, settings.class_grants),
        ip_cidrs=map(str, settings.ip_cidrs),
        expire_time=timestamp(settings.expires_at),
        revoke_time=timestamp(record.revoked_at),
        revoke_reason=record.revoke_reason or "",
        last_used_time=timestamp(record.last_used_at),
        etag=record.etag,
        create_time=timestamp(record.created_at),
        update_time=timestamp(record.updated_at),
        secrets=[
            pb.ApiKeySecret(create_time=timestamp(secret.created_at), expire_time=timestamp(secret.not_after))
            for secret in record.secrets
            if secret.not_after is None or secret.not_after > now
        ],
        delete_time=timestamp(record.deleted_at),
        purge_time=timestamp(record.purge_at),
    )
