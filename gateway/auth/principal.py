"""The caller's identity for the length of one call, and the one decision on what it may do.

A principal says who; what the team may use *now* (limits, weights, classes) is read from the snapshot when needed.
"""

from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from gateway.errors import NoTenantError, ScopeNotGrantedError
from gateway.store.enums import KeyScope


class Action(Enum):
    """What a method does, as far as permission goes."""

    INFER = "infer"
    ADMINISTER = "administer"


@dataclass(frozen=True, slots=True)
class Principal:
    """The holder of an API key.

    `organization` and `team` are slugs; a platform key has neither. Empty `model_grants`: every model.
    """

    key_id: UUID
    public_id: str
    organization_id: UUID | None
    team_id: UUID | None
    organization: str | None
    team: str | None
    scopes: frozenset[KeyScope]
    model_grants: frozenset[str]
    is_platform_admin: bool

    @property
    def name(self) -> str:
        """The key's resource name, for audit records and logs."""
        if self.organization is None:
            return f"apiKeys/{self.public_id}"
        return f"organizations/{self.organization}/teams/{self.team}/apiKeys/{self.public_id}"


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


def authorize(principal: Principal, action: Action) -> None:
    """`principal` may do `action`. Raises NoTenantError or ScopeNotGrantedError."""
    if action is Action.ADMINISTER:
        if not principal.is_platform_admin:
            raise ScopeNotGrantedError(KeyScope.ADMIN.value)
        return
    if principal.team_id is None:
        raise NoTenantError
    if KeyScope.INFERENCE not in principal.scopes:
        raise ScopeNotGrantedError(KeyScope.INFERENCE.value)
