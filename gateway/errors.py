"""What the gateway refuses, one class per thing that a caller can act on: the roots, and what concerns no single part.

`reason` is the contract (google.rpc.ErrorInfo, domain "evenflow"), the text is not. The error interceptor turns a class
into a gRPC status, `http_status` into that of both HTTP doors; nothing else does. No message holds prompt text, a
credential, or another tenant's name.

GatewayError                        INTERNAL             INTERNAL
├── InternalError                   INTERNAL             INTERNAL
├── InvalidFieldError               INVALID_ARGUMENT     INVALID_FIELD + BadRequest
├── NotFoundError                   NOT_FOUND            RESOURCE_NOT_FOUND
├── AlreadyExistsError              ALREADY_EXISTS       RESOURCE_EXISTS
├── EtagMismatchError               ABORTED              ETAG_MISMATCH
├── PreconditionError               FAILED_PRECONDITION  PRECONDITION_FAILED
├── UnknownMethodError              UNIMPLEMENTED        METHOD_NOT_FOUND
└── UnavailableError                UNAVAILABLE          UNAVAILABLE + RetryInfo
    ├── StoreUnavailableError                            STORE_UNAVAILABLE
    ├── StoreTimeoutError                                STORE_TIMEOUT
    ├── NoEngineError                                    NO_ENGINE
    ├── EngineLostError                                  ENGINE_LOST
    ├── LedgerUnavailableError                           LEDGER_UNAVAILABLE
    └── DrainingError                                    DRAINING, retry at once: another replica answers

The rest by part: `errors_auth` (credentials and rights), `errors_quota` (limits), `errors_requests` (one request).
SettingsError stands apart: it stops the start and never reaches a caller.
"""

from collections import abc
from dataclasses import dataclass
from typing import ClassVar, Self

import grpc

UNAVAILABLE_RETRY_S = 1.0

_HTTP_STATUS_BY_REASON = {
    "METHOD_NOT_ALLOWED": 405,
    "REQUEST_TOO_SLOW": 408,
    "PROMPT_TOO_LARGE": 413,
    "UNSUPPORTED_MEDIA_TYPE": 415,
}
_HTTP_STATUS_BY_CODE = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.OUT_OF_RANGE: 409,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.UNIMPLEMENTED: 404,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}


class SettingsError(Exception):
    """A setting is unknown, missing, contradictory or cannot be used. The text is one line and names the setting."""


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """`field` is the path of a request field as its .proto spells it: `spec.sampling.top_p`."""

    field: str
    description: str


@dataclass(frozen=True, slots=True)
class QuotaViolation:
    """A limit that a request broke. `subject` is the resource name of the key, team or organization that it is on."""

    subject: str
    dimension: str
    description: str


class GatewayError(Exception):
    """Base of everything that a caller is told. `retry_after_s` None says that a retry as such will not help;
    `is_final`: nor does waiting for anything else."""

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL
    reason: ClassVar[str] = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        metadata: abc.Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
        field_violations: tuple[FieldViolation, ...] = (),
        quota_violations: tuple[QuotaViolation, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.metadata: abc.Mapping[str, str] = metadata or {}
        self.retry_after_s = retry_after_s
        self.field_violations = field_violations
        self.quota_violations = quota_violations
        self.is_final = False

    def as_final(self) -> Self:
        """The same error, told of a call that gets no other answer however often it is repeated."""
        same = type(self).__new__(type(self), *self.args)
        vars(same).update(vars(self), retry_after_s=None, is_final=True)
        return same

    def tell_billed(self, *, input_tokens: int, output_tokens: int) -> None:
        """The request that ended so had begun: its caller is told what of it is billed."""
        self.metadata = {**self.metadata, "input_tokens": str(input_tokens), "output_tokens": str(output_tokens)}


def http_status(error: GatewayError) -> int:
    """Its status over HTTP, on the console's pages as on OpenAI's paths."""
    return _HTTP_STATUS_BY_REASON.get(error.reason) or _HTTP_STATUS_BY_CODE.get(error.code, 500)


class InternalError(GatewayError):
    """Our fault. The caller gets the request id and nothing else; `cause` is for the log."""

    def __init__(self, cause: str = "") -> None:
        super().__init__("internal error")
        self.cause = cause


def cause_of(error: Exception | None) -> dict[str, str]:
    """What a log line adds about an error whose text tells its caller nothing."""
    return {"cause": error.cause} if isinstance(error, InternalError) and error.cause else {}


class UnknownMethodError(GatewayError):
    """No service of this gateway has the method."""

    code = grpc.StatusCode.UNIMPLEMENTED
    reason = "METHOD_NOT_FOUND"

    def __init__(self) -> None:
        super().__init__("this gateway has no such method")


class InvalidFieldError(GatewayError):
    """Fields of the request are out of range or contradict each other. Each violation names its field's path."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_FIELD"

    def __init__(self, *violations: FieldViolation, metadata: abc.Mapping[str, str] | None = None) -> None:
        text = "; ".join(f"{v.field}: {v.description}" if v.field else v.description for v in violations)
        super().__init__(text, metadata=metadata, field_violations=violations)


class NotFoundError(GatewayError):
    """There is no such resource, or the caller may not know of it."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "RESOURCE_NOT_FOUND"

    def __init__(self, resource: str, hint: str = "") -> None:
        """`hint` is what the caller can do about it."""
        text = f"{resource} was not found"
        super().__init__(f"{text}: {hint}" if hint else text, metadata={"resource": resource})


class AlreadyExistsError(GatewayError):
    """A resource of this name exists."""

    code = grpc.StatusCode.ALREADY_EXISTS
    reason = "RESOURCE_EXISTS"


class EtagMismatchError(GatewayError):
    """The resource was changed since the caller read it."""

    code = grpc.StatusCode.ABORTED
    reason = "ETAG_MISMATCH"


class PreconditionError(GatewayError):
    """The system is not in the state that the call needs."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "PRECONDITION_FAILED"


class UnavailableError(GatewayError):
    """A part is away; the same call can succeed later."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "UNAVAILABLE"

    def __init__(self, message: str, *, retry_after_s: float = UNAVAILABLE_RETRY_S) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class StoreUnavailableError(UnavailableError):
    """The database cannot be reached."""

    reason = "STORE_UNAVAILABLE"

    def __init__(self) -> None:
        super().__init__("the database cannot be reached now")


class StoreTimeoutError(UnavailableError):
    """The database is there and took too long: it is busy, or others hold what the call needs."""

    reason = "STORE_TIMEOUT"

    def __init__(self) -> None:
        super().__init__("the database took too long")


class NoEngineError(UnavailableError):
    """No engine that serves the model is ready."""

    reason = "NO_ENGINE"

    def __init__(self) -> None:
        super().__init__("no engine is ready")


class EngineLostError(UnavailableError):
    """The engine went away while the request ran."""

    reason = "ENGINE_LOST"

    def __init__(self) -> None:
        super().__init__("the engine was lost while the request ran")


class LedgerUnavailableError(UnavailableError):
    """Usage waits for the database and the queue for it is full: work that cannot be recorded is not taken."""

    reason = "LEDGER_UNAVAILABLE"

    def __init__(self) -> None:
        super().__init__("usage cannot be recorded now")


class DrainingError(UnavailableError):
    """This gateway is stopping."""

    reason = "DRAINING"

    def __init__(self) -> None:
        super().__init__("this gateway is stopping", retry_after_s=0.0)
