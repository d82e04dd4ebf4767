"""Who may call what. A method that is listed nowhere is refused."""

from gateway.auth import Action

PUBLIC_METHODS = frozenset(
    {
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/List",
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    }
)

ACTION_BY_SERVICE = {
    "evenflow.inference.v1.GenerationService": Action.INFER,
    "evenflow.inference.v1.ModelService": Action.INFER,
    "evenflow.admin.v1.AdminService": Action.ADMINISTER,
}


def is_public(method: str) -> bool:
    return method in PUBLIC_METHODS


def action_of(method: str) -> Action | None:
    """What a caller of `method` does; None if nobody may call it."""
    service = method.strip("/").rpartition("/")[0]
    return ACTION_BY_SERVICE.get(service)
