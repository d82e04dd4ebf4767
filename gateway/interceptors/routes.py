"""Who may call what, one line per method. A method that is listed nowhere is refused.

A line says what the caller does, at which place of the tenant tree, and whether the method may spend quota. What
governs a node (its limits, its state) belongs to those above it; what is in it, to itself.
"""

from dataclasses import dataclass
from enum import Enum

from gateway.auth import Action
from gateway.interceptors.resources import (
    Resource,
    above,
    above_each,
    at,
    everywhere,
    listed,
    own_team,
    platform,
    power_of_key,
    whose,
)

PUBLIC_METHODS = frozenset(
    {
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/List",
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    }
)


class Cost(Enum):
    """What a call may take from the caller's quotas."""

    FREE = "free"
    GENERATION = "generation"


@dataclass(frozen=True, slots=True)
class Route:
    """The caller needs each of `actions` at the resource."""

    resource: Resource
    actions: tuple[Action, ...]
    cost: Cost


def _free(resource: Resource, *actions: Action) -> Route:
    return Route(resource, actions, Cost.FREE)


_GENERATE = Route(own_team, (Action.INFER,), Cost.GENERATION)
_INFERENCE = {
    "GenerationService/Generate": _GENERATE,
    "GenerationService/StreamGenerate": _GENERATE,
    "GenerationService/GetGeneration": _free(own_team, Action.INFER),
    "GenerationService/WatchGeneration": _free(own_team, Action.INFER),
    "GenerationService/CancelGeneration": _free(own_team, Action.INFER),
    "GenerationService/CountTokens": _free(own_team, Action.INFER),
    "GenerationService/CheckAdmission": _free(own_team, Action.INFER),
    "ModelService/ListModels": _free(own_team, Action.INFER),
    "ModelService/GetModel": _free(own_team, Action.INFER),
    "ModelService/GetTokenizer": _free(own_team, Action.INFER),
    "QuotaService/GetQuotaStatus": _free(own_team, Action.READ_QUOTA),
    "QuotaService/WatchQuotaStatus": _free(own_team, Action.READ_QUOTA),
}
_ADMIN = {
    "CreateOrganization": _free(platform, Action.MANAGE_TENANCY),
    "GetOrganization": _free(at("name"), Action.READ),
    "ListOrganizations": _free(everywhere, Action.READ),
    "UpdateOrganization": _free(above("organization.name"), Action.MANAGE_TENANCY),
    "DeleteOrganization": _free(above("name"), Action.MANAGE_TENANCY),
    "UndeleteOrganization": _free(above("name"), Action.MANAGE_TENANCY),
    "CreateTeam": _free(at("parent"), Action.MANAGE_TENANCY),
    "GetTeam": _free(at("name"), Action.READ),
    "ListTeams": _free(listed("parent"), Action.READ),
    "UpdateTeam": _free(above("team.name"), Action.MANAGE_TENANCY),
    "DeleteTeam": _free(above("name"), Action.MANAGE_TENANCY),
    "UndeleteTeam": _free(above("name"), Action.MANAGE_TENANCY),
    "CreateApiKey": _free(at("parent"), Action.MANAGE_KEYS),
    "GetApiKey": _free(at("name"), Action.READ),
    "ListApiKeys": _free(listed("parent"), Action.READ),
    "UpdateApiKey": _free(power_of_key("api_key.name"), Action.MANAGE_KEYS),
    "RotateApiKey": _free(power_of_key("name"), Action.MANAGE_KEYS),
    "RevokeApiKey": _free(at("name"), Action.MANAGE_KEYS),
    "DeleteApiKey": _free(at("name"), Action.MANAGE_KEYS),
    "UndeleteApiKey": _free(power_of_key("name"), Action.MANAGE_KEYS),
    "CreateQuotaPolicy": _free(above("parent"), Action.MANAGE_QUOTA),
    "GetQuotaPolicy": _free(at("name"), Action.READ),
    "ListQuotaPolicies": _free(listed("parent"), Action.READ),
    "UpdateQuotaPolicy": _free(above("quota_policy.name"), Action.MANAGE_QUOTA),
    "DeleteQuotaPolicy": _free(above("name"), Action.MANAGE_QUOTA),
    "GrantTemporaryQuota": _free(above("name"), Action.MANAGE_QUOTA),
    "EndTemporaryQuota": _free(above("name"), Action.MANAGE_QUOTA),
    "ApplyPolicies": _free(
        above_each("entries", "organization.name", "team.name", "quota_policy.name"),
        Action.MANAGE_TENANCY,
        Action.MANAGE_QUOTA,
    ),
    "SimulateQuotaPolicies": _free(platform, Action.READ),
    "CreatePriorityClass": _free(platform, Action.MANAGE_SYSTEM),
    "GetPriorityClass": _free(everywhere, Action.READ),
    "ListPriorityClasses": _free(everywhere, Action.READ),
    "UpdatePriorityClass": _free(platform, Action.MANAGE_SYSTEM),
    "DeletePriorityClass": _free(platform, Action.MANAGE_SYSTEM),
    "ListAuditEvents": _free(platform, Action.READ),
    "ExportAudit": _free(platform, Action.READ),
    "CreateJwtIssuer": _free(platform, Action.MANAGE_SYSTEM),
    "GetJwtIssuer": _free(platform, Action.READ),
    "ListJwtIssuers": _free(platform, Action.READ),
    "UpdateJwtIssuer": _free(platform, Action.MANAGE_SYSTEM),
    "DeleteJwtIssuer": _free(platform, Action.MANAGE_SYSTEM),
    "CreateRoleBinding": _free(at("parent"), Action.MANAGE_ROLES),
    "GetRoleBinding": _free(at("name"), Action.READ),
    "ListRoleBindings": _free(listed("parent"), Action.READ),
    "DeleteRoleBinding": _free(at("name"), Action.MANAGE_ROLES),
    "QueryUsage": _free(at("parent"), Action.READ),
    "QueryDenials": _free(at("parent"), Action.READ),
    "GetSystemStatus": _free(platform, Action.READ),
    "SetSchedulingPolicy": _free(platform, Action.MANAGE_SYSTEM),
    "ListQueue": _free(listed("parent"), Action.READ),
    "ExplainRequest": _free(platform, Action.READ),
    "CancelGenerations": _free(whose("api_key", "team"), Action.OPERATE),
}

ROUTES = {
    **{f"/evenflow.inference.v1.{name}": route for name, route in _INFERENCE.items()},
    **{f"/evenflow.admin.v1.AdminService/{name}": route for name, route in _ADMIN.items()},
}


def is_public(method: str) -> bool:
    """Whether `method` is served without a credential."""
    return method in PUBLIC_METHODS
