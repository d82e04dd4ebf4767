"""The gateway's settings: read once from flags and environment, then frozen.

An unknown, missing or contradictory setting stops the start, and the error is one line that names it. Flags win over
the environment. `EVENFLOW_ENGINE_*` belongs to the engine, which checks it in the same way.
"""

import os
from collections import abc
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import platformdirs
from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from gateway.addresses import is_loopback, networks_of, split_address
from gateway.errors import SettingsError
from gateway.pepper import PepperError, Peppers, PepperSource
from gateway.private_files import PEPPER_FILE
from gateway.semconv import Semconv

PREFIX = "EVENFLOW_"
GATEWAY_PREFIX = "EVENFLOW_GATEWAY_"
ENGINE_PREFIX = "EVENFLOW_ENGINE_"
# Read by the other commands of this program, not by the gateway.
COMMAND_VARIABLES = frozenset(
    {
        "EVENFLOW_API_KEY",
        "EVENFLOW_ADMIN_KEY",
        "EVENFLOW_ADDRESS",
        "EVENFLOW_MODEL",
        "EVENFLOW_TRACES",
        "EVENFLOW_CACHE",
        "EVENFLOW_CA_CERT",
        "EVENFLOW_CLIENT_CERT",
        "EVENFLOW_CLIENT_KEY",
    }
)
MAX_UNIX_PATH_BYTES = 106  # the same for every socket of ours: one less than Linux has room for
DEFAULT_LISTEN = "127.0.0.1:50051"
DEFAULT_METRICS_LISTEN = "127.0.0.1:0"
METRICS_OFF = HTTP_OFF = "off"
# vLLM's and others' port, which tools that look for a server of OpenAI's kind try first.
DEFAULT_HTTP_LISTEN = "127.0.0.1:8000"
MAX_BODY_BYTES = 16 * 2**20
# What listens everywhere, and where clients on the same machine reach it.
WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - recognised, not bound
PEPPER_VARIABLE = f"{PREFIX}PEPPER"
CONSOLE_VARIABLE, CONSOLE_OFF = f"{GATEWAY_PREFIX}CONSOLE", "off"


def default_data_dir() -> Path:
    """The platform's directory for this user's data."""
    return platformdirs.user_data_path("evenflow", appauthor=False)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. `client_ca` None: clients need no certificate."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        return (self.certificate, self.key) if self.client_ca is None else (self.certificate, self.key, self.client_ca)


