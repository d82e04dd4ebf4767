"""What a generation says, as protocol messages. Pure."""

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from evenflow.inference.v1 import generation_pb2 as pb
from evenflow.inference.v1 import model_pb2
from gateway.engine_client import EngineTimings, ModelInfo, TokenLogprobs
from gateway.servicer.outcome import Delta, FinishReason, Outcome, Queued, Usage
from gateway.store.generations import StoredUsage
from gateway.tokenizer import Tokenizer

_FINISH_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: pb.FINISH_REASON_CANCELLED,
    FinishReason.DEADLINE: pb.FINISH_REASON_DEADLINE,
    FinishReason.QUOTA: pb.FINISH_REASON_QUOTA,
}


def finish_reason_to_pb(reason: FinishReason) -> pb.FinishReason.ValueType:
    """Those that reach a client as an error are ERROR where it looks them up."""
    return _FINISH_REASONS.get(reason, pb.FINISH_REASON_ERROR)


def stored_finish_reason_to_pb(word: str) -> pb.FinishReason.ValueType:
    """Of a reason as the ledger spells it."""
    try:
        return finish_reason_to_pb(FinishReason(word.lower()))
    except ValueError:
        return pb.FINISH_REASON_ERROR


def stored_usage_to_pb(stored: StoredUsage) -> pb.Usage:
    return pb.Usage(
        input_tokens=stored.input_tokens,
        cached_input_tokens=stored.cached_input_tokens,
        output_tokens=stored.output_tokens,
        reserved_tokens=stored.reserved_tokens,
        billed_tokens=stored.billed_tokens,
        discarded_tokens=stored.discarded_tokens,
    )


def stored_timings_to_pb(stored: StoredUsage) -> pb.Timings:
    """The lengths; when it happened is not told."""
    return pb.Timings(
        queue=_duration(stored.queue_ns),
        prefill=_duration(stored.prefill_ns),
        decode=_duration(stored.decode_ns),
        preempted=_duration(stored.preempted_ns),
    )


def queued_to_pb(queued: Queued) -> pb.QueueUpdate:
    wait_ns = queued.estimated_wait_ns
    return pb.QueueUpdate(
        position=queued.position,
        position_is_lower_bound=queued.is_lower_bound,
        estimated_wait=None if wait_ns is None else _duration(wait_ns),
        reason="queued",
    )


def delta_to_pb(delta: Delta, tokenizer: Tokenizer, *, with_ids: bool) -> pb.TokenDelta:
    found = delta.found
    return pb.TokenDelta(
        index=0 if found is None else found.rank,
        score=None if found is None else found.score,
        finish_reason=pb.FINISH_REASON_UNSPECIFIED if found is None else finish_reason_to_pb(found.finish_reason),
        text=delta.text,
        token_ids=delta.token_ids if with_ids else (),
        logprobs=logprobs_to_pb(delta, tokenizer),
        output_tokens_so_far=delta.num_output_tokens,
        prompt_logprobs=prompt_logprobs_to_pb(delta, tokenizer),
    )


def prompt_logprobs_to_pb(delta: Delta, tokenizer: Tokenizer) -> list[pb.TokenLogprob]:
    """One entry per token of the prompt that has something before it."""
    return [
        _logprob_to_pb(scored.token_id, scored.logprobs, tokenizer)
        for scored in delta.prompt
        if scored.logprobs is not None
    ]


def logprobs_to_pb(delta: Delta, tokenizer: Tokenizer) -> list[pb.TokenLogprob]:
    """One entry per token id, none if the request did not ask for them."""
    if not delta.logprobs:
        return []
    pairs = zip(delta.token_ids, delta.logprobs, strict=True)
    return [_logprob_to_pb(token_id, entry, tokenizer) for token_id, entry in pairs]


def usage_to_pb(usage: Usage) -> pb.Usage:
    return pb.Usage(
        input_tokens=usage.num_input_tokens,
        cached_input_tokens=usage.num_cached_input_tokens,
        output_tokens=usage.num_output_tokens,
        reserved_tokens=usage.num_reserved_tokens,
        billed_tokens=usage.num_billed_tokens,
        discarded_tokens=usage.num_discarded_tokens,
    )


def timings_to_pb(timings: EngineTimings | None) -> pb.Timings | None:
    """Unset where the engine never told."""
    if timings is None:
        return None
    admitted_ns = timings.arrived_unix_ns + timings.queue_ns
    first_token_ns = admitted_ns + timings.prefill_ns
    return pb.Timings(
        queue=_duration(timings.queue_ns),
        prefill=_duration(timings.prefill_ns),
        decode=_duration(timings.decode_ns),
        preempted=_duration(timings.preempted_ns),
        swap=_duration(timings.swap_ns),
        admit_time=_timestamp(admitted_ns),
        first_token_time=_timestamp(first_token_ns),
        finish_time=_timestamp(first_token_ns + timings.decode_ns),
    )


def finish_to_pb(outcome: Outcome) -> pb.Finish:
    return pb.Finish(
        finish_reason=finish_reason_to_pb(outcome.finish_reason),
        usage=usage_to_pb(outcome.usage),
        timings=timings_to_pb(outcome.timings),
    )


def model_to_pb(info: ModelInfo) -> model_pb2.Model:
    return model_pb2.Model(
        name=info.name,
        context_tokens=info.context_tokens,
        vocabulary_size=info.vocabulary_size,
        architecture=info.architecture,
        parameter_count=info.parameter_count,
        dtype=info.dtype,
        has_chat_template=bool(info.chat_template),
        max_request_tokens=info.max_request_tokens,
    )


def tokenizer_to_pb(info: ModelInfo) -> model_pb2.GetTokenizerResponse:
    return model_pb2.GetTokenizerResponse(
        name=info.name,
        tokenizer_json=info.tokenizer_json,
        chat_template=info.chat_template,
        bos_token_id=info.bos_token_id,
        eos_token_ids=info.eos_token_ids,
        pad_token_id=info.pad_token_id,
        unk_token_id=info.unk_token_id,
        add_bos_token=info.add_bos_token,
        context_tokens=info.context_tokens,
    )


def _logprob_to_pb(token_id: int, entry: TokenLogprobs, tokenizer: Tokenizer) -> pb.TokenLogprob:
    return pb.TokenLogprob(
        token_id=token_id,
        token=tokenizer.token_text(token_id),
        logprob=entry.logprob,
        top=[
            pb.TopLogprob(token_id=top_id, token=tokenizer.token_text(top_id), logprob=logprob)
            for top_id, logprob in entry.top
        ],
    )


def _duration(length_ns: int) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(length_ns)
    return duration


def _timestamp(unix_ns: int) -> Timestamp:
    timestamp = Timestamp()
    timestamp.FromNanoseconds(unix_ns)
    return timestamp
