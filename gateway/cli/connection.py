"""Which server a client command talks to, and as whom: flags first, then the environment, then the data directory.

address     --address         EVENFLOW_ADDRESS     the file `endpoint`, or else the default port of this machine
admin key   --admin-key-file  EVENFLOW_ADMIN_KEY   the file `admin.key`
API key     --api-key-file    EVENFLOW_API_KEY     the file `api.key`
A key itself is never a flag: command lines are visible to every user of a machine.
"""

import os
from collections import abc
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from gateway.cli.data_dir import DataDir
from gateway.cli.errors import CliError, ExitCode, UsageError, cli_error
from gateway.private_files import read_text
from gateway.settings import DEFAULT_LISTEN

CALL_TIMEOUT_S = 20.0
MAX_MESSAGE_BYTES = 64 * 2**20

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Target:
    """What the command line says about the server; unset parts are looked up."""

    address: str | None
    data_dir: DataDir
    key_file: Path | None


@dataclass(frozen=True, slots=True)
class Connection:
    """An open channel, and the metadata that every call on it carries."""

    channel: grpc.Channel
    metadata: Metadata
    address: str


def find_address(target: Target) -> str:
    """The gateway's HOST:PORT. Raises CliError if it should be the one of a data directory and that does not run.

    Whoever listens where a dead gateway did, or on the default port, must not be sent that directory's keys.
    """
    if target.address:
        return target.address
    if target.data_dir.is_in_use() and (endpoint := read_text(target.data_dir.endpoint)):
        return endpoint
    if target.data_dir.admin_key.exists():
        hint = "start it with: evenflow up   (or name a gateway: --address HOST:PORT, EVENFLOW_ADDRESS)"
        raise CliError(f"no gateway serves in {target.data_dir.path}", ExitCode.UNREACHABLE, hint)
    return DEFAULT_LISTEN


def find_admin_key(target: Target) -> str:
    """Raises UsageError, saying where a key was looked for, if there is none."""
    key = _find_key(target, "EVENFLOW_ADMIN_KEY", target.data_dir.admin_key)
    if not key:
        raise UsageError(
            f"no admin key: {target.data_dir.admin_key} does not exist",
            "evenflow up makes it; elsewhere: --admin-key-file FILE, --data-dir DIR or EVENFLOW_ADMIN_KEY",
        )
    return key


def find_api_key(target: Target) -> str:
    """Raises UsageError, saying how to make a key, if there is none."""
    key = _find_key(target, "EVENFLOW_API_KEY", target.data_dir.api_key)
    if not key:
        raise UsageError(
            f"no API key: EVENFLOW_API_KEY is not set, and there is no {target.data_dir.api_key}",
            "make one: evenflow orgs create acme && evenflow teams create acme/search &&"
            " evenflow keys create --team acme/search --save",
        )
    return key


@contextmanager
def connect(address: str, key: str) -> abc.Iterator[Connection]:
    """A channel to `address`, closed at the end. A call's refusal becomes a CliError."""
    options = (("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),)
    with grpc.insecure_channel(address, options=options) as channel:
        try:
            yield Connection(channel, (("authorization", f"Bearer {key}"),), address)
        except grpc.RpcError as error:
            raise cli_error(error, address) from error


def _find_key(target: Target, variable: str, usual_file: Path) -> str:
    if target.key_file is not None:
        key = read_text(target.key_file)
        if not key:
            raise UsageError(f"{target.key_file} holds no key")
        return key
    return os.environ.get(variable, "").strip() or read_text(usual_file)
