"""Wire messages to the scheduler's types and back. Every field of a request is checked here, and trusted further in.

Raises InvalidFieldError with the wire's field name, and RequestTooLargeError; no message ever holds the prompt.
"""

from collections import abc
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from engine.core.errors import RequestTooLargeError
from engine.core.events import Admitted, BeamFound, Finished, Preempted, PromptScored, Resumed, TokensEmitted
from engine.core.plan import TokenLogprobs
from engine.core.types import (
    MAX_WEIGHT,
    MIN_WEIGHT,
    FinishReason,
    Nanos,
    PathNode,
    PauseReason,
    PreemptionMode,
    PriorityClass,
    Request,
)
from engine.errors import InvalidFieldError, ProtocolVersionError
from engine.loop_messages import Abort, Accepted, Control, Grant, Outlet, QueuedAt, SetClass, SetReaderBlocked, Update
from engine.server.beam_messages import beam_search_from_pb, found_to_pb
from engine.server.request_messages import queued_to_pb
from engine.server.sampling_messages import Interval, check, check_token_ids, sampling_from_pb, stop_token_ids
from evenflow.engine.v1 import engine_pb2 as pb

PROTOCOL_VERSION = 1
MAX_ID_CHARACTERS = 128
MAX_TAG_BYTES = 16 << 10

MessageT = TypeVar("MessageT", bound=Message)