class GatewaySettings(BaseSettings):
    """Everything that decides how a gateway runs.

    listen              HOST:PORT of the one public port; port 0 takes a free one
    engine              the engines' addresses, each `unix:PATH`
    database_url        the Postgres server
    data_dir            holds the file `pepper`, and `ledger`, the spool of usage
    pepper              in place of that file
    reuse_port          several gateway processes share the port; otherwise a port in use is an error
    auth_stale_max_s    how long keys may be checked against what was read before the database was lost
    drain_grace_s       how long running streams may take to finish after SIGTERM
    max_concurrent_rpcs calls that the process takes at once; more get RESOURCE_EXHAUSTED from the transport
    ledger_capacity     usage events that may wait for the database, in files under data_dir; beyond it no work is taken
    usage_retention_days for how many days usage events are kept, the hourly sums always; left out: for ever
    reader_buffer_tokens output tokens held for a client that reads slower than they are generated
    replay_buffer_tokens output tokens of one generation that are kept for a client that was cut off, for a minute after
                        the end; the oldest go first
    tls_cert, tls_key   PEM files of the public port's certificate (with its chain) and key; neither: no TLS
    client_ca           PEM file of the authority that clients' certificates must come from; needs the two above
    http_listen         HOST:PORT of the OpenAI-compatible door, with the same TLS; port 0 takes a free one; `off`: none
    http_max_body_bytes the largest body that it takes
    trusted_proxies     networks (CIDR) of the proxies that are believed when they say whom they stand for
    forwarded_header    the header in which they say it: `x-forwarded-for`, or `forwarded` (RFC 7239)
    console             on: administrators have pages at /console of the HTTP door; off: none
    metrics_listen      HOST:PORT of the Prometheus endpoint, a loopback address because it names tenants; port 0 takes
                        a free one, `off` has none
    telemetry_semconv   whose words say in a trace what a generation was
    telemetry_content   prompts and outputs are in traces, whoever may read those
    """

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix=GATEWAY_PREFIX, populate_by_name=True, hide_input_in_errors=True
    )

    listen: str = DEFAULT_LISTEN
    engine: Annotated[tuple[str, ...], NoDecode] = Field(min_length=1)
    database_url: SecretStr = Field(validation_alias=f"{PREFIX}DATABASE_URL")
    data_dir: Path = Field(default_factory=default_data_dir, validation_alias=f"{PREFIX}DATA_DIR")
    pepper: SecretStr | None = Field(default=None, validation_alias=PEPPER_VARIABLE)
    reuse_port: bool = False
    auth_stale_max_s: float = Field(default=300.0, ge=5, le=86_400)
    drain_grace_s: float = Field(default=30.0, ge=0, le=3600)
    max_concurrent_rpcs: int = Field(default=4096, ge=1)
    ledger_capacity: int = Field(default=100_000, ge=1)
    usage_retention_days: int | None = Field(default=None, ge=1, le=36_500)
    reader_buffer_tokens: int = Field(default=256, ge=1)
    replay_buffer_tokens: int = Field(default=8192, ge=1)
    tls_cert: Path | None = None
    tls_key: Path | None = None
    client_ca: Path | None = None
    http_listen: str = HTTP_OFF
    http_max_body_bytes: int = Field(default=4 * 2**20, ge=1024, le=MAX_BODY_BYTES)
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = ()
    forwarded_header: Literal["x-forwarded-for", "forwarded"] = "x-forwarded-for"
    console: Literal["on", "off"] = "on"
    metrics_listen: str = DEFAULT_METRICS_LISTEN
    telemetry_semconv: Semconv = Semconv.GEN_AI_V0_1
    telemetry_content: bool = False

    @field_validator("engine", "trusted_proxies", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("engine")
    @classmethod
    def _check_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError("an address is listed twice")
        for address in value:
            path = address.removeprefix("unix:")
            if path in (address, ""):
                raise ValueError(f"{address!r} is not unix:PATH")
            if len(os.fsencode(path)) > MAX_UNIX_PATH_BYTES:
                raise ValueError(f"the socket path {address} is longer than {MAX_UNIX_PATH_BYTES} bytes")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _check_proxies(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        networks_of(value)
        return value

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, value: str) -> str:
        split_address(value)
        return value

    @field_validator("http_listen")
    @classmethod
    def _check_http_listen(cls, value: str) -> str:
        parse_http_listen(value)
        return value

    @field_validator("metrics_listen")
    @classmethod
    def _check_metrics_listen(cls, value: str) -> str:
        parse_metrics_listen(value)
        return value

    @property
    def tls_files(self) -> TlsFiles | None:
        """None: the public port has no TLS. Raises SettingsError for one of the files without the others."""
        if self.tls_cert is not None and self.tls_key is not None:
            return TlsFiles(self.tls_cert, self.tls_key, self.client_ca)
        for name, given in (("tls_cert", self.tls_cert), ("tls_key", self.tls_key), ("client_ca", self.client_ca)):
            if given is not None:
                raise SettingsError(f"{name}: needs --tls-cert and --tls-key")
        return None

    @property
    def http_address(self) -> tuple[str, int] | None:
        """Host and port of the HTTP door; None: there is none."""
        return parse_http_listen(self.http_listen)

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Host and port of the Prometheus endpoint; None: there is none."""
        return parse_metrics_listen(self.metrics_listen)


def load_settings(**flags: object) -> GatewaySettings:
    """Settings from `flags` (None: not given) over the environment. Raises SettingsError."""
    check_environment(os.environ)
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        # The fields are checked by the model itself; a wrong name or type is what the except clause is for.
        return GatewaySettings(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        raise SettingsError(_describe(error, frozenset(given))) from error


def check_environment(environ: abc.Mapping[str, str]) -> None:
    """Raises SettingsError for a variable that begins like ours and is none of ours."""
    known = COMMAND_VARIABLES | {variable_of(name) for name in GatewaySettings.model_fields}
    for name in sorted(environ):
        if name.startswith(PREFIX) and not name.startswith(ENGINE_PREFIX) and name not in known:
            raise SettingsError(f"{name}: there is no such setting; known are {', '.join(sorted(known))}")


def parse_http_listen(text: str) -> tuple[str, int] | None:
    """Host and port; None where it is `off`. Raises ValueError for what is no address."""
    return None if text == HTTP_OFF else split_address(text)


def parse_metrics_listen(text: str) -> tuple[str, int] | None:
    """Host and port; None where it is `off`. Raises ValueError for what is no address, or none of loopback."""
    if text == METRICS_OFF:
        return None
    host, port = split_address(text)
    if not is_loopback(host):
        raise ValueError(f"{host} is no loopback address: the metrics name tenants and need no key")
    return host, port


def http_base_url(address: str, *, has_tls: bool) -> str:
    """What clients of OpenAI's API take for their base URL where the HTTP door is at `address`, HOST:PORT."""
    return f"{'https' if has_tls else 'http'}://{address}/v1"


def read_pepper(settings: GatewaySettings) -> bytes:
    """What API keys are hashed with, in the form that `gateway.pepper` reads.

    Raises SettingsError, naming file or variable, if it is missing or cannot be used.
    """
    if settings.pepper is not None:
        return _checked_pepper(settings.pepper.get_secret_value().encode(), PEPPER_VARIABLE)
    path = settings.data_dir / PEPPER_FILE
    pepper = read_pepper_file(path)
    if pepper is None:
        raise SettingsError(f"data_dir: there is no file {path}; set {PEPPER_VARIABLE} instead")
    return pepper


def pepper_source(settings: GatewaySettings) -> PepperSource:
    """The peppers of this process, which follow their file. Raises SettingsError."""
    path = settings.data_dir / PEPPER_FILE if settings.pepper is None else None
    return PepperSource(Peppers.parse(read_pepper(settings)), path)


def read_pepper_variable(environ: abc.Mapping[str, str]) -> bytes | None:
    """The pepper in `environ`, None if there is none. Raises SettingsError if it is too short, empty included."""
    given = environ.get(PEPPER_VARIABLE)
    return None if given is None else _checked_pepper(os.fsencode(given), PEPPER_VARIABLE)


def read_pepper_file(path: Path) -> bytes | None:
    """The pepper in `path`, None if there is no such file. Raises SettingsError if it is unreadable or too short."""
    try:
        return _checked_pepper(path.read_bytes(), f"the file {path}")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"data_dir: cannot read {path} ({error.strerror})") from error


def _checked_pepper(raw: bytes, source: str) -> bytes:
    try:
        Peppers.parse(raw)
    except PepperError as error:
        raise SettingsError(f"pepper: {source} {error}") from None
    return raw.strip()


def variable_of(field_name: str) -> str:
    """The environment variable that gives the setting."""
    alias = GatewaySettings.model_fields[field_name].validation_alias
    return alias if isinstance(alias, str) else f"{GATEWAY_PREFIX}{field_name.upper()}"


def _describe(error: ValidationError, given: frozenset[str]) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    located = str(first["loc"][0])
    name = next((field for field in GatewaySettings.model_fields if located in (field, variable_of(field))), None)
    if name is None:
        return f"{located}: there is no such setting"
    flag, variable = f"--{name.replace('_', '-')}", variable_of(name)
    if first["type"] == "missing":
        return f"{name}: set {flag} or {variable}"
    return f"{flag if name in given else variable}: {first['msg'].removeprefix('Value error, ')}"
