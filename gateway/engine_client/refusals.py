"""An engine's status as the error of ours that it stands for."""

from collections import abc
from dataclasses import dataclass, field

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from evenflow.engine.v1 import engine_pb2 as pb
from gateway.errors import (
    EngineLostError,
    FieldViolation,
    GatewayError,
    InternalError,
    InvalidFieldError,
    NoEngineError,
    UnavailableError,
)
from gateway.errors_requests import ContextLengthError, ExceedsKvPoolError

_FIELD_ERRORS = {
    "EXCEEDS_KV_POOL": ExceedsKvPoolError,
    "CONTEXT_LENGTH": ContextLengthError,
    "INVALID_FIELD": InvalidFieldError,
}
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_ENGINE_FAULTS = frozenset(
    {
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.ALREADY_EXISTS,
    }
)
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


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """How an engine has ended a call. `reason` and `metadata` are empty where it has none that can be read."""

    code: grpc.StatusCode
    message: str
    reason: str = ""
    metadata: abc.Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_error(cls, error: grpc.aio.AioRpcError) -> "EngineStatus":
        info = _error_info(error)
        return cls(error.code(), error.details() or "", info.reason, dict(info.metadata))

    @classmethod
    def of_refusal(cls, refusal: pb.CallRefusal) -> "EngineStatus":
        code = _CODES.get(refusal.code, grpc.StatusCode.UNKNOWN)
        return cls(code, refusal.message, refusal.reason, dict(refusal.metadata))


def typed(error: grpc.aio.AioRpcError, *, is_answered: bool) -> GatewayError:
    """Of a call that had, or had not, been answered before it ended."""
    return typed_status(EngineStatus.of_error(error), is_answered=is_answered)


def typed_status(status: EngineStatus, *, is_answered: bool) -> GatewayError:
    """The same, of what it ended with."""
    field_error = _FIELD_ERRORS.get(status.reason)
    if field_error is not None:
        text, name = status.message or status.reason, status.metadata.get("field", "")
        # The engine's text begins with its own name of the field.
        return field_error(FieldViolation(public_field(name), text.removeprefix(f"{name} ")), metadata=status.metadata)
    if is_answered:
        return EngineLostError()
    if status.reason == "PROTOCOL_VERSION":
        return InternalError(f"the engine refuses this gateway's protocol version: {status.message}")
    if status.reason == "GRAMMARS_BUSY":
        return UnavailableError("too many output formats wait to be compiled")
    if status.code in _ENGINE_FAULTS:
        return InternalError(f"the engine failed: {status.code.name}: {status.message}")
    return NoEngineError()


def public_field(field: str) -> str:
    """What the public protocol calls a field of the engine's: its path from the spec on."""
    for engines, ours in _SPEC_FIELDS.items():
        if field == engines or field.startswith(f"{engines}."):
            return f"spec.{ours}{field.removeprefix(engines)}"
    return f"spec.{field}" if field else "spec"


def typed_switch(error: grpc.aio.AioRpcError) -> GatewayError:
    """Of a call that sets policies."""
    info = _error_info(error)
    if info.reason == "INVALID_FIELD":
        name = info.metadata.get("field", "")
        # The engine's text begins with its own name of the field.
        text = (error.details() or info.reason).removeprefix(f"{name} ")
        return InvalidFieldError(FieldViolation(_POLICY_FIELDS.get(name, name), text))
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
