"""The tree of tenants: who is there, in which state, with which share."""

from starlette.responses import Response

from gateway.auth import Action
from gateway.console.routes import ConsoleRoute
from gateway.console.tree import MAX_FOUND, read_tree, weight_of
from gateway.console.visit import Visit
from gateway.store.identity import PLATFORM


async def show_tree(visit: Visit) -> Response:
    search, shows_deleted = visit.query("q"), visit.query("deleted") == "on"
    tree = await read_tree(visit, visit.query("page"), search, shows_deleted=shows_deleted)
    return await visit.render(
        "tenants.html",
        tree=tree,
        max_found=MAX_FOUND,
        search=search,
        shows_deleted=shows_deleted,
        weight_of=lambda resource: weight_of(visit.verdict.snapshot, resource),
        may_create=visit.may(Action.MANAGE_TENANCY, PLATFORM),
    )


ROUTES = (ConsoleRoute("GET", "/tenants", Action.READ, show_tree),)
