"""What the gateway refuses, one class per thing that a caller can act on.

`reason` is the contract (google.rpc.ErrorInfo, domain "evenflow"), the text is not. The error interceptor turns a class
into a status; nothing else does. No message holds prompt text, a credential, or another tenant's name.

GatewayError                        INTERNAL             INTERNAL
├── CredentialInvalidError          UNAUTHENTICATED      CREDENTIAL_INVALID (one text for all causes)
├── KeyRevokedError                 UNAUTHENTICATED      KEY_REVOKED
├── KeyExpiredError                 UNAUTHENTICATED      KEY_EXPIRED
├── PermissionDeniedError           PERMISSION_DENIED    PERMISSION_DENIED
│   ├── ScopeNotGrantedError                             SCOPE_NOT_GRANTED
│   ├── ClassNotGrantedError                             PRIORITY_CLASS_NOT_GRANTED
│   ├── AddressNotAllowedError                           ADDRESS_NOT_ALLOWED
│   ├── NoTenantError                                    KEY_HAS_NO_TENANT
│   └── TenantSuspendedError                             TENANT_SUSPENDED
├── InvalidFieldError               INVALID_ARGUMENT     INVALID_FIELD + BadRequest
│   ├── ContextLengthError                               CONTEXT_LENGTH
│   ├── ExceedsKvPoolError                               EXCEEDS_KV_POOL
│   └── PromptTooLargeError                              PROMPT_TOO_LARGE
├── RequestExceedsLimitError        INVALID_ARGUMENT     REQUEST_EXCEEDS_LIMIT + QuotaFailure, never retryable
├── RateLimitedError                RESOURCE_EXHAUSTED   RATE_LIMITED + QuotaFailure + RetryInfo
├── QueueTimeoutError               RESOURCE_EXHAUSTED   QUEUE_TIMEOUT
├── NotFoundError                   NOT_FOUND            RESOURCE_NOT_FOUND
│   └── ModelNotFoundError                               MODEL_NOT_FOUND
├── AlreadyExistsError              ALREADY_EXISTS       RESOURCE_EXISTS
│   └── GenerationRunningError                           GENERATION_RUNNING
├── EtagMismatchError               ABORTED              ETAG_MISMATCH
├── PreconditionError               FAILED_PRECONDITION  PRECONDITION_FAILED
│   └── RequestIdReusedError                             REQUEST_ID_REUSED
├── UnavailableError                UNAVAILABLE          UNAVAILABLE + RetryInfo
│   ├── AuthStoreUnavailableError                        AUTH_STORE_UNAVAILABLE
│   ├── StoreUnavailableError                            STORE_UNAVAILABLE
│   ├── NoEngineError                                    NO_ENGINE
│   ├── EngineLostError                                  ENGINE_LOST
│   ├── LedgerUnavailableError                           LEDGER_UNAVAILABLE
│   └── DrainingError                                    DRAINING, retry at once: another replica answers
├── UnknownMethodError              UNIMPLEMENTED        METHOD_NOT_FOUND
├── DeadlineExceededError           DEADLINE_EXCEEDED    DEADLINE_EXCEEDED, partial usage in the metadata
└── InternalError                   INTERNAL             INTERNAL

SettingsError stands apart: it stops the start and never reaches a caller.
"""

from collections import abc
from dataclasses import dataclass
from typing import ClassVar

import grpc

UNAVAILABLE_RETRY_S = 1.0


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
    """Base of everything that a caller is told. `retry_after_s` None says that a retry as such will not help."""

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


class CredentialInvalidError(GatewayError):
    """No credential, a malformed one, an unknown key or a wrong secret: a caller cannot tell which."""

    code = grpc.StatusCode.UNAUTHENTICATED
    reason = "CREDENTIAL_INVALID"

    def __init__(self) -> None:
        super().__init__("send a valid API key: the metadata entry `authorization: Bearer ef_…`")


class KeyRevokedError(GatewayError):
    """The key was revoked."""

    code = grpc.StatusCode.UNAUTHENTICATED
    reason = "KEY_REVOKED"

    def __init__(self) -> None:
        super().__init__("the API key was revoked")


class KeyExpiredError(GatewayError):
    """The key, or the secret that was sent, has reached its end."""

    code = grpc.StatusCode.UNAUTHENTICATED
    reason = "KEY_EXPIRED"

    def __init__(self) -> None:
        super().__init__("the API key has expired")


class PermissionDeniedError(GatewayError):
    """The caller is known and may not do this."""

    code = grpc.StatusCode.PERMISSION_DENIED
    reason = "PERMISSION_DENIED"


class ScopeNotGrantedError(PermissionDeniedError):
    """The key lacks the scope that the method needs."""

    reason = "SCOPE_NOT_GRANTED"

    def __init__(self, scope: str) -> None:
        super().__init__(f"the API key needs the scope {scope!r} for this method", metadata={"scope": scope})


class ClassNotGrantedError(PermissionDeniedError):
    """The priority class is not granted to the key or its team, or there is none of that name."""

    reason = "PRIORITY_CLASS_NOT_GRANTED"

    def __init__(self, name: str) -> None:
        super().__init__(f"priority class {name!r} is not granted to this API key", metadata={"priority_class": name})


