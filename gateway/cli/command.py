"""What every command has in common: how its failures end, and where a client command's server is.

A command is a plain function. `command` gives it the exit codes of `errors`. `admin_command` also opens the connection
that the function takes as its first argument, from options that it adds to the function's own.
"""

import functools
import inspect
from collections import abc
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Concatenate, NoReturn, ParamSpec, TypeVar

import grpc
import typer

from evenflow.admin.v1.admin_pb2_grpc import AdminServiceStub
from gateway.cli.connection import CALL_TIMEOUT_S, Connection, Target, connect, find_address, find_admin_key
from gateway.cli.data_dir import DataDir, DataDirError
from gateway.cli.errors import CliError, ExitCode, UsageError
from gateway.cli.output import stderr
from gateway.cli.security import CaCertOption, ClientCertOption, ClientKeyOption, Security
from gateway.errors import SettingsError
from gateway.private_files import PrivateFileError

STREAM_TIMEOUT_S = 600.0
P = ParamSpec("P")
Request = TypeVar("Request")
Response = TypeVar("Response")

AddressOption = Annotated[
    str | None, typer.Option("--address", envvar="EVENFLOW_ADDRESS", help="HOST:PORT of the gateway.")
]
DataDirOption = Annotated[
    Path | None, typer.Option("--data-dir", envvar="EVENFLOW_DATA_DIR", help="The directory that `evenflow up` uses.")
]
AdminKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--admin-key-file",
        help="A file that holds the admin key. Left out: EVENFLOW_ADMIN_KEY, or admin.key in the data directory.",
    ),
]


@dataclass(frozen=True, slots=True)
class Admin:
    """The admin service of one gateway, called with the administrator's key."""

    stub: AdminServiceStub
    connection: Connection
    data_dir: DataDir

    def call(
        self,
        method: "grpc.UnaryUnaryMultiCallable[Request, Response]",
        request: Request,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Response:
        """The answer of `method`, one of the stub's. Raises grpc.RpcError, which ends the command."""
        return method(request, metadata=self.connection.metadata, timeout=timeout_s)

    def stream(
        self, method: "grpc.UnaryStreamMultiCallable[Request, Response]", request: Request
    ) -> abc.Iterator[Response]:
        """The answers of `method`, one by one. Raises as `call` does."""
        return method(request, metadata=self.connection.metadata, timeout=STREAM_TIMEOUT_S)


OpenAdmin = abc.Callable[[], AbstractContextManager[Admin]]


def command(function: abc.Callable[P, None]) -> abc.Callable[P, None]:
    """`function`, whose failures become a line on stderr and an exit code."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            _require_text((*args, *kwargs.values()))
            function(*args, **kwargs)
        except CliError as error:
            fail(str(error), error.exit_code, error.hint)
        except SettingsError as error:
            fail(str(error), ExitCode.USAGE)
        except (DataDirError, PrivateFileError) as error:
            fail(str(error), ExitCode.REFUSED)
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None

    return run


def _require_text(values: abc.Iterable[object]) -> None:
    """Raises UsageError where an argument holds bytes that are no UTF-8, which no message can carry."""
    for value in values:
        if isinstance(value, list | tuple):
            _require_text(value)
        elif isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
            raise UsageError(f"{value!a} is no UTF-8 text")


def fail(message: str, exit_code: ExitCode, hint: str = "") -> NoReturn:
    """Tells why, then ends the command."""
    console = stderr()
    console.print(f"error: {message}", style="red")
    if hint:
        console.print(f"  {hint}")
    raise typer.Exit(exit_code)


def admin_command(function: abc.Callable[Concatenate[Admin, P], None]) -> abc.Callable[..., None]:
    """`function` without its first parameter, and with the options of `_target`."""

    @functools.wraps(function)
    def run(open_admin: OpenAdmin, /, *args: P.args, **kwargs: P.kwargs) -> None:
        with open_admin() as admin:
            function(admin, *args, **kwargs)

    return connecting_command(run)


def connecting_command(function: abc.Callable[Concatenate[OpenAdmin, P], None]) -> abc.Callable[..., None]:
    """The same for a function that needs the service in some cases only: it connects by calling its argument."""
    own = list(inspect.signature(function).parameters.values())[1:]
    shared = list(inspect.signature(_target).parameters.values())

    # Any: typer calls it with what the options' annotations promise.
    def run(*args: Any, **kwargs: Any) -> None:
        target = _target(**{option.name: kwargs.pop(option.name) for option in shared})
        function(functools.partial(_opened, target), *args, **kwargs)

    # typer reads the options from here. They are keywords, so that they may follow a parameter with a default.
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__annotations__ = {}
    run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined] # honoured by inspect
    return command(run)


@contextmanager
def _opened(target: Target) -> abc.Iterator[Admin]:
    with connect(find_address(target), find_admin_key(target), target.security) as connection:
        yield Admin(AdminServiceStub(connection.channel), connection, target.data_dir)


def _target(
    *,
    address: AddressOption = None,
    data_dir: DataDirOption = None,
    admin_key_file: AdminKeyOption = None,
    ca_cert: CaCertOption = None,
    client_cert: ClientCertOption = None,
    client_key: ClientKeyOption = None,
) -> Target:
    return Target(address, DataDir.at(data_dir), admin_key_file, Security(ca_cert, client_cert, client_key))
