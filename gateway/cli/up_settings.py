"""What `evenflow up` was told, judged before anything starts: by the parts' own rules, not by a copy of them."""

import os
import subprocess
from collections import abc
from dataclasses import dataclass
from pathlib import Path

from gateway.cli.errors import UsageError
from gateway.cli.stack import EVENFLOW, engine_environment, listen_address
from gateway.settings import (
    DEFAULT_METRICS_LISTEN,
    ENGINE_PREFIX,
    METRICS_OFF,
    load_settings,
    parse_metrics_listen,
)

ENGINE_CHECK_TIMEOUT_S = 120.0
SETTINGS_EXIT_CODE = 2
# Any address will do where nothing listens.
NO_ADDRESS = "unix:/nonexistent"
NO_DATABASE = "postgresql:///"


@dataclass(frozen=True, slots=True)
class MetricsAddresses:
    """Where the two processes have their pages: HOST:PORT, or `off`. The ports stay when a part is started again."""

    gateway: str
    engine: str

    @property
    def urls(self) -> tuple[str, ...]:
        """Of the pages that there are."""
        return tuple(f"http://{address}/metrics" for address in (self.gateway, self.engine) if address != METRICS_OFF)


def metrics_addresses(gateway: str | None, engine: str | None) -> MetricsAddresses:
    """As they were asked for, with free ports where none was. Raises UsageError, CliError."""
    return MetricsAddresses(
        _metrics_address(gateway, "--metrics-listen"), _metrics_address(engine, "--engine-metrics-listen")
    )


def _metrics_address(text: str | None, flag: str) -> str:
    if text == METRICS_OFF:
        return METRICS_OFF
    try:
        parse_metrics_listen(text or DEFAULT_METRICS_LISTEN)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from error
    return listen_address(text or DEFAULT_METRICS_LISTEN, flag)


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """The options of `up` that are the gateway's; None: not given."""

    metrics_listen: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    client_ca: Path | None = None

    def flags(self) -> tuple[str, ...]:
        """What the gateway is told. Raises UsageError, SettingsError for what it would refuse."""
        if self.metrics_listen is not None:
            try:
                parse_metrics_listen(self.metrics_listen)
            except ValueError as error:
                raise UsageError(f"--metrics-listen: {error}") from error
        self._check()
        named = {
            "--metrics-listen": self.metrics_listen,
            "--tls-cert": self.tls_cert,
            "--tls-key": self.tls_key,
            "--client-ca": self.client_ca,
        }
        return tuple(word for name, value in named.items() if value is not None for word in (name, str(value)))

    def _check(self) -> None:
        """With the environment, the gateway's settings hold together, and its health can be asked."""
        settings = load_settings(
            engine=NO_ADDRESS,
            database_url=NO_DATABASE,
            metrics_listen=self.metrics_listen,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            client_ca=self.client_ca,
        )
        files = settings.tls_files
        if files is None:
            return
        for path in files.paths:
            if not os.access(path, os.R_OK):
                raise UsageError(f"cannot read {path}, which TLS needs")
        if not os.environ.get("EVENFLOW_CA_CERT"):
            hint = "set EVENFLOW_CA_CERT to the PEM file of the authority, or to `system`"
            raise UsageError("with TLS, `up` and the commands on this machine need to know whom they trust", hint)
        if files.client_ca is not None and not os.environ.get("EVENFLOW_CLIENT_CERT"):
            hint = "set EVENFLOW_CLIENT_CERT and EVENFLOW_CLIENT_KEY"
            raise UsageError("with --client-ca, `up` and the commands on this machine need a certificate, too", hint)


def check_engine(flags: abc.Sequence[str], environment: abc.Mapping[str, str]) -> None:
    """The engine takes `flags` and its part of `environment`. Raises UsageError with its own words.

    What only the loaded model can tell is found out later.
    """
    # A plain line instead of a box: it becomes part of another message.
    plain = {**engine_environment(environment), "TYPER_USE_RICH": "0"}
    argv = (*EVENFLOW, "engine", "--listen", NO_ADDRESS, *flags, "--check")
    ran = subprocess.run(
        argv, env=plain, capture_output=True, text=True, timeout=ENGINE_CHECK_TIMEOUT_S, check=False, errors="replace"
    )
    if ran.returncode != SETTINGS_EXIT_CODE:
        return
    lines = [line.strip() for line in ran.stderr.splitlines() if line.strip()]
    problem = lines[-1] if lines else "the engine refuses its settings"
    for prefix in ("Error: ", "evenflow engine: "):
        problem = problem.removeprefix(prefix)
    raise UsageError(problem, f"see evenflow engine --help; {ENGINE_PREFIX}* variables count, too")
