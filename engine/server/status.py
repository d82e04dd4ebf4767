"""Refusals as gRPC statuses: code, text, and `google.rpc.ErrorInfo`, whose reason is the contract with the gateway."""

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from engine.core.errors import DuplicateRequestError, RequestTooLargeError
from engine.errors import (
    BrokenCallError,
    DrainingError,
    GrammarsBusyError,
    InvalidFieldError,
    NotReadyError,
    ProtocolVersionError,
    UnknownRequestError,
)
from engine.loop_messages import Refusal
from evenflow.engine.v1 import engine_pb2 as pb

DOMAIN = "evenflow"

CodeReasonMetadata = tuple[grpc.StatusCode, str, dict[str, str]]


def status_of(error: Refusal, max_model_len: int) -> grpc.Status:
    """The status that `error` stands for. `max_model_len` tells a prompt too long from a pool too small."""
    code, reason, metadata = meaning_of(error, max_model_len)
    detail = AnyMessage()
    detail.Pack(error_details_pb2.ErrorInfo(domain=DOMAIN, reason=reason, metadata=metadata))
    status: grpc.Status = rpc_status.to_status(
        status_pb2.Status(code=code.value[0], message=str(error), details=[detail])
    )
    return status


def refusal_to_pb(error: Refusal, max_model_len: int) -> pb.CallRefusal:
    """The same for one call of many."""
    code, reason, metadata = meaning_of(error, max_model_len)
    return pb.CallRefusal(code=code.value[0], message=str(error), reason=reason, metadata=metadata)


def meaning_of(error: Refusal, max_model_len: int) -> CodeReasonMetadata:
    """Code, reason and metadata of the status."""
    match error:
        case InvalidFieldError(field=field):
            return grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", {"field": field}
        case RequestTooLargeError(num_tokens=num_tokens, max_tokens=max_tokens, num_beams=num_beams):
            reason = "CONTEXT_LENGTH" if num_tokens > max_model_len and num_beams == 1 else "EXCEEDS_KV_POOL"
            metadata = {"num_tokens": str(num_tokens), "max_tokens": str(max_tokens)}
            return grpc.StatusCode.INVALID_ARGUMENT, reason, metadata
        case DuplicateRequestError():
            return grpc.StatusCode.ALREADY_EXISTS, "DUPLICATE_GENERATION", {}
        case ProtocolVersionError(ours=ours):
            return grpc.StatusCode.FAILED_PRECONDITION, "PROTOCOL_VERSION", {"protocol_version": str(ours)}
        case UnknownRequestError():
            return grpc.StatusCode.NOT_FOUND, "UNKNOWN_REQUEST", {}
        case BrokenCallError():
            return grpc.StatusCode.INTERNAL, "INTERNAL", {}
        case DrainingError():
            return grpc.StatusCode.UNAVAILABLE, "DRAINING", {}
        case GrammarsBusyError():  # not UNAVAILABLE: the engine takes other requests
            return grpc.StatusCode.RESOURCE_EXHAUSTED, "GRAMMARS_BUSY", {}
        case NotReadyError():
            return grpc.StatusCode.UNAVAILABLE, "NOT_READY", {}
    raise AssertionError(f"no status for {type(error).__name__}") from error
