"""How a command fails: a line with the server's reason, perhaps one that says what to do, and an exit code for scripts.

0  done · 1  the server refused, or a part failed · 2  the command was used wrongly · 3  the server cannot be reached
130  ended by Ctrl-C
"""

from dataclasses import dataclass
from enum import IntEnum

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RequestInfo, RetryInfo
from grpc_status import rpc_status


class ExitCode(IntEnum):
    OK = 0
    REFUSED = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


class CliError(Exception):
    """Ends the command. The message is one line; `hint` says what to do about it."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.REFUSED, hint: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.hint = hint


class UsageError(CliError):
    """The command line is wrong."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, ExitCode.USAGE, hint)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A gRPC error, read. `reason` is empty where no Evenflow server gave the answer.

    `resource` is the name of what the answer is about, where it says so; `violations` are fields of the request, each
    with what is wrong about it.
    """

    code: grpc.StatusCode
    message: str
    reason: str = ""
    retry_after_s: float | None = None
    request_id: str = ""
    resource: str = ""
    violations: tuple[tuple[str, str], ...] = ()

    @property
    def is_unreachable(self) -> bool:
        return self.code is grpc.StatusCode.UNAVAILABLE and not self.reason

    def __str__(self) -> str:
        text = f"{self.reason or self.code.name}: {self.message}"
        if self.retry_after_s is not None and self.retry_after_s > 0:
            text += f" (try again in {self.retry_after_s:.1f} s)"
        if self.code is grpc.StatusCode.INTERNAL and self.request_id:
            text += f" (request {self.request_id}; the gateway's log has the cause)"
        return text


def read_refusal(error: grpc.RpcError) -> Refusal:
    """The parts of `error` that a person or a script can act on."""
    assert isinstance(error, grpc.Call | grpc.aio.AioRpcError), "an error of a client's call tells its status"
    info, retry, request, bad = ErrorInfo(), RetryInfo(), RequestInfo(), BadRequest()
    has_retry = False
    status = rpc_status.from_call(error)
    for detail in status.details if status is not None else ():
        assert isinstance(detail, AnyMessage)
        has_retry = detail.Unpack(retry) or has_retry
        detail.Unpack(info)
        detail.Unpack(request)
        detail.Unpack(bad)
    wait_s = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    return Refusal(
        error.code(),
        error.details() or "",
        info.reason,
        wait_s if has_retry else None,
        request.request_id,
        info.metadata.get("resource", ""),
        tuple((each.field, each.description) for each in bad.field_violations),
    )


def cli_error(error: grpc.RpcError, address: str) -> CliError:
    """What a command that called `address` ends with."""
    refusal = read_refusal(error)
    if refusal.is_unreachable:
        hint = (
            "start it with: evenflow up   (or name another: --address HOST:PORT, EVENFLOW_ADDRESS;"
            " if it speaks TLS: --ca-cert FILE, EVENFLOW_CA_CERT)"
        )
        return CliError(f"cannot reach the gateway at {address}", ExitCode.UNREACHABLE, hint)
    return CliError(str(refusal))