class AddressNotAllowedError(PermissionDeniedError):
    """The key may be used from certain networks only, and the caller is in none of them."""

    reason = "ADDRESS_NOT_ALLOWED"

    def __init__(self) -> None:
        super().__init__("the API key may not be used from this address")


class NoTenantError(PermissionDeniedError):
    """A platform key was used where work is accounted to a team."""

    reason = "KEY_HAS_NO_TENANT"

    def __init__(self) -> None:
        super().__init__("a platform key belongs to no team and cannot be used for inference; create a team's key")


class TenantSuspendedError(PermissionDeniedError):
    """The team or its organization is suspended or deleted."""

    reason = "TENANT_SUSPENDED"

    def __init__(self, tenant: str) -> None:
        super().__init__(f"{tenant} is suspended", metadata={"tenant": tenant})


class InvalidFieldError(GatewayError):
    """Fields of the request are out of range or contradict each other. Each violation names its field's path."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_FIELD"

    def __init__(self, *violations: FieldViolation, metadata: abc.Mapping[str, str] | None = None) -> None:
        text = "; ".join(f"{v.field}: {v.description}" if v.field else v.description for v in violations)
        super().__init__(text, metadata=metadata, field_violations=violations)


class ContextLengthError(InvalidFieldError):
    """Prompt and output together are longer than the model's context."""

    reason = "CONTEXT_LENGTH"


class ExceedsKvPoolError(InvalidFieldError):
    """Prompt and output together can never fit the engine's KV pool, however empty it is."""

    reason = "EXCEEDS_KV_POOL"


class PromptTooLargeError(InvalidFieldError):
    """The request message is over the size limit."""

    reason = "PROMPT_TOO_LARGE"


class RequestExceedsLimitError(GatewayError):
    """This one request is larger than a limit's burst: it would be refused on an idle tenant too."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "REQUEST_EXCEEDS_LIMIT"

    def __init__(self, violations: tuple[QuotaViolation, ...]) -> None:
        super().__init__("; ".join(v.description for v in violations), quota_violations=violations)


class RateLimitedError(GatewayError):
    """Limits are used up. `retry_after_s` is the longest of the violated limits'."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "RATE_LIMITED"

    def __init__(self, violations: tuple[QuotaViolation, ...], retry_after_s: float) -> None:
        text = "; ".join(v.description for v in violations)
        super().__init__(text, quota_violations=violations, retry_after_s=retry_after_s)


class QueueTimeoutError(GatewayError):
    """The request waited as long as it may, and no step took it."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "QUEUE_TIMEOUT"

    def __init__(self) -> None:
        super().__init__("the request waited in the queue for as long as it may")


class NotFoundError(GatewayError):
    """There is no such resource, or the caller may not know of it."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "RESOURCE_NOT_FOUND"

    def __init__(self, resource: str) -> None:
        super().__init__(f"{resource} was not found", metadata={"resource": resource})


class ModelNotFoundError(NotFoundError):
    """No engine serves the model, or the key has no grant for it: the same answer."""

    reason = "MODEL_NOT_FOUND"

    def __init__(self, model: str) -> None:
        super().__init__(f"model {model!r}")


class AlreadyExistsError(GatewayError):
    """A resource of this name exists."""

    code = grpc.StatusCode.ALREADY_EXISTS
    reason = "RESOURCE_EXISTS"


class GenerationRunningError(AlreadyExistsError):
    """The same request is running under this `request_id`; `generation_id` in the metadata names it."""

    reason = "GENERATION_RUNNING"

    def __init__(self, generation_id: str) -> None:
        super().__init__(
            f"this request is already running as generation {generation_id}", metadata={"generation_id": generation_id}
        )


class EtagMismatchError(GatewayError):
    """The resource was changed since the caller read it."""

    code = grpc.StatusCode.ABORTED
    reason = "ETAG_MISMATCH"


class PreconditionError(GatewayError):
    """The system is not in the state that the call needs."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "PRECONDITION_FAILED"


class RequestIdReusedError(PreconditionError):
    """The `request_id` belongs to a different request."""

    reason = "REQUEST_ID_REUSED"

    def __init__(self) -> None:
        super().__init__("this request_id belongs to a different request")


class UnavailableError(GatewayError):
    """A part is away; the same call can succeed later."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "UNAVAILABLE"

    def __init__(self, message: str, *, retry_after_s: float = UNAVAILABLE_RETRY_S) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class AuthStoreUnavailableError(UnavailableError):
    """What is known of the key is nothing, or too old, and the database cannot be asked. Says nothing about the key."""

    reason = "AUTH_STORE_UNAVAILABLE"

    def __init__(self) -> None:
        super().__init__("the API key cannot be checked now")


class StoreUnavailableError(UnavailableError):
    """The database cannot be reached."""

    reason = "STORE_UNAVAILABLE"

    def __init__(self) -> None:
        super().__init__("the database cannot be reached now")


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


class DeadlineExceededError(GatewayError):
    """The caller's deadline passed. `output_tokens` had been generated, and are billed."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"

    def __init__(self, *, input_tokens: int = 0, output_tokens: int = 0) -> None:
        usage = {"input_tokens": str(input_tokens), "output_tokens": str(output_tokens)}
        super().__init__("the deadline passed before the output was complete", metadata=usage)
