"""What somebody asks about who names no tenant: everybody's where they may, otherwise their own."""

from gateway.auth import Action, Principal
from gateway.store.identity import PLATFORM


def own_parent(principal: Principal) -> str:
    """A resource name; empty: everybody."""
    if principal.may(Action.READ, PLATFORM):
        return ""
    return next(iter(principal.places(Action.READ)), "")
