"""What a request is about, read out of its message before anything is looked up: the place that permission is asked at.

Names that do not parse are the platform's, where only its administrators may act: they get the handler's own answer,
all others learn nothing. Handlers read the same segments of the same names, by a stricter grammar.
"""

from collections import abc
from dataclasses import replace
from functools import reduce

from google.protobuf.message import Message

from gateway.auth import Action, Principal
from gateway.auth.roles import ADMIN_SCOPES, has_scope
from gateway.errors_auth import ScopeNotGrantedError
from gateway.store.identity import PLATFORM
from gateway.store.records import ANY, ResourcePath
from gateway.store.snapshot import TenancySnapshot

KINDS = ("organizations", "teams", "apiKeys")
EVERYWHERE = ResourcePath(ANY)
"""Of a list: wherever the caller may; whoever serves it leaves out the rest."""

Resource = abc.Callable[[Message, Principal, TenancySnapshot], ResourcePath]


def platform(_request: Message, _principal: Principal, _snapshot: TenancySnapshot) -> ResourcePath:
    """The whole installation."""
    return PLATFORM


def everywhere(_request: Message, _principal: Principal, _snapshot: TenancySnapshot) -> ResourcePath:
    """What everybody may see who may see anything."""
    return EVERYWHERE


def own_team(_request: Message, principal: Principal, _snapshot: TenancySnapshot) -> ResourcePath:
    """The caller's team: whatever the message names is looked for there only."""
    return principal.team_path


def at(field: str) -> Resource:
    """The organization, team or key that the field names. A key may be named by its public id alone."""

    def resource(request: Message, _principal: Principal, snapshot: TenancySnapshot) -> ResourcePath:
        return _located(node_path(_text(request, field)), snapshot)

    return resource


def above(field: str) -> Resource:
    """What the named node is governed from: an organization from the platform, a team from its organization."""

    def resource(request: Message, principal: Principal, snapshot: TenancySnapshot) -> ResourcePath:
        return parent_of(node_path(_text(request, field)))

    return resource


def listed(field: str) -> Resource:
    """The parent of a list; with `-` in it, everywhere."""

    def resource(request: Message, _principal: Principal, _snapshot: TenancySnapshot) -> ResourcePath:
        path = node_path(_text(request, field))
        return EVERYWHERE if ANY in (path.organization, path.team) else path

    return resource


def power_of_key(field: str) -> Resource:
    """The highest place that the named key can act at: whoever changes a key can make it act for them.

    For the same reason nobody changes a key that has a scope which they do not have. Raises ScopeNotGrantedError.
    """

    def resource(request: Message, principal: Principal, snapshot: TenancySnapshot) -> ResourcePath:
        path = _located(node_path(_text(request, field)), snapshot)
        key = snapshot.keys.get(path.api_key or "")
        if key is not None and principal.may(Action.MANAGE_KEYS, path):
            for scope in sorted(key.scopes & ADMIN_SCOPES):
                if not has_scope(principal.scopes, scope):
                    raise ScopeNotGrantedError(scope)
        bindings = snapshot.identity.bindings.get(f"apiKeys/{path.api_key}", ())
        return reduce(common, (binding.path for binding in bindings), path)

    return resource


def whose(key_field: str, team_field: str) -> Resource:
    """The team of the key, wherever its name says that it is, or the named team; the platform if neither is set."""

    def resource(request: Message, _principal: Principal, snapshot: TenancySnapshot) -> ResourcePath:
        named = _text(request, key_field)
        if not named:
            return node_path(_text(request, team_field))
        # By its last segment alone, which is what it is found by.
        return _located(ResourcePath(ANY, ANY, named.rpartition("/")[2]), snapshot)

    return resource


def above_each(entries: str, *fields: str) -> Resource:
    """The lowest place above all that the entries of a set change; what has none of the fields is the platform's."""

    def resource(request: Message, _principal: Principal, _snapshot: TenancySnapshot) -> ResourcePath:
        places = [_entry_place(entry, fields) for entry in getattr(request, entries)]
        return reduce(common, places) if places else PLATFORM

    return resource


def node_path(text: str) -> ResourcePath:
    """The node that a name begins with: the team, of `organizations/acme/teams/search/quotaPolicies/default`.

    A platform key, of `apiKeys/9fKq…`, is in no organization.
    """
    parts = text.split("/")
    if parts[0] == KINDS[-1] and len(parts) == 2:
        return ResourcePath(None, None, parts[1])
    ids: list[str] = []
    for kind, (found, segment) in zip(KINDS, zip(parts[0::2], parts[1::2], strict=False), strict=False):
        if found != kind:
            break
        ids.append(segment)
    return ResourcePath(*ids) if ids else PLATFORM


def parent_of(path: ResourcePath) -> ResourcePath:
    """The next place up. Nothing is above the platform."""
    if path.api_key is not None:
        return replace(path, api_key=None)
    return replace(path, team=None) if path.team is not None else PLATFORM


def common(first: ResourcePath, second: ResourcePath) -> ResourcePath:
    """The lowest place that contains both."""
    if first.organization != second.organization or first.organization is None:
        return PLATFORM
    if first.team != second.team:
        return ResourcePath(first.organization)
    return first if first.api_key == second.api_key else ResourcePath(first.organization, first.team)


def _located(path: ResourcePath, snapshot: TenancySnapshot) -> ResourcePath:
    """`path` with its wildcards filled in, where it names a key: a public id is unique."""
    if path.api_key is None or ANY not in (path.organization, path.team):
        return path
    key = snapshot.keys.get(path.api_key)
    if key is None or key.team is None:
        return PLATFORM
    return ResourcePath(key.team.organization.slug, key.team.slug, key.public_id)


def _text(request: Message, field: str) -> str:
    value: object = request
    for part in field.split("."):
        value = getattr(value, part)
    assert isinstance(value, str), f"{field} holds a name"
    return value


def _entry_place(entry: Message, fields: abc.Sequence[str]) -> ResourcePath:
    for field in fields:
        holder, _, _ = field.partition(".")
        if entry.HasField(holder):
            return parent_of(node_path(_text(entry, field)))
    return PLATFORM
