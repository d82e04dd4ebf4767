"""Which roles a principal has now, and whether its tenant is served at all."""

from gateway.auth.roles import Grant
from gateway.errors_auth import TenantSuspendedError
from gateway.store.enums import State
from gateway.store.identity_snapshot import BindingRecord
from gateway.store.snapshot import OrganizationRecord, TeamRecord, TenancySnapshot


def bound_grants(principal: str, snapshot: TenancySnapshot) -> tuple[Grant, ...]:
    """The roles bound to `principal`, but for those in an organization or team that is not active."""
    bindings = snapshot.identity.bindings.get(principal, ())
    return tuple(Grant(binding.role, binding.path) for binding in bindings if _is_active(binding, snapshot))


def require_active(team: TeamRecord) -> None:
    """Raises TenantSuspendedError if the team or its organization is not served."""
    require_active_organization(team.organization)
    if team.state is not State.ACTIVE:
        raise TenantSuspendedError(f"organizations/{team.organization.slug}/teams/{team.slug}")


def require_active_organization(organization: OrganizationRecord) -> None:
    """Raises TenantSuspendedError."""
    if organization.state is not State.ACTIVE:
        raise TenantSuspendedError(f"organizations/{organization.slug}")


def _is_active(binding: BindingRecord, snapshot: TenancySnapshot) -> bool:
    if binding.organization_id is None:
        return True
    organization = snapshot.organizations.get(binding.organization_id)
    if organization is None or organization.state is not State.ACTIVE:
        return False
    if binding.team_id is None:
        return True
    team = snapshot.teams.get(binding.team_id)
    return team is not None and team.state is State.ACTIVE
