"""gRPC errors with their details, as a client reads them."""

from dataclasses import dataclass, field

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status


@dataclass
class Refusal:
    """A gRPC error with its details."""

    code: grpc.StatusCode
    message: str
    trailers: dict[str, str | bytes]
    info: error_details_pb2.ErrorInfo = field(default_factory=error_details_pb2.ErrorInfo)
    retry: error_details_pb2.RetryInfo | None = None
    quota: error_details_pb2.QuotaFailure | None = None
    bad_request: error_details_pb2.BadRequest | None = None
    request: error_details_pb2.RequestInfo | None = None

    @property
    def fields(self) -> list[str]:
        return [violation.field for violation in self.bad_request.field_violations] if self.bad_request else []


def refusal_of(error: grpc.aio.AioRpcError) -> Refusal:
    refusal = Refusal(error.code(), error.details() or "", dict(error.trailing_metadata() or ()))
    status = rpc_status.from_call(error)
    messages = {
        "info": error_details_pb2.ErrorInfo,
        "retry": error_details_pb2.RetryInfo,
        "quota": error_details_pb2.QuotaFailure,
        "bad_request": error_details_pb2.BadRequest,
        "request": error_details_pb2.RequestInfo,
    }
    for detail in status.details if status is not None else ():
        for name, kind in messages.items():
            message = kind()
            if detail.Unpack(message):
                setattr(refusal, name, message)
    return refusal