CANCEL_REASONS = {
    pb.CANCEL_REASON_UNSPECIFIED: FinishReason.CANCELLED,
    pb.CANCEL_REASON_CLIENT: FinishReason.CANCELLED,
    pb.CANCEL_REASON_STOP_STRING: FinishReason.STOP,
    pb.CANCEL_REASON_DEADLINE: FinishReason.DEADLINE,
    pb.CANCEL_REASON_KEY_REVOKED: FinishReason.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request is checked against; `eos_token_ids` end every output that does not ignore them."""

    vocabulary_size: int
    eos_token_ids: frozenset[int]
    max_request_tokens: int


def parse(message_type: type[MessageT], data: bytes) -> MessageT:
    """The message in `data`. Raises InvalidFieldError where it is none."""
    try:
        return message_type.FromString(data)
    except DecodeError:
        raise InvalidFieldError("message", f"is no {message_type.DESCRIPTOR.full_name}") from None


def check_protocol_version(version: int) -> None:
    """Raises ProtocolVersionError unless the peer speaks ours."""
    if version != PROTOCOL_VERSION:
        raise ProtocolVersionError(theirs=version, ours=PROTOCOL_VERSION)


def request_from_pb(start: pb.StartGeneration, limits: Limits, now: Nanos) -> Request:
    """The request that arrives `now`. Whether prompt and output fit together is for the scheduler to say."""
    check_protocol_version(start.protocol_version)
    check("generation_id", 0 < len(start.generation_id) <= MAX_ID_CHARACTERS, "must have 1 to 128 characters")
    check("max_output_tokens", start.max_output_tokens >= 1, "must be at least 1")
    check("grant_output_tokens", start.grant_output_tokens >= 0, "must be at least 0")
    check("sender_id", len(start.sender_id) <= MAX_ID_CHARACTERS, f"must have at most {MAX_ID_CHARACTERS} characters")
    check("ledger_id", len(start.ledger_id) <= MAX_ID_CHARACTERS, f"must have at most {MAX_ID_CHARACTERS} characters")
    check("usage_tag", len(start.usage_tag) <= MAX_TAG_BYTES, f"must have at most {MAX_TAG_BYTES} bytes")
    _check_prompt(start, limits)
    return Request(
        generation_id=start.generation_id,
        path=_path(start.path),
        prompt_token_ids=tuple(start.prompt_token_ids),
        max_output_tokens=start.max_output_tokens,
        arrived_at=now,
        sampling=sampling_from_pb(start, limits.vocabulary_size),
        stop_token_ids=stop_token_ids(start.sampling, limits.vocabulary_size, limits.eos_token_ids),
        priority_class=class_from_pb(start.priority_class),
        deadline=Nanos(now + start.deadline_ns) if start.HasField("deadline_ns") else None,
        queue_deadline=Nanos(now + start.max_queue_wait_ns) if start.HasField("max_queue_wait_ns") else None,
        granted_output_tokens=start.grant_output_tokens if start.HasField("grant_output_tokens") else None,
        cache_salt=start.cache_salt,
        policy_revision=start.policy_revision,
        speculates=start.speculation if start.HasField("speculation") else True,
        beam_search=beam_search_from_pb(start),
    )


def control_from_pb(message: pb.GenerateRequest, outlet: Outlet, generation_id: str) -> Control:
    """What the gateway says about a request that it has started."""
    match message.WhichOneof("message"):
        case "grant":
            check("grant.max_output_tokens", message.grant.max_output_tokens >= 0, "must be at least 0")
            return Grant(outlet, generation_id, message.grant.max_output_tokens)
        case "set_class":
            return SetClass(outlet, generation_id, class_from_pb(message.set_class.priority_class))
        case "reader_blocked":
            return SetReaderBlocked(outlet, generation_id, blocked=True)
        case "reader_ready":
            return SetReaderBlocked(outlet, generation_id, blocked=False)
        case "cancel":
            reason = CANCEL_REASONS.get(message.cancel.reason, FinishReason.CANCELLED)
            return Abort(outlet, generation_id, reason)
        case "start":
            raise InvalidFieldError("start", "must be the first message and come once")
    raise InvalidFieldError("message", "is empty, or of a kind that this engine does not know")


def class_from_pb(message: pb.PriorityClass) -> PriorityClass:
    """The class, checked."""
    check("priority_class.name", 0 < len(message.name) <= MAX_ID_CHARACTERS, "must have 1 to 128 characters")
    check("priority_class.min_share", Interval(0, 1).holds(message.min_share), "must be in [0, 1]")
    return PriorityClass(message.name, message.rank, message.min_share, message.preemptible)


def response_from_update(update: Update, arrived_unix_ns: int) -> pb.GenerateResponse:
    """The wire's form of what happened to a request that arrived at that calendar time."""
    match update:
        case Accepted():
            return pb.GenerateResponse(accepted=pb.Accepted(protocol_version=PROTOCOL_VERSION))
        case Admitted(_, queue_ns):
            return pb.GenerateResponse(admitted=pb.Admitted(queue_ns=queue_ns))
        case QueuedAt():
            return pb.GenerateResponse(queued_at=queued_to_pb(update))
        case TokensEmitted(_, token_ids, logprobs):
            chunk = pb.TokenChunk(token_ids=token_ids, logprobs=[_logprobs_to_pb(entry) for entry in logprobs])
            return pb.GenerateResponse(token_chunk=chunk)
        case BeamFound():
            return pb.GenerateResponse(token_chunk=found_to_pb(update, _logprobs_to_pb))
        case PromptScored(_, logprobs):
            scored = pb.TokenChunk(prompt_logprobs=[_logprobs_to_pb(entry) for entry in logprobs])
            return pb.GenerateResponse(token_chunk=scored)
        case Preempted(_, mode, reason):
            return pb.GenerateResponse(preempted=pb.Preempted(mode=_MODES[mode], reason=_PAUSE_REASONS[reason]))
        case Resumed():
            return pb.GenerateResponse(resumed=pb.Resumed())
        case Finished():
            return pb.GenerateResponse(finished=_finished_to_pb(update, arrived_unix_ns))
    raise AssertionError(f"not an update of a request: {type(update).__name__}")


_MODES = {
    PreemptionMode.PAUSE: pb.PREEMPTION_MODE_PAUSE,
    PreemptionMode.SWAP: pb.PREEMPTION_MODE_SWAP,
    PreemptionMode.RECOMPUTE: pb.PREEMPTION_MODE_RECOMPUTE,
}
_PAUSE_REASONS = {
    PauseReason.KV_PRESSURE: pb.PAUSE_REASON_KV_PRESSURE,
    PauseReason.FAIRNESS: pb.PAUSE_REASON_FAIRNESS,
    PauseReason.QUOTA: pb.PAUSE_REASON_QUOTA,
    PauseReason.READER: pb.PAUSE_REASON_READER,
}
_FINISH_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: pb.FINISH_REASON_CANCELLED,
    FinishReason.DEADLINE: pb.FINISH_REASON_DEADLINE,
    FinishReason.QUEUE_TIMEOUT: pb.FINISH_REASON_QUEUE_TIMEOUT,
    FinishReason.ERROR: pb.FINISH_REASON_ERROR,
}


