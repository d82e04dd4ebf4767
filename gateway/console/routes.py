"""What a path of the console is: its verb, what its visitor needs to be allowed, and who answers."""

from collections import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.responses import Response

from gateway.auth import Action, Principal
from gateway.store.identity import PLATFORM

if TYPE_CHECKING:
    from gateway.console.visit import Visit

ROOT = "/console"
PUBLIC_PATHS = frozenset({"/login", "/static/{path:path}"})
"""Below ROOT, and served to anybody: where to sign in, and what pages look like."""


@dataclass(frozen=True, slots=True)
class ConsoleRoute:
    """`path` is below ROOT, in the router's syntax.

    A visitor who may do `action` nowhere is refused before anything is looked at, if `is_platform` who may not do it to
    the whole platform. What it may be done to is decided by each call of the Admin API that `serve` makes.
    """

    verb: str
    path: str
    action: Action
    serve: abc.Callable[["Visit"], abc.Awaitable[Response]]
    is_platform: bool = False


@dataclass(frozen=True, slots=True)
class NavigationEntry:
    """A section of the console; shown to those who may do `action` somewhere or, if `is_platform`, everywhere."""

    title: str
    path: str
    action: Action = Action.READ
    is_platform: bool = False

    def is_for(self, principal: Principal) -> bool:
        if self.is_platform:
            return principal.may(self.action, PLATFORM)
        return principal.may_anywhere(self.action)
