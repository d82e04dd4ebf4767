"""What this gateway is and runs with. Read only: settings are flags and variables of its process. Shows no secret."""

from dataclasses import dataclass

from starlette.responses import Response

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.servicer import AdminServicer
from gateway.auth import Action
from gateway.console.routes import ConsoleRoute
from gateway.console.visit import Visit
from gateway.private_files import PEPPER_FILE
from gateway.settings import GatewaySettings, variable_of

HIDDEN = "set, and not shown"
# What may hold a password or is one.
SECRET = frozenset({"database_url", "pepper"})


@dataclass(frozen=True, slots=True)
class Setting:
    """`value` empty: it has none."""

    name: str
    variable: str
    value: str
    is_default: bool


async def show_settings(visit: Visit) -> Response:
    system = await visit.call(AdminServicer.GetSystemStatus, pb.GetSystemStatusRequest())
    return await visit.render("settings.html", settings=settings_of(visit.parts.settings), system=system)


def settings_of(settings: GatewaySettings) -> list[Setting]:
    """Of each setting what people may know."""
    given, read = settings.model_fields_set, {"pepper": f"in the file {settings.data_dir / PEPPER_FILE}"}
    return [
        Setting(name, variable_of(name), _shown(name, value) or read.get(name, ""), name not in given)
        for name, value in settings
    ]


def _shown(name: str, value: object) -> str:
    if value is None:
        return ""
    if name in SECRET:
        return HIDDEN
    if isinstance(value, bool):
        return "on" if value else "off"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


ROUTES = (ConsoleRoute("GET", "/settings", Action.READ, show_settings, is_platform=True),)
