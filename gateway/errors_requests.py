"""What is refused about one request: what it asks for, how it ends, and when it is repeated, resumed or looked up.

A part of the tree in `errors`. What ends a request that had begun says in its metadata what of it is billed.

GatewayError
├── InvalidFieldError               INVALID_ARGUMENT     + BadRequest
│   ├── ContextLengthError                               CONTEXT_LENGTH
│   ├── ExceedsKvPoolError                               EXCEEDS_KV_POOL
│   ├── PromptTooLargeError                              PROMPT_TOO_LARGE
│   └── OutputCannotGoOnError                            OUTPUT_CANNOT_GO_ON
├── QueueTimeoutError               RESOURCE_EXHAUSTED   QUEUE_TIMEOUT
├── DeadlineUnattainableError       RESOURCE_EXHAUSTED   DEADLINE_UNATTAINABLE
├── DeadlineExceededError           DEADLINE_EXCEEDED    DEADLINE_EXCEEDED
├── NotFoundError                   NOT_FOUND
│   ├── ModelNotFoundError                               MODEL_NOT_FOUND
│   └── GenerationNotFoundError                          GENERATION_NOT_FOUND
├── PreconditionError               FAILED_PRECONDITION
│   └── RequestIdReusedError                             REQUEST_ID_REUSED
├── UnavailableError                UNAVAILABLE + RetryInfo
│   └── GenerationElsewhereError                         GENERATION_ELSEWHERE, the gateway that has it in the metadata
├── ReplayExpiredError              OUT_OF_RANGE         REPLAY_EXPIRED
└── GenerationAbortedError          ABORTED              GENERATION_CANCELLED, by an administrator
"""

from collections import abc

import grpc

from gateway.errors import (
    FieldViolation,
    GatewayError,
    InvalidFieldError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
)
from gateway.words import listed

MAX_NAME_CHARS = 256  # of a name that is told back: over HTTP it may be as long as a head


class ContextLengthError(InvalidFieldError):
    """Prompt and output together are longer than the model's context."""

    reason = "CONTEXT_LENGTH"


class ExceedsKvPoolError(InvalidFieldError):
    """Prompt and output together can never fit the engine's KV pool, however empty it is."""

    reason = "EXCEEDS_KV_POOL"


class PromptTooLargeError(InvalidFieldError):
    """The request message is over the size limit."""

    reason = "PROMPT_TOO_LARGE"


class OutputCannotGoOnError(InvalidFieldError):
    """What the request holds its output to has led to where nothing may follow. What was computed is billed.

    Each of `fields` has a part in it; `problem` is what is wrong with them.
    """

    reason = "OUTPUT_CANNOT_GO_ON"

    def __init__(self, fields: abc.Sequence[str], problem: str) -> None:
        super().__init__(*(FieldViolation(field, problem) for field in fields))


class QueueTimeoutError(GatewayError):
    """The request waited as long as it may, and no step took it."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "QUEUE_TIMEOUT"

    def __init__(self) -> None:
        super().__init__("the request waited in the queue for as long as it may")


class DeadlineExceededError(GatewayError):
    """The caller's deadline passed. What had been generated is billed."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"

    def __init__(self) -> None:
        super().__init__("the deadline passed before the output was complete")


class ModelNotFoundError(NotFoundError):
    """No engine serves the model, or the key has no grant for it: the same answer.

    `usable` are those that the key may use now: nobody learns of others.
    """

    reason = "MODEL_NOT_FOUND"

    def __init__(self, model: str, usable: abc.Sequence[str] = ()) -> None:
        super().__init__(f"model {model[:MAX_NAME_CHARS]!r}", f"this key may use {listed(usable)}" if usable else "")


class RequestIdReusedError(PreconditionError):
    """The `request_id` belongs to a different request."""

    reason = "REQUEST_ID_REUSED"

    def __init__(self) -> None:
        super().__init__("this request_id belongs to a different request")


class GenerationNotFoundError(NotFoundError):
    """There is no such generation, or it is another team's."""

    reason = "GENERATION_NOT_FOUND"

    def __init__(self, generation_id: str) -> None:
        super().__init__(f"generation {generation_id!r}")


class GenerationElsewhereError(UnavailableError):
    """The generation runs on another gateway, which alone has its messages.

    In the metadata `gateway` is its address, where the request has a `request_id`, and `state` is the engine's word.
    """

    reason = "GENERATION_ELSEWHERE"

    def __init__(self, generation_id: str, gateway: str = "", state: str = "") -> None:
        where = f"the gateway {gateway}" if gateway else "another gateway"
        super().__init__(
            f"this request is running as generation {generation_id} on {where}: ask there for its messages"
        )
        known = {"generation_id": generation_id, "gateway": gateway, "state": state}
        self.metadata = {name: value for name, value in known.items() if value}


class ReplayExpiredError(GatewayError):
    """Messages behind the one that was named are no longer kept, or it was never sent."""

    code = grpc.StatusCode.OUT_OF_RANGE
    reason = "REPLAY_EXPIRED"

    def __init__(self, first_kept_after: int) -> None:
        super().__init__(
            "the messages behind this sequence number are not kept",
            metadata={"first_after_sequence": str(first_kept_after)},
        )


class DeadlineUnattainableError(GatewayError):
    """The prompt alone takes longer than the caller is willing to wait, by the engine's estimate. Nothing was done."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "DEADLINE_UNATTAINABLE"

    def __init__(self) -> None:
        super().__init__("the deadline is too near for a prompt of this length")


class GenerationAbortedError(GatewayError):
    """An administrator ended the generation. What was computed is billed."""

    code = grpc.StatusCode.ABORTED
    reason = "GENERATION_CANCELLED"

    def __init__(self) -> None:
        super().__init__("an administrator ended this generation")
