"""An engine's status as the error of ours that it stands for."""

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from gateway.errors import (
    EngineLostError,
    FieldViolation,
    GatewayError,
    InternalError,
    InvalidFieldError,
    NoEngineError,
)
from gateway.errors_requests import ContextLengthError, ExceedsKvPoolError

_FIELD_ERRORS = {
    "EXCEEDS_KV_POOL": ExceedsKvPoolError,
    "CONTEXT_LENGTH": ContextLengthError,
    "INVALID_FIELD": InvalidFieldError,
}
# The engine's names of what a request says, and the public ones, where they differ.
_SPEC_FIELDS = {
    "sampling.grammar": "output.format",
    "sampling.biased_token_ids": "sampling.logit_bias",
    "sampling.biases": "sampling.logit_bias",
    "sampling.num_prompt_logprobs": "output.prompt_logprobs",
    "sampling.num_logprobs": "output.logprobs",
}
# The engine's names of what an administrator sets, and the public ones.
_POLICY_FIELDS = {
    "name": "scheduling_policy",
    "options": "scheduling_options",
    "preemption_name": "preemption_policy",
    "preemption_options": "preemption_options",
}


def typed(error: grpc.aio.AioRpcError, *, is_answered: bool) -> GatewayError:
    """Of a call that had, or had not, been answered before it ended."""
    info = _error_info(error)
    field_error = _FIELD_ERRORS.get(info.reason)
    if field_error is not None:
        text = error.details() or info.reason
        field = info.metadata.get("field", "")
        # The engine's text begins with its own name of the field.
        return field_error(FieldViolation(_public(field), text.removeprefix(f"{field} ")), metadata=dict(info.metadata))
    if is_answered:
        return EngineLostError()
    if info.reason == "PROTOCOL_VERSION":
        return InternalError(f"the engine refuses this gateway's protocol version: {error.details()}")
    if error.code() in (
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.ALREADY_EXISTS,
    ):
        return InternalError(f"the engine failed: {error.code().name}: {error.details()}")
    return NoEngineError()


def _public(field: str) -> str:
    """What the public protocol calls a field of the engine's."""
    for engines, ours in _SPEC_FIELDS.items():
        if field == engines or field.startswith(f"{engines}."):
            return f"spec.{ours}{field.removeprefix(engines)}"
    return f"spec.{field}" if field else "spec"


def typed_switch(error: grpc.aio.AioRpcError) -> GatewayError:
    """Of a call that sets policies."""
    info = _error_info(error)
    if info.reason == "INVALID_FIELD":
        field = info.metadata.get("field", "")
        # The engine's text begins with its own name of the field.
        text = (error.details() or info.reason).removeprefix(f"{field} ")
        return InvalidFieldError(FieldViolation(_POLICY_FIELDS.get(field, field), text))
    return typed(error, is_answered=False)


def _error_info(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo:
    """The details of the engine's status; empty if it has none that can be read."""
    info = error_details_pb2.ErrorInfo()
    try:
        status = rpc_status.from_call(error)
    except ValueError:
        return info
    for detail in status.details if status is not None else ():
        if detail.Unpack(info):
            return info
    return info
