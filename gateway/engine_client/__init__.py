"""The gateway's side of the engine's wire: the only user of `evenflow.engine.v1`.

`messages` are the plain values that the rest of the gateway sees, `wire` and `administration` turn them into protocol
messages and back, `refusals` turns the engine's statuses into errors. `call` and `shared` are requests on streams of
their own and on one of all, `client` owns the channel.
"""

from gateway.engine_client.call import EngineCall
from gateway.engine_client.client import EngineClient
from gateway.engine_client.messages import (
    Accepted,
    Admitted,
    BeamResult,
    BeamSearch,
    CancelReason,
    EngineEvent,
    EngineRequest,
    EngineTimings,
    EngineUsage,
    Finished,
    FinishReason,
    Grammar,
    GrammarKind,
    ModelInfo,
    NamedSchema,
    Node,
    NodeUpdate,
    Preempted,
    PriorityClass,
    QueuedAt,
    Resumed,
    Sampling,
    TokenChunk,
    TokenLogprobs,
    WitnessedUsage,
)
from gateway.engine_client.requests import RequestSelection
from gateway.engine_client.usage import UsageCall

__all__ = [
    "Accepted",
    "Admitted",
    "BeamResult",
    "BeamSearch",
    "CancelReason",
    "EngineCall",
    "EngineClient",
    "EngineEvent",
    "EngineRequest",
    "EngineTimings",
    "EngineUsage",
    "FinishReason",
    "Finished",
    "Grammar",
    "GrammarKind",
    "ModelInfo",
    "NamedSchema",
    "Node",
    "NodeUpdate",
    "Preempted",
    "PriorityClass",
    "QueuedAt",
    "RequestSelection",
    "Resumed",
    "Sampling",
    "TokenChunk",
    "TokenLogprobs",
    "UsageCall",
    "WitnessedUsage",
]
