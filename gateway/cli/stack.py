"""The three parts of one machine, composed: database, engine and gateway over one data directory.

`up` keeps one stack in the user's directory, `demo` one in a temporary directory. Parts are `evenflow` commands, so the
engine is whatever the installed command group offers; nothing here imports it.
"""

import json
import os
import socket
import sys
from collections import abc
from dataclasses import dataclass
from pathlib import Path

from evenflow.admin.v1.admin_pb2 import DESCRIPTOR
from gateway.bootstrap import Installation, bootstrap
from gateway.cli.data_dir import DataDir
from gateway.cli.errors import CliError, UsageError
from gateway.cli.health import is_serving, until_serving
from gateway.cli.postgres_part import PostgresPart
from gateway.cli.processes import ProcessPart
from gateway.cli.supervisor import Keeper, Supervisor
from gateway.settings import (
    CONSOLE_OFF,
    CONSOLE_VARIABLE,
    ENGINE_PREFIX,
    HTTP_OFF,
    PREFIX,
    WILDCARD_HOSTS,
    http_base_url,
    read_pepper_variable,
)

ADMIN_SERVICE = DESCRIPTOR.services_by_name["AdminService"].full_name
EVENFLOW = (sys.executable, "-m", "gateway.cli.main")
# A large model takes minutes from a cold disk.
ENGINE_START_TIMEOUT_S = 900.0
ALL_LOADED = 100  # percent
GATEWAY_START_TIMEOUT_S = 60.0
# Both drain for 30 s unless told otherwise; they are killed only when that did not end them.
DRAIN_MARGIN_S = 40.0
MAX_PORT = 65535
# libpq's variables, which may hold the database's password.
POSTGRES_PREFIX = "PG"


@dataclass(frozen=True, slots=True)
class StackSettings:
    """`environment` is what the parts get; its EVENFLOW_DATABASE_URL takes an outside database.

    `engine_flags` are passed to `evenflow engine` as they are, `gateway_flags` to `evenflow gateway`. `http_listen` is
    HOST:PORT of the HTTP door, or `off`; `has_tls`: it takes TLS only, as all of the gateway.
    """

    data_dir: DataDir
    sockets: Path
    listen: str
    environment: abc.Mapping[str, str]
    engine_flags: tuple[str, ...] = ()
    gateway_flags: tuple[str, ...] = ()
    http_listen: str = HTTP_OFF
    has_tls: bool = False

    @property
    def http_url(self) -> str | None:
        """What clients of OpenAI's API on this machine take for their base URL; None where there is no door."""
        if self.http_listen == HTTP_OFF:
            return None
        return http_base_url(reachable(self.http_listen), has_tls=self.has_tls)

    @property
    def console_url(self) -> str | None:
        """Where administrators on this machine sign in; None where there are no pages for them."""
        if self.http_listen == HTTP_OFF or self.environment.get(CONSOLE_VARIABLE) == CONSOLE_OFF:
            return None
        return f"{'https' if self.has_tls else 'http'}://{reachable(self.http_listen)}/console"

    @property
    def address(self) -> str:
        """Where clients on this machine reach the gateway."""
        return reachable(self.listen)

    @property
    def engine_address(self) -> str:
        return f"unix:{self.sockets / 'engine.sock'}"


