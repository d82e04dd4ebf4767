"""One report after another from a gateway that may go away, and may come back at another address."""

import threading
from collections import abc
from contextlib import ExitStack
from dataclasses import dataclass

import grpc

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.command import Admin, OpenAdmin
from gateway.cli.errors import CliError, ExitCode, read_refusal

# A gateway that has hung must show as away soon.
REPORT_TIMEOUT_S = 5.0
AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


@dataclass(frozen=True, slots=True)
class Reported:
    """What a gateway said, and where it was."""

    address: str
    status: pb.SystemStatus


@dataclass(frozen=True, slots=True)
class Away:
    """Nobody answers now, and why."""

    reason: str


Poll = abc.Callable[[], Reported | Away]


class Poller:
    """Asks from one thread at a time; `close` may come from another one, and ends an ask that is under way."""

    def __init__(self, open_admin: OpenAdmin) -> None:
        self._open_admin = open_admin
        self._opened = ExitStack()
        self._admin: Admin | None = None
        self._closing = threading.Lock()
        self._is_closed = False

    def ask(self) -> Reported | Away:
        """The next report. Raises CliError for a refusal that asking again does not mend, such as of the key."""
        try:
            admin = self._connected()
            status = admin.call(admin.stub.GetSystemStatus, pb.GetSystemStatusRequest(), REPORT_TIMEOUT_S)
            return Reported(admin.connection.address, status)
        except CliError as error:
            # Where the data directory's gateway has stopped, its next one listens elsewhere.
            if error.exit_code is not ExitCode.UNREACHABLE:
                raise
            return Away(str(error))
        except grpc.RpcError as error:
            assert self._admin is not None, "only a call raises it"
            told = self._admin.connection.error(error)
            self._disconnect()
            if read_refusal(error).code not in AWAY:
                raise told from error
            return Away(str(told))

    def close(self) -> None:
        """Nothing is open any more, and every further ask finds the gateway away. Idempotent."""
        with self._closing:
            self._is_closed = True
            self._disconnect()

    def _connected(self) -> Admin:
        with self._closing:
            if self._is_closed:
                raise CliError("closed", ExitCode.UNREACHABLE)
            if self._admin is None:
                self._admin = self._opened.enter_context(self._open_admin())
            return self._admin

    def _disconnect(self) -> None:
        self._admin = None
        self._opened.close()
