"""The caller's identity for the length of one call, and the one decision on what it may do.

A principal says who, with which roles; what the team may use *now* (limits, weights, classes) is read from the snapshot
when needed.
"""

from contextvars import ContextVar
from dataclasses import dataclass
from uuid import UUID

from gateway.auth.roles import SCOPE_BY_ACTION, TENANT_ACTIONS, Action, Grant, has_scope
from gateway.errors_auth import NoTenantError, RoleNotGrantedError, ScopeNotGrantedError
from gateway.store.enums import KeyScope
from gateway.store.records import ResourcePath


@dataclass(frozen=True, slots=True)
class Principal:
    """The holder of an API key, or the subject of a token.

    name             the resource name, for audit records and logs
    key_id           what its requests and its usage are kept under: the key's id, or one made of issuer and subject
    public_id        the key's, empty for a token
    organization     slug, as is `team`; None for those who belong to no team and cannot generate
    model_grants     empty: every model
    grants           its roles, with where they hold
    """

    name: str
    key_id: UUID
    public_id: str
    organization_id: UUID | None
    team_id: UUID | None
    organization: str | None
    team: str | None
    scopes: frozenset[KeyScope]
    model_grants: frozenset[str]
    grants: tuple[Grant, ...]

    @property
    def team_path(self) -> ResourcePath:
        """Its team; the platform where it has none."""
        return ResourcePath(self.organization, self.team)

    def may(self, action: Action, resource: ResourcePath) -> bool:
        """Whether some role allows `action` at `resource`, and the credential's scopes do."""
        return has_scope(self.scopes, SCOPE_BY_ACTION[action]) and any(
            grant.allows(action, resource) for grant in self.grants
        )

    def may_anywhere(self, action: Action) -> bool:
        """Whether there is a place where it may: a list then holds what is there."""
        return any(self.may(action, grant.path) for grant in self.grants)

    def places(self, action: Action) -> list[str]:
        """The names of where it may; the platform's is empty."""
        return sorted({grant.path.name for grant in self.grants if self.may(action, grant.path)})


_current_principal: ContextVar[Principal | None] = ContextVar("evenflow_principal", default=None)


def enter_principal(principal: Principal) -> None:
    """From here on this task acts for `principal`. A task serves one call, so nothing needs to be undone."""
    _current_principal.set(principal)


def current_principal() -> Principal:
    """Whom this task acts for. Only a method that is served without authentication has none, which is our bug."""
    principal = _current_principal.get()
    assert principal is not None, "no authenticated call is being served"
    return principal


def principal_or_none() -> Principal | None:
    """Whom this task acts for, None before authentication."""
    return _current_principal.get()


def authorize(principal: Principal, action: Action, resource: ResourcePath) -> None:
    """`principal` may do `action` at `resource`. Raises NoTenantError, ScopeNotGrantedError or RoleNotGrantedError.

    Nothing is looked up, so no answer tells whether a resource of somebody else exists.
    """
    require_scope(principal, action)
    if not principal.may(action, resource):
        raise RoleNotGrantedError(principal.places(action))


def authorize_anywhere(principal: Principal, action: Action) -> None:
    """`principal` may do `action` somewhere; whoever serves the call leaves out what is elsewhere. Raises the same."""
    require_scope(principal, action)
    if not principal.may_anywhere(action):
        raise RoleNotGrantedError(())


def require_scope(principal: Principal, action: Action) -> None:
    """The credential may be used for `action`, whoever its holder is. Raises NoTenantError, ScopeNotGrantedError."""
    if action in TENANT_ACTIONS and principal.team_id is None:
        raise NoTenantError
    scope = SCOPE_BY_ACTION[action]
    if not has_scope(principal.scopes, scope):
        raise ScopeNotGrantedError(scope.value)
