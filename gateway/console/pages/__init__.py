"""The pages, a module each, and the table of all of them."""

from gateway.console.pages import (
    audit,
    classes,
    denials,
    grants,
    home,
    key_ends,
    keys,
    organizations,
    overview,
    policies,
    queue,
    settings,
    teams,
    tenants,
    usage,
)

# The last one answers for every path that is none.
ROUTES = (
    *home.ROUTES,
    *overview.ROUTES,
    *tenants.ROUTES,
    *organizations.ROUTES,
    *teams.ROUTES,
    *keys.ROUTES,
    *key_ends.ROUTES,
    *policies.ROUTES,
    *grants.ROUTES,
    *classes.ROUTES,
    *queue.ROUTES,
    *denials.ROUTES,
    *usage.ROUTES,
    *audit.ROUTES,
    *settings.ROUTES,
    *home.LAST,
)

__all__ = ["ROUTES"]
