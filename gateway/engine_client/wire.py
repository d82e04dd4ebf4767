"""Plain values to protocol messages of `evenflow.engine.v1`, and back. Pure."""

from collections import abc

from google.protobuf import message as pb_message

from evenflow.engine.v1 import engine_pb2 as pb
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
    Preempted,
    PriorityClass,
    QueuedAt,
    Resumed,
    Sampling,
    TokenChunk,
    TokenLogprobs,
    WitnessedUsage,
)
from gateway.engine_client.refusals import public_field
from gateway.engine_client.requests import RequestSelection

PROTOCOL_VERSION = 1

_CANCEL_REASONS = {
    CancelReason.CLIENT: pb.CANCEL_REASON_CLIENT,
    CancelReason.STOP_STRING: pb.CANCEL_REASON_STOP_STRING,
    CancelReason.KEY_REVOKED: pb.CANCEL_REASON_KEY_REVOKED,
    CancelReason.ADMINISTRATOR: pb.CANCEL_REASON_ADMINISTRATOR,
}


def start_to_pb(request: EngineRequest) -> pb.GenerateRequest:
    """The first message of a call."""
    start = pb.StartGeneration(
        generation_id=request.generation_id,
        path=[pb.WeightedNode(id=node.id, weight=node.weight) for node in request.path],
        priority_class=_class_to_pb(request.priority_class),
        cache_salt=request.cache_salt,
        prompt_token_ids=request.prompt_token_ids,
        sampling=_sampling_to_pb(request.sampling),
        max_output_tokens=request.max_output_tokens,
        grant_output_tokens=request.granted_output_tokens,
        deadline_ns=request.deadline_ns,
        max_queue_wait_ns=request.max_queue_wait_ns,
        policy_revision=request.policy_revision,
        protocol_version=PROTOCOL_VERSION,
        reports_queue=request.reports_queue,
        ledger_id=request.ledger_id,
        usage_tag=request.usage_tag,
        sender_id=request.sender_id,
        speculation=None if request.sampling.speculates else False,
        beam_search=None if request.beam_search is None else _beam_search_to_pb(request.beam_search),
    )
    return pb.GenerateRequest(start=start)


def grant_to_pb(max_output_tokens: int) -> pb.GenerateRequest:
    return pb.GenerateRequest(grant=pb.Grant(max_output_tokens=max_output_tokens))


def set_class_to_pb(priority_class: PriorityClass, policy_revision: int) -> pb.GenerateRequest:
    message = pb.SetClass(priority_class=_class_to_pb(priority_class), policy_revision=policy_revision)
    return pb.GenerateRequest(set_class=message)


def cancel_to_pb(reason: CancelReason, num_kept_tokens: int | None) -> pb.GenerateRequest:
    """`num_kept_tokens` of the output belong to the request; None: whatever was sampled."""
    return pb.GenerateRequest(cancel=pb.Cancel(reason=_CANCEL_REASONS[reason], output_tokens=num_kept_tokens))


def selection_to_pb(selection: RequestSelection, reason: CancelReason) -> pb.CancelRequestsRequest:
    return pb.CancelRequestsRequest(
        generation_ids=selection.generation_ids,
        path=selection.path,
        sender_id=selection.sender_id,
        reason=_CANCEL_REASONS[reason],
    )


def event_from_pb(response: pb.GenerateResponse) -> EngineEvent | None:
    """The event in `response`; None for one that is for information only and that nobody here uses."""
    kind = response.WhichOneof("message")
    if kind == "token_chunk":
        return _chunk_from_pb(response.token_chunk)
    if kind == "accepted":
        return Accepted()
    if kind == "admitted":
        return Admitted(response.admitted.queue_ns)
    if kind == "queued_at":
        at = response.queued_at
        wait_ns = at.estimated_wait_ns if at.HasField("estimated_wait_ns") else None
        return QueuedAt(at.position, at.position_is_lower_bound, wait_ns)
    if kind == "preempted":
        mode, reason = response.preempted.mode, response.preempted.reason
        return Preempted(_word(pb.PreemptionMode.Name(mode)), _word(pb.PauseReason.Name(reason)))
    if kind == "resumed":
        return Resumed()
    if kind == "finished":
        return _finished_from_pb(response.finished)
    return None


def witnessed_from_pb(told: pb.StreamUsageResponse) -> WitnessedUsage:
    return WitnessedUsage(
        sequence=told.sequence,
        generation_id=told.generation_id,
        usage_tag=told.usage_tag,
        reason=_reason_from_pb(told.reason),
        usage=_usage_from_pb(told.usage),
        timings=_timings_from_pb(told.timings),
        is_scheduled=told.scheduled,
        finished_unix_ns=told.finished_unix_ns,
        num_kept_tokens=told.kept_output_tokens if told.HasField("kept_output_tokens") else None,
    )


def model_info_from_pb(info: pb.GetModelInfoResponse) -> ModelInfo:
    return ModelInfo(
        name=info.name,
        architecture=info.architecture,
        dtype=info.dtype,
        parameter_count=info.parameter_count,
        context_tokens=info.context_tokens,
        max_request_tokens=info.max_request_tokens,
        vocabulary_size=info.vocabulary_size,
        tokenizer_json=info.tokenizer_json,
        chat_template=info.chat_template,
        bos_token_id=_optional_id(info, "bos_token_id"),
        eos_token_ids=tuple(info.eos_token_ids),
        pad_token_id=_optional_id(info, "pad_token_id"),
        unk_token_id=_optional_id(info, "unk_token_id"),
        add_bos_token=info.add_bos_token,
        model_hash=info.model_hash,
        num_device_blocks=info.num_device_blocks,
        block_size=info.block_size,
    )