class Stack:
    """Brings the parts up under `supervisor`, which takes them down again, the gateway first."""

    def __init__(
        self, settings: StackSettings, supervisor: Supervisor, on_detail: abc.Callable[[str, str], None]
    ) -> None:
        self.settings = settings
        self._supervisor = supervisor
        self._on_detail = on_detail
        self._engine: Keeper | None = None

    async def bring_up(self) -> Installation:
        """All parts serve. Raises PartError, PrivateFileError, SettingsError, StoreError."""
        pepper = read_pepper_variable(self.settings.environment)
        url = self.settings.environment.get("EVENFLOW_DATABASE_URL")
        database = None if url else PostgresPart(self.settings.data_dir.path)
        postgres = None if database is None else self._supervisor.keep(database)
        self._engine = self._supervisor.keep(self._engine_part(self.settings.engine_flags))
        if postgres is not None and database is not None:
            await self._supervisor.until_ready(postgres)
            url = database.url
        assert url, "a database that serves has a URL"
        installation = await self._supervisor.guard(bootstrap(self.settings.data_dir.path, url, pepper))
        gateway = self._supervisor.keep(self._gateway_part(url))
        await self._supervisor.until_ready(self._engine, gateway)
        await self._supervisor.guard(until_serving(self.settings.address))
        return installation

    async def replace_engine(self, engine_flags: tuple[str, ...]) -> None:
        """The engine has drained and ended, and the gateway serves through one with other flags."""
        assert self._engine is not None, "bring_up comes first"
        await self._supervisor.drop(self._engine)
        self._engine = self._supervisor.keep(self._engine_part(engine_flags))
        await self._supervisor.until_ready(self._engine)
        await self._supervisor.guard(until_serving(self.settings.address))

    def _engine_part(self, flags: tuple[str, ...]) -> ProcessPart:
        address = self.settings.engine_address
        return ProcessPart(
            name="engine",
            argv=(*EVENFLOW, "engine", "--listen", address, "--parent-pid", str(os.getpid()), *flags),
            env=engine_environment(self.settings.environment),
            log_path=self.settings.data_dir.log("engine"),
            probe=lambda: is_serving(address),
            on_line=self._report_loading,
            start_timeout_s=ENGINE_START_TIMEOUT_S,
            grace_s=DRAIN_MARGIN_S,
        )

    def _gateway_part(self, database_url: str) -> ProcessPart:
        settings = self.settings
        listen = ("--listen", settings.listen, "--http-listen", settings.http_listen)
        flags = (*listen, "--engine", settings.engine_address, *settings.gateway_flags)
        # The URL may hold a password: not on the command line, which every user of the machine can read.
        own = {"EVENFLOW_DATABASE_URL": database_url, "EVENFLOW_DATA_DIR": str(settings.data_dir.path)}
        return ProcessPart(
            name="gateway",
            argv=(*EVENFLOW, "gateway", *flags),
            env={**settings.environment, **own},
            log_path=settings.data_dir.log("gateway"),
            # The administrator's service needs no engine: the gateway is up while a large model still loads.
            probe=lambda: is_serving(settings.address, ADMIN_SERVICE),
            start_timeout_s=GATEWAY_START_TIMEOUT_S,
            grace_s=DRAIN_MARGIN_S,
        )

    def _report_loading(self, line: str) -> None:
        percent = loading_percent(line)
        if percent is not None:
            text = f"loading the model, {percent} %" if percent < ALL_LOADED else "preparing and measuring the model"
            self._on_detail("engine", text)


def engine_environment(environment: abc.Mapping[str, str]) -> dict[str, str]:
    """`environment` without what only the other parts need: the engine sees no credential and no database."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(ENGINE_PREFIX) or not name.startswith((PREFIX, POSTGRES_PREFIX))
    }


def loading_percent(log_line: str) -> int | None:
    """How far the model is loaded, if that is what the engine's log line says."""
    if "loading model" not in log_line:
        return None
    try:
        entry = json.loads(log_line)
    except ValueError:
        return None
    percent = entry.get("percent") if isinstance(entry, dict) else None
    return percent if isinstance(percent, int) else None


def reachable(listen: str) -> str:
    """An address that is listened on, as clients on this machine reach it."""
    host, _, port = listen.rpartition(":")
    return f"{WILDCARD_HOSTS.get(host, host)}:{port}"


def listen_address(text: str, flag: str = "--listen") -> str:
    """`text`, HOST:PORT, in which port 0 has become one that is free. Raises UsageError; CliError if it is taken."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > MAX_PORT:
        raise UsageError(f"{flag}: {text!r} is not HOST:PORT")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    with socket.socket(family) as probe:
        # As the gateway will do it: connections of a predecessor that are still closing do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(port)))
        except OSError as error:
            hint = f"choose another one: {flag} HOST:PORT, or port 0 for a free one"
            raise CliError(f"cannot listen on {text}: {error.strerror}", hint=hint) from error
        return f"{host}:{probe.getsockname()[1]}"
