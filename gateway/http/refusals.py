"""Refusals as OpenAI words them: a status, an `error` object, and what a client may do next in the headers.

`reason` is the same as over gRPC and is the contract; `type` and `code` are what OpenAI's clients look at. A refusal
that waiting does not help says so (`x-should-retry`), because those clients would otherwise repeat it.

GatewayError
├── InvalidFieldError
│   ├── UnsupportedParameterError   400   UNSUPPORTED_PARAMETER, a field of OpenAI's that this gateway does not have
│   └── UnknownParameterError       400   UNKNOWN_PARAMETER
├── MethodNotAllowedError           405   METHOD_NOT_ALLOWED
├── RequestTooSlowError             408   REQUEST_TOO_SLOW
├── OutputNotKeptError              409   OUTPUT_NOT_KEPT
├── UnknownPathError                404   METHOD_NOT_FOUND
├── MediaTypeError                  415   UNSUPPORTED_MEDIA_TYPE
└── UnavailableError
    └── OverloadedError             503   OVERLOADED
"""

import math
from collections import abc

import grpc
from pydantic import BaseModel

from gateway.errors import GatewayError, InvalidFieldError, UnavailableError, http_status

MAX_TEXT_CHARS = 4096
MAX_VIOLATIONS = 10

Header = tuple[str, str]


class UnsupportedParameterError(InvalidFieldError):
    """OpenAI has the field; here it cannot be set, or not to this value."""

    reason = "UNSUPPORTED_PARAMETER"


class UnknownParameterError(InvalidFieldError):
    """Nobody has the field."""

    reason = "UNKNOWN_PARAMETER"


class MethodNotAllowedError(GatewayError):
    """The path exists and is asked for in another way."""

    code = grpc.StatusCode.UNIMPLEMENTED
    reason = "METHOD_NOT_ALLOWED"

    def __init__(self, allowed: str) -> None:
        super().__init__(f"this path takes {allowed} only", metadata={"allowed": allowed})


class RequestTooSlowError(GatewayError):
    """The body did not arrive in the time that its size is given."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "REQUEST_TOO_SLOW"

    def __init__(self) -> None:
        super().__init__("the request's body arrives too slowly")


class OutputNotKeptError(GatewayError):
    """The request was made before under the same idempotency key. It was billed once; its output is stored nowhere."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "OUTPUT_NOT_KEPT"

    def __init__(self, generation_id: str, input_tokens: int, output_tokens: int) -> None:
        usage = {"input_tokens": str(input_tokens), "output_tokens": str(output_tokens)}
        super().__init__(
            "this request has run before and its output is not kept; send it under another idempotency key",
            metadata={"generation_id": generation_id, **usage},
        )


class UnknownPathError(GatewayError):
    """Nothing is served at the path. `meant` is one that is and ends as it does; None: there is none."""

    code = grpc.StatusCode.UNIMPLEMENTED
    reason = "METHOD_NOT_FOUND"

    def __init__(self, meant: str | None = None) -> None:
        if meant is None:
            super().__init__("there is no such path: /openapi.json has those that there are")
            return
        root = meant[: meant.index("/", 1)]
        super().__init__(
            f"there is no such path, but there is {meant}: a client's base URL ends in {root}", metadata={"path": meant}
        )


class MediaTypeError(GatewayError):
    """The body is declared to be something else than JSON in UTF-8, or to be compressed."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "UNSUPPORTED_MEDIA_TYPE"

    def __init__(self, message: str = "send JSON, with the header content-type: application/json") -> None:
        super().__init__(message)


class OverloadedError(UnavailableError):
    """As many requests as the process takes are being served."""

    reason = "OVERLOADED"

    def __init__(self) -> None:
        super().__init__("too many requests are being served at once")


_CODE_BY_REASON = {
    "CREDENTIAL_INVALID": "invalid_api_key",
    "CONTEXT_LENGTH": "context_length_exceeded",
    "EXCEEDS_KV_POOL": "context_length_exceeded",
    "INVALID_FIELD": "invalid_value",
    "RATE_LIMITED": "rate_limit_exceeded",
    "BUDGET_EXHAUSTED": "insufficient_quota",
    "METHOD_NOT_FOUND": "unknown_url",
}
_TEXT_BY_REASON = {
    # The same words as for keys that do not exist: a caller cannot tell which.
    "CREDENTIAL_INVALID": "send a valid API key in the header `Authorization: Bearer ef_…`",
}
_TYPE_BY_STATUS = {403: "permission_error", 429: "rate_limit_error", 500: "server_error", 503: "server_error"}
_TOKEN_DIMENSIONS = ("INPUT_TOKENS", "OUTPUT_TOKENS", "TOTAL_TOKENS")
# What OpenAI's clients repeat unless they are told not to.
_REPEATED = (409, 429)

Renamed = abc.Callable[[str], str]
"""From the path of a protocol's field to the name of the parameter that it came from."""


class Violation(BaseModel):
    """A limit that refused: on which node of the tenancy tree, and what it counts."""

    subject: str
    dimension: str
    description: str


class ErrorObject(BaseModel):
    """What stands under `error`. `reason` and what follows it are not OpenAI's."""

    message: str
    type: str
    param: str | None
    code: str
    reason: str
    request_id: str
    metadata: dict[str, str]
    violations: list[Violation]


class ErrorBody(BaseModel):
    error: ErrorObject


def error_object(error: GatewayError, request_id: str, renamed: Renamed) -> ErrorObject:
    """How the caller is told."""
    violation = error.field_violations[0] if error.field_violations else None
    return ErrorObject(
        message=_message(error, renamed),
        type=_type(error),
        param=renamed(violation.field) or None if violation is not None else None,
        code=_CODE_BY_REASON.get(error.reason, error.reason.lower()),
        reason=error.reason,
        request_id=request_id,
        metadata=dict(error.metadata),
        violations=[
            Violation(subject=each.subject, dimension=each.dimension, description=each.description)
            for each in error.quota_violations[:MAX_VIOLATIONS]
        ],
    )


def error_headers(error: GatewayError) -> list[Header]:
    """How long to wait, where waiting helps; that it does not, where a client would try all the same."""
    status = http_status(error)
    headers: list[Header] = []
    if status == 401:
        headers.append(("www-authenticate", "Bearer"))
    if "allowed" in error.metadata and status == 405:
        headers.append(("allow", error.metadata["allowed"]))
    if error.retry_after_s is not None:
        headers.append(("retry-after", str(math.ceil(error.retry_after_s))))
        headers.append(("retry-after-ms", str(math.ceil(error.retry_after_s * 1000))))
    elif status in _REPEATED or error.is_final:
        headers.append(("x-should-retry", "false"))
    return headers


def _message(error: GatewayError, renamed: Renamed) -> str:
    """The text, in which fields have the caller's own names."""
    if not error.field_violations:
        return _TEXT_BY_REASON.get(error.reason, error.message)[:MAX_TEXT_CHARS]
    told = ((renamed(violation.field), violation.description) for violation in error.field_violations)
    return "; ".join(f"{field}: {text}" if field else text for field, text in told)[:MAX_TEXT_CHARS]


def _type(error: GatewayError) -> str:
    if error.reason == "BUDGET_EXHAUSTED":
        return "insufficient_quota"
    if error.reason == "RATE_LIMITED" and error.quota_violations:
        return "tokens" if error.quota_violations[0].dimension.upper() in _TOKEN_DIMENSIONS else "requests"
    status = http_status(error)
    return _TYPE_BY_STATUS.get(status, "invalid_request_error" if status < 500 else "server_error")
