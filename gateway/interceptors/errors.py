"""Turns what a handler raises into a gRPC status with `google.rpc` details, and writes the log line of a refusal.

A GatewayError is told as it is. A lost database is STORE_UNAVAILABLE, a slow one STORE_TIMEOUT. Anything else is our
bug: the caller gets INTERNAL and the request id, the log gets the traceback. Cancellation passes through: a handler
that swallowed it would leak.
"""

import asyncio
import math
import traceback
from collections import abc
from contextlib import asynccontextmanager

import grpc
import structlog
from google.protobuf import message as pb_message
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from gateway.auth import principal_or_none
from gateway.errors import GatewayError, InternalError, StoreTimeoutError, StoreUnavailableError, cause_of
from gateway.interceptors.call import REQUEST_ID, Call, reader_loss_as_cancellation
from gateway.store.errors import DatabaseUnavailableError, StatementTimeoutError
from gateway.telemetry import RpcRecord

DOMAIN = "evenflow"
RETRY_PUSHBACK = "grpc-retry-pushback-ms"
DETAILS = "grpc-status-details-bin"
# Details travel as HTTP/2 headers, which peers cut off at 8 KiB.
MAX_TEXT_CHARS = 1024
MAX_METADATA_CHARS = 256
MAX_VIOLATIONS = 10
MAX_DESCRIPTION_CHARS = 200

log = structlog.get_logger()


@asynccontextmanager
async def errors_as_status(call: Call) -> abc.AsyncIterator[None]:
    """Whatever the block raises ends the call with its status."""
    try:
        yield
    except (asyncio.CancelledError, grpc.aio.AbortError):
        raise
    except Exception as error:  # noqa: BLE001 - the edge: whatever it is, one call fails and the gateway goes on
        call.error = refusal_of(error, call.record)
    if call.error is not None:
        await _abort(call, call.error)


def refusal_of(error: Exception, record: RpcRecord) -> GatewayError:
    """What the caller is told of `error`; the log has its line."""
    told = _told(error, record)
    _log_refusal(record, told)
    return told


def _told(error: Exception, record: RpcRecord) -> GatewayError:
    match error:
        case GatewayError():
            # Its frames hold the parsed message, which can be hundreds of megabytes, and the answer takes a while.
            traceback.clear_frames(error.__traceback__)
            return error
        case StatementTimeoutError():
            return StoreTimeoutError()
        case DatabaseUnavailableError():
            return StoreUnavailableError()
        case _:
            log.error("rpc failed", method=record.method, request_id=record.request_id, exc_info=error)
            return InternalError()


def _log_refusal(record: RpcRecord, error: GatewayError) -> None:
    # A generation that was launched writes its own line when it ends.
    if record.generation_id is None:
        principal = principal_or_none()
        log.info(
            "request refused",
            method=record.method,
            request_id=record.request_id,
            key=(principal.public_id or principal.name) if principal else None,
            code=error.code.name,
            reason=error.reason,
            **cause_of(error),
        )


async def _abort(call: Call, error: GatewayError) -> None:
    message = _short(error.message, MAX_TEXT_CHARS)
    status = status_pb2.Status(
        code=error.code.value[0], message=message, details=_details(error, call.record.request_id)
    )
    trailers = [(DETAILS, status.SerializeToString()), (REQUEST_ID, call.record.request_id)]
    if error.retry_after_s is not None:
        trailers.append((RETRY_PUSHBACK, str(math.ceil(error.retry_after_s * 1000))))
    if not call.has_sent_metadata:
        trailers.extend(call.record.initial_metadata.items())
    with reader_loss_as_cancellation():
        await call.context.abort(error.code, message, tuple(trailers))


def _details(error: GatewayError, request_id: str) -> list[AnyMessage]:
    metadata = {key: _short(value, MAX_METADATA_CHARS) for key, value in error.metadata.items()}
    details: list[pb_message.Message] = [
        error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata),
        error_details_pb2.RequestInfo(request_id=request_id),
    ]
    if error.retry_after_s is not None:
        delay = Duration()
        delay.FromNanoseconds(math.ceil(error.retry_after_s * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if error.quota_violations:
        details.append(_quota_failure(error))
    if error.field_violations:
        details.append(_bad_request(error))
    packed = []
    for detail in details:
        envelope = AnyMessage()
        envelope.Pack(detail)
        packed.append(envelope)
    return packed


def _quota_failure(error: GatewayError) -> error_details_pb2.QuotaFailure:
    return error_details_pb2.QuotaFailure(
        violations=[
            error_details_pb2.QuotaFailure.Violation(
                subject=violation.subject,
                description=_short(violation.description, MAX_DESCRIPTION_CHARS),
                quota_metric=violation.dimension,
            )
            for violation in error.quota_violations[:MAX_VIOLATIONS]
        ]
    )


def _bad_request(error: GatewayError) -> error_details_pb2.BadRequest:
    return error_details_pb2.BadRequest(
        field_violations=[
            error_details_pb2.BadRequest.FieldViolation(
                field=violation.field,
                description=_short(violation.description, MAX_DESCRIPTION_CHARS),
                reason=error.reason,
            )
            for violation in error.field_violations[:MAX_VIOLATIONS]
        ]
    )


def _short(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"