def _check_prompt(start: pb.StartGeneration, limits: Limits) -> None:
    num_tokens = len(start.prompt_token_ids)
    check("prompt_token_ids", num_tokens > 0, "must not be empty")
    if num_tokens > limits.max_request_tokens:  # looking at each of millions of ids would hold up every other call
        raise RequestTooLargeError(num_tokens + start.max_output_tokens, limits.max_request_tokens)
    check_token_ids("prompt_token_ids", start.prompt_token_ids, limits.vocabulary_size)


def _path(nodes: abc.Sequence[pb.WeightedNode]) -> tuple[PathNode, ...]:
    check("path", len(nodes) > 0, "must not be empty")
    for node in nodes:
        # The path joined by "/" is the tenant's identity.
        is_id = 0 < len(node.id) <= MAX_ID_CHARACTERS and "/" not in node.id
        check("path.id", is_id, "must have 1 to 128 characters and no slash")
        is_weight = MIN_WEIGHT <= node.weight <= MAX_WEIGHT
        check("path.weight", is_weight, f"must be from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}")
    return tuple(PathNode(node.id, node.weight) for node in nodes)


def _logprobs_to_pb(entry: TokenLogprobs) -> pb.TokenLogprobs:
    return pb.TokenLogprobs(
        logprob=entry.logprob,
        top_token_ids=[token_id for token_id, _ in entry.top],
        top_logprobs=[logprob for _, logprob in entry.top],
    )


def usage_to_pb(request: Request, finished: Finished, arrived_unix_ns: int) -> pb.StreamUsageResponse:
    """What `request` used, as far as the scheduler knows."""
    told = _finished_to_pb(finished, arrived_unix_ns)
    return pb.StreamUsageResponse(
        generation_id=request.generation_id,
        path=[pb.WeightedNode(id=node.id, weight=node.weight) for node in request.path],
        usage=told.usage,
        reason=told.reason,
        timings=told.timings,
    )


def _finished_to_pb(finished: Finished, arrived_unix_ns: int) -> pb.Finished:
    usage, timings = finished.usage, finished.timings
    return pb.Finished(
        reason=_FINISH_REASONS[finished.reason],
        usage=pb.Usage(
            prompt_tokens=usage.num_prompt_tokens,
            cached_prompt_tokens=usage.num_cached_prompt_tokens,
            output_tokens=usage.num_output_tokens,
            recomputed_tokens=usage.num_recomputed_tokens,
            num_preemptions=usage.num_preemptions,
            drafted_tokens=usage.num_drafted_tokens,
            accepted_draft_tokens=usage.num_accepted_tokens,
        ),
        timings=pb.Timings(
            arrived_unix_ns=arrived_unix_ns,
            queue_ns=timings.queue_ns,
            prefill_ns=timings.prefill_ns,
            decode_ns=timings.decode_ns,
            preempted_ns=timings.preempted_ns,
            num_prefill_steps=timings.num_prefill_steps,
            num_decode_steps=timings.num_decode_steps,
        ),
        error=finished.error or "",
    )
