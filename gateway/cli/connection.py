"""Which server a client command talks to, and as whom: flags first, then the environment, then the data directory.

address     --address         EVENFLOW_ADDRESS     the file `endpoint`, or else the default port of this machine
admin key   --admin-key-file  EVENFLOW_ADMIN_KEY   the file `admin.key`
API key     --api-key-file    EVENFLOW_API_KEY     the file `api.key`
A key itself is never a flag: command lines are visible to every user of a machine.
"""

import os
import re
from collections import abc
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from gateway.cli.data_dir import DataDir
from gateway.cli.errors import CliError, ExitCode, Refusal, UsageError, cli_error, read_refusal
from gateway.cli.security import PLAIN, Security
from gateway.private_files import read_text
from gateway.settings import DEFAULT_LISTEN

CALL_TIMEOUT_S = 20.0
MAX_MESSAGE_BYTES = 64 * 2**20
MAX_PORT = 65535
HOST_PORT = re.compile(r"(?:\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+):([0-9]{1,5})")

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Target:
    """What the command line says about the server; unset parts are looked up."""

    address: str | None
    data_dir: DataDir
    key_file: Path | None
    security: Security = PLAIN


@dataclass(frozen=True, slots=True)
class FoundKey:
    """A key, where it was found, and how somebody gets another one."""

    text: str
    source: str
    remedy: str = ""

    def hint(self, refusal: Refusal) -> str:
        """Whose key it is that was refused; empty where the key is not what is wrong."""
        if refusal.code is grpc.StatusCode.UNAUTHENTICATED:
            return f"the key is from {self.source}; {self.remedy}" if self.remedy else f"the key is from {self.source}"
        return f"the key is from {self.source}" if refusal.code is grpc.StatusCode.PERMISSION_DENIED else ""


@dataclass(frozen=True, slots=True)
class Connection:
    """An open channel, and the metadata that every call on it carries."""

    channel: grpc.Channel
    metadata: Metadata
    address: str
    key: FoundKey

    def error(self, error: grpc.RpcError) -> CliError:
        """What a command ends with whose call on this connection failed."""
        told = cli_error(error, self.address)
        told.hint = told.hint or self.key.hint(read_refusal(error))
        return told


def find_address(target: Target) -> str:
    """The gateway's HOST:PORT. Raises CliError if it should be the one of a data directory and that does not run, and
    UsageError for what is no address.

    Whoever listens where a dead gateway did, or on the default port, must not be sent that directory's keys.
    """
    if target.address:
        return _checked_address(target.address)
    if target.data_dir.is_in_use() and (endpoint := read_text(target.data_dir.endpoint)):
        return endpoint
    if target.data_dir.admin_key.exists():
        hint = "start it with: evenflow up   (or name a gateway: --address HOST:PORT, EVENFLOW_ADDRESS)"
        raise CliError(f"no gateway serves in {target.data_dir.path}", ExitCode.UNREACHABLE, hint)
    return DEFAULT_LISTEN


def find_admin_key(target: Target) -> FoundKey:
    """Raises UsageError, saying where a key was looked for, if there is none."""
    remedy = "another one: --admin-key-file FILE or EVENFLOW_ADMIN_KEY"
    key = _find_key(target, "EVENFLOW_ADMIN_KEY", target.data_dir.admin_key, remedy)
    if key is None:
        raise UsageError(
            f"no admin key: {target.data_dir.admin_key} does not exist",
            "evenflow up makes it; elsewhere: --admin-key-file FILE, --data-dir DIR or EVENFLOW_ADMIN_KEY",
        )
    return key


def find_api_key(target: Target) -> FoundKey:
    """Raises UsageError, saying how to make a key, if there is none."""
    remedy = "make another one: evenflow keys create --team ORG/TEAM --save"
    key = _find_key(target, "EVENFLOW_API_KEY", target.data_dir.api_key, remedy)
    if key is None:
        raise UsageError(
            f"no API key: EVENFLOW_API_KEY is not set, and there is no {target.data_dir.api_key}",
            "make one: evenflow orgs create acme && evenflow teams create acme/search &&"
            " evenflow keys create --team acme/search --save",
        )
    return key


@contextmanager
def connect(address: str, key: FoundKey, security: Security) -> abc.Iterator[Connection]:
    """A channel to `address`, closed at the end. A call's refusal becomes a CliError."""
    options = (("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),)
    credentials = security.credentials()
    with (
        grpc.insecure_channel(address, options=options)
        if credentials is None
        else grpc.secure_channel(address, credentials, options=options)
    ) as channel:
        connection = Connection(channel, (("authorization", f"Bearer {key.text}"),), address, key)
        try:
            yield connection
        except grpc.RpcError as error:
            raise connection.error(error) from error


def _checked_address(text: str) -> str:
    """`text`, if it is HOST:PORT or one of gRPC's forms with a scheme, such as unix:PATH or dns:///HOST:PORT."""
    scheme, separator, rest = text.partition(":")
    if separator and rest and not rest.isdigit() and scheme in ("unix", "dns", "ipv4", "ipv6", "unix-abstract"):
        return text
    match = HOST_PORT.fullmatch(text)
    if match is None or not 0 < int(match[1]) <= MAX_PORT:
        raise UsageError(f"--address: {text!r} is not HOST:PORT", f"such as {DEFAULT_LISTEN}; EVENFLOW_ADDRESS, too")
    return text


def _find_key(target: Target, variable: str, usual_file: Path, remedy: str) -> FoundKey | None:
    if target.key_file is not None:
        key = read_text(target.key_file)
        if not key:
            raise UsageError(f"{target.key_file} holds no key")
        return FoundKey(key, str(target.key_file), remedy)
    if key := os.environ.get(variable, "").strip():
        return FoundKey(key, f"the variable {variable}", remedy)
    key = read_text(usual_file)
    return FoundKey(key, str(usual_file), remedy) if key else None
