"""The one table of roles: what each allows, and which scope of a credential an action needs.

A role holds at a place of the tenant tree and below it. An action is allowed where some role of the caller allows it at
the resource and the credential has the scope: a key can be made to do less than its holder may, never more.
"""

from dataclasses import dataclass
from enum import Enum

from gateway.store.enums import KeyScope, Role
from gateway.store.records import ANY, ResourcePath


class Action(Enum):
    """What a method does, as far as permission goes."""

    INFER = "infer"
    READ_QUOTA = "read_quota"
    READ = "read"
    MANAGE_TENANCY = "manage_tenancy"
    MANAGE_KEYS = "manage_keys"
    MANAGE_QUOTA = "manage_quota"
    MANAGE_ROLES = "manage_roles"
    OPERATE = "operate"
    MANAGE_SYSTEM = "manage_system"


SCOPE_BY_ACTION = {
    Action.INFER: KeyScope.INFERENCE,
    Action.READ_QUOTA: KeyScope.QUOTA_READ,
    Action.READ: KeyScope.ADMIN_READ,
    Action.MANAGE_TENANCY: KeyScope.ADMIN_TENANCY,
    Action.MANAGE_KEYS: KeyScope.ADMIN_KEYS,
    Action.MANAGE_QUOTA: KeyScope.ADMIN_QUOTA,
    Action.MANAGE_ROLES: KeyScope.ADMIN_ROLES,
    Action.OPERATE: KeyScope.ADMIN_OPERATE,
    Action.MANAGE_SYSTEM: KeyScope.ADMIN_SYSTEM,
}

ADMIN_SCOPES = frozenset(scope for scope in KeyScope if scope.startswith(KeyScope.ADMIN))

# Work is accounted to a team, so no role but a team's own allows it.
TENANT_ACTIONS = frozenset({Action.INFER, Action.READ_QUOTA})
_TEAM_ADMIN = frozenset({Action.READ, Action.MANAGE_KEYS, Action.MANAGE_QUOTA, Action.MANAGE_ROLES, Action.OPERATE})

ACTIONS_BY_ROLE = {
    Role.PLATFORM_ADMIN: frozenset(Action) - TENANT_ACTIONS,
    Role.PLATFORM_VIEWER: frozenset({Action.READ}),
    Role.ORG_ADMIN: _TEAM_ADMIN | {Action.MANAGE_TENANCY},
    Role.TEAM_ADMIN: _TEAM_ADMIN,
    Role.MEMBER: TENANT_ACTIONS | {Action.READ},
    Role.SERVICE: TENANT_ACTIONS,
}


@dataclass(frozen=True, slots=True)
class Grant:
    """A role at `path` and below."""

    role: Role
    path: ResourcePath

    def allows(self, action: Action, resource: ResourcePath) -> bool:
        return action in ACTIONS_BY_ROLE[self.role] and contains(self.path, resource)


def contains(path: ResourcePath, resource: ResourcePath) -> bool:
    """Whether `resource` is `path` or below it. The platform contains everything; `-`, any, is in nothing but it."""
    if path.organization is None:
        return True
    if path.organization != resource.organization or path.organization == ANY:
        return False
    if path.team is None:
        return True
    return path.team == resource.team and path.team != ANY and path.api_key in (None, resource.api_key)


def has_scope(scopes: frozenset[KeyScope], needed: KeyScope) -> bool:
    """Whether `scopes` has `needed`, or what stands for it."""
    return needed in scopes or (needed.startswith(f"{KeyScope.ADMIN}.") and KeyScope.ADMIN in scopes)
