"""Resource names and paths of pages: from one to the other."""

from gateway.console.visit import Visit
from gateway.store.records import ResourcePath


def node_of(visit: Visit) -> ResourcePath:
    """The organization, team or key that the page's address names."""
    params = visit.request.path_params
    return ResourcePath(params.get("org"), params.get("team"), params.get("key"))


def page_of(path: ResourcePath) -> str:
    """Below the console's root: where the node is shown."""
    if path.organization is None:
        return "/platform-keys" if path.api_key is None else f"/platform-keys/{path.api_key}"
    parts = ["/tenants", path.organization]
    if path.team is not None:
        parts.append(path.team)
    if path.api_key is not None:
        parts += ["keys", path.api_key]
    return "/".join(parts)