def _class_to_pb(priority_class: PriorityClass) -> pb.PriorityClass:
    return pb.PriorityClass(
        name=priority_class.name,
        rank=priority_class.rank,
        min_share=priority_class.min_share,
        preemptible=priority_class.preemptible,
    )


def _sampling_to_pb(sampling: Sampling) -> pb.Sampling:
    return pb.Sampling(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        seed=sampling.seed,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        num_logprobs=sampling.num_logprobs,
        num_prompt_logprobs=sampling.num_prompt_logprobs,
        biased_token_ids=[token_id for token_id, _ in sampling.logit_biases],
        biases=[bias for _, bias in sampling.logit_biases],
        allowed_token_ids=sampling.allowed_token_ids,
        grammar=None if sampling.grammar is None else _grammar_to_pb(sampling.grammar),
    )


def _beam_search_to_pb(search: BeamSearch) -> pb.BeamSearch:
    return pb.BeamSearch(
        width=search.width,
        num_returned=search.num_returned,
        length_penalty=search.length_penalty,
        early_stopping=search.ends_early,
    )


def _grammar_to_pb(grammar: Grammar) -> pb.Grammar:
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return pb.Grammar(json_schema=grammar.text, field=grammar.field)
        case GrammarKind.REGEX:
            return pb.Grammar(regex=grammar.text, field=grammar.field)
        case GrammarKind.LARK:
            parts = [pb.NamedSchema(field=part.field, json_schema=part.text) for part in grammar.parts]
            return pb.Grammar(lark=grammar.text, parts=parts, field=grammar.field)


def _chunk_from_pb(chunk: pb.TokenChunk) -> TokenChunk:
    return TokenChunk(
        tuple(chunk.token_ids),
        _logprobs_from_pb(chunk.logprobs),
        _logprobs_from_pb(chunk.prompt_logprobs),
        _beam_from_pb(chunk) if chunk.HasField("beam") else None,
    )


def _beam_from_pb(chunk: pb.TokenChunk) -> BeamResult:
    return BeamResult(chunk.index, chunk.beam.score, _reason_from_pb(chunk.beam.reason))


def _logprobs_from_pb(entries: abc.Iterable[pb.TokenLogprobs]) -> tuple[TokenLogprobs, ...]:
    return tuple(
        TokenLogprobs(entry.logprob, tuple(zip(entry.top_token_ids, entry.top_logprobs, strict=True)))
        for entry in entries
    )


def _finished_from_pb(finished: pb.Finished) -> Finished:
    return Finished(
        reason=_reason_from_pb(finished.reason),
        usage=_usage_from_pb(finished.usage),
        timings=_timings_from_pb(finished.timings),
        error=finished.error,
        cancel_reason=_REASONS_OF_OTHERS.get(finished.cancel_reason),
        error_fields=tuple(public_field(name) for name in finished.error_fields),
    )


_REASONS_OF_OTHERS = {on_the_wire: reason for reason, on_the_wire in _CANCEL_REASONS.items()}


def _reason_from_pb(reason: pb.FinishReason.ValueType) -> FinishReason:
    # A reason that this gateway does not know is an error of the engine, not a normal end.
    return _FINISH_REASONS.get(reason, FinishReason.ERROR)


def _usage_from_pb(usage: pb.Usage) -> EngineUsage:
    return EngineUsage(
        prompt_tokens=usage.prompt_tokens,
        cached_prompt_tokens=usage.cached_prompt_tokens,
        output_tokens=usage.output_tokens,
        recomputed_tokens=usage.recomputed_tokens,
        num_preemptions=usage.num_preemptions,
    )


def _timings_from_pb(timings: pb.Timings) -> EngineTimings:
    return EngineTimings(
        arrived_unix_ns=timings.arrived_unix_ns,
        queue_ns=timings.queue_ns,
        prefill_ns=timings.prefill_ns,
        decode_ns=timings.decode_ns,
        preempted_ns=timings.preempted_ns,
        swap_ns=timings.swap_ns,
    )


_FINISH_REASONS = {
    pb.FINISH_REASON_STOP: FinishReason.STOP,
    pb.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    pb.FINISH_REASON_CANCELLED: FinishReason.CANCELLED,
    pb.FINISH_REASON_DEADLINE: FinishReason.DEADLINE,
    pb.FINISH_REASON_QUEUE_TIMEOUT: FinishReason.QUEUE_TIMEOUT,
    pb.FINISH_REASON_QUOTA: FinishReason.QUOTA,
    pb.FINISH_REASON_ERROR: FinishReason.ERROR,
}


def _optional_id(message: pb_message.Message, field: str) -> int | None:
    return int(getattr(message, field)) if message.HasField(field) else None


def _word(enum_name: str) -> str:
    """`PAUSE_REASON_KV_PRESSURE` is "kv_pressure": the words of the public protocol are the values' own names."""
    for prefix in ("PREEMPTION_MODE_", "PAUSE_REASON_"):
        enum_name = enum_name.removeprefix(prefix)
    return enum_name.lower()
