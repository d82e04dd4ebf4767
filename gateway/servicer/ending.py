"""How a request ends: one table from what the engine said, what the gateway asked for and what went wrong.

Pure. A stop string ends the output where it is complete, whatever happens afterwards; a beam search ends as the best of
what it found. Billing: nothing if the engine never began, else the whole prompt and the output up to its end, by the
engine's count or, if none came, by what was received.
"""

import time
from dataclasses import dataclass, field
from enum import Enum

from gateway.admission_terms import Admitted
from gateway.engine_client import CancelReason, Finished
from gateway.engine_client import FinishReason as EngineReason
from gateway.errors import DrainingError, EngineLostError, GatewayError, InternalError
from gateway.errors_auth import KeyRevokedError
from gateway.errors_requests import (
    DeadlineExceededError,
    DeadlineUnattainableError,
    GenerationAbortedError,
    OutputCannotGoOnError,
    QueueTimeoutError,
)
from gateway.servicer.outcome import FinishReason, Outcome, Usage

_NORMAL_ENDS = {
    EngineReason.STOP: FinishReason.STOP,
    EngineReason.LENGTH: FinishReason.LENGTH,
}


class EndCause(Enum):
    """Why the gateway ends a request before the engine does."""

    CLIENT = "client"
    STOP_STRING = "stop_string"
    KEY_REVOKED = "key_revoked"
    DRAINING = "draining"
    ADMINISTRATOR = "administrator"
    QUOTA = "quota"


@dataclass(slots=True)
class Progress:
    """What is known of a running request. Written by its Generation only. Times are on the monotonic clock.

    arrived_s         when the call came that started it
    num_reader_holds  how often the engine was told that nobody reads
    found             how the outputs of a beam search end that have come, the best first
    """

    started_s: float = field(default_factory=time.monotonic)
    first_token_s: float | None = None
    is_accepted: bool = False
    is_scheduled: bool = False
    is_stopped: bool = False
    num_received_tokens: int = 0
    num_output_tokens: int = 0
    finished: Finished | None = None
    arrived_s: float = field(default_factory=time.monotonic)
    num_reader_holds: int = 0
    found: list[FinishReason] = field(default_factory=list)

    def note_tokens(self, num_tokens: int) -> None:
        """`num_tokens` of output came from the engine, which therefore began."""
        if num_tokens and self.first_token_s is None:
            self.first_token_s = time.monotonic()
        self.is_scheduled = True
        self.num_received_tokens += num_tokens


def outcome_of(
    admitted: Admitted,
    progress: Progress,
    cause: EndCause | None,
    error: GatewayError | None,
    deadline_ns: int | None = None,
    *,
    is_partial_ok: bool,
) -> Outcome:
    """The end of a request of which nothing more will be heard.

    `deadline_ns` is what the engine was given. `is_partial_ok`: a deadline that has passed is a normal end.
    """
    usage = _usage(admitted, progress)
    reason, error = _reason(progress, cause, error)
    if reason is FinishReason.DEADLINE and _is_unattainable(progress, deadline_ns):
        error = DeadlineUnattainableError()
    elif reason is FinishReason.DEADLINE and not is_partial_ok:
        error = DeadlineExceededError()
    # Who was too late is told in any case, also that it costs nothing.
    if error is not None and (progress.is_scheduled or reason is FinishReason.DEADLINE):
        _tell_billed(error, usage)
    finished = progress.finished
    return Outcome(
        finish_reason=reason,
        usage=usage,
        timings=finished.timings if finished else None,
        num_preemptions=finished.usage.num_preemptions if finished else 0,
        error=error,
    )


def broken(admitted: Admitted, progress: Progress) -> Outcome:
    """The end of a request whose end could not be told, by a bug of ours. It is billed like any other one."""
    usage, error = _usage(admitted, progress), InternalError()
    _tell_billed(error, usage)
    return Outcome(FinishReason.ERROR, usage, None, 0, error)


def _tell_billed(error: GatewayError, usage: Usage) -> None:
    error.tell_billed(input_tokens=usage.num_input_tokens, output_tokens=usage.num_output_tokens)


def _reason(
    progress: Progress, cause: EndCause | None, error: GatewayError | None
) -> tuple[FinishReason, GatewayError | None]:
    if progress.is_stopped:
        return FinishReason.STOP, None
    if error is not None:
        return FinishReason.ERROR, error
    if progress.finished is None:  # the wait was cut: by a cancellation that got no answer, else by the deadline
        return _cancelled(cause) if cause is not None else (FinishReason.DEADLINE, None)
    match progress.finished.reason:
        case EngineReason.DEADLINE:
            return FinishReason.DEADLINE, None
        case EngineReason.QUEUE_TIMEOUT:
            return FinishReason.QUEUE_TIMEOUT, QueueTimeoutError()
        case EngineReason.CANCELLED:
            return _cancelled(cause or _cause_of(progress.finished.cancel_reason))
        case EngineReason.ERROR:
            return FinishReason.ERROR, _failure(progress.finished)
        case EngineReason.QUOTA:
            return FinishReason.QUOTA, None
        case reason:
            return progress.found[0] if progress.found else _NORMAL_ENDS[reason], None


def _failure(finished: Finished) -> GatewayError:
    if not finished.error_fields:
        return InternalError(finished.error or "the engine failed on this request")
    return OutputCannotGoOnError(finished.error_fields, finished.error)


def _cause_of(reason: CancelReason | None) -> EndCause | None:
    """What another gateway asked the engine for; None: nobody did."""
    match reason:
        case CancelReason.ADMINISTRATOR:
            return EndCause.ADMINISTRATOR
        case CancelReason.KEY_REVOKED:
            return EndCause.KEY_REVOKED
        case None:
            return None
        case _:
            return EndCause.CLIENT


def _is_unattainable(progress: Progress, deadline_ns: int | None) -> bool:
    """True where the engine turned the request away before its deadline: the prompt alone would take longer."""
    finished = progress.finished
    if finished is None or progress.is_scheduled or deadline_ns is None:
        return False
    return finished.timings.queue_ns < deadline_ns


def _cancelled(cause: EndCause | None) -> tuple[FinishReason, GatewayError | None]:
    match cause:
        case EndCause.KEY_REVOKED:
            return FinishReason.CANCELLED, KeyRevokedError()
        case EndCause.DRAINING:
            return FinishReason.CANCELLED, DrainingError()
        case EndCause.ADMINISTRATOR:
            return FinishReason.CANCELLED, GenerationAbortedError()
        case EndCause.QUOTA:
            return FinishReason.QUOTA, None
        case None:  # nobody here asked for it: the engine is stopping
            return FinishReason.ERROR, EngineLostError()
        case _:
            return FinishReason.CANCELLED, None


def _usage(admitted: Admitted, progress: Progress) -> Usage:
    finished = progress.finished
    num_sampled = finished.usage.output_tokens if finished else progress.num_received_tokens
    num_output = progress.num_output_tokens if progress.is_stopped else num_sampled
    return Usage(
        num_input_tokens=admitted.demand.num_input_tokens if progress.is_scheduled else 0,
        num_cached_input_tokens=finished.usage.cached_prompt_tokens if finished and progress.is_scheduled else 0,
        num_output_tokens=num_output,
        num_discarded_tokens=max(0, num_sampled - num_output),
        num_reserved_tokens=admitted.reserved_tokens,
    )
