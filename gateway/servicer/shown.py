"""A transcript, or what the ledger knows of a generation, as the messages of the public protocol. Pure."""

from collections import abc

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.engine_client.requests import RequestExplanation
from gateway.servicer.attachment import Served, result_of
from gateway.servicer.convert import (
    delta_to_pb,
    finish_reason_to_pb,
    finish_to_pb,
    logprobs_to_pb,
    prompt_logprobs_to_pb,
    queued_to_pb,
    stored_finish_reason_to_pb,
    stored_timings_to_pb,
    stored_usage_to_pb,
    timings_to_pb,
    usage_to_pb,
)
from gateway.servicer.outcome import Continued, Delta, Event, FinishReason, Outcome, Paused, Queued, Started
from gateway.servicer.transcript import Transcript
from gateway.store.generations import StoredUsage


def response_to_pb(served: Served, deltas: abc.Sequence[Delta]) -> pb.GenerateResponse:
    """The whole answer of a generation that has ended. Raises the error that stands for a result."""
    transcript = served.transcript
    outcome = result_of(served)
    return pb.GenerateResponse(
        generation_id=transcript.generation_id,
        model=transcript.model,
        outputs=outputs_to_pb(transcript, deltas, outcome),
        usage=usage_to_pb(outcome.usage),
        timings=timings_to_pb(outcome.timings),
        replayed=served.is_replay,
    )


def stored_response_to_pb(stored: StoredUsage) -> pb.GenerateResponse:
    """The answer without its output, which is kept nowhere. An end that was an error is finish reason ERROR."""
    return pb.GenerateResponse(
        generation_id=str(stored.generation_id),
        model=stored.model,
        usage=stored_usage_to_pb(stored),
        timings=stored_timings_to_pb(stored),
        replayed=True,
        finish_reason=stored_finish_reason_to_pb(stored.finish_reason),
    )


def stored_stream_to_pb(stored: StoredUsage) -> abc.Iterator[pb.StreamGenerateResponse]:
    """The same as a stream: its admission and its end."""
    admission = pb.Admission(
        generation_id=str(stored.generation_id),
        model=stored.model,
        input_tokens=stored.input_tokens,
        reserved_tokens=stored.reserved_tokens,
        replayed=True,
    )
    yield pb.StreamGenerateResponse(sequence=1, admission=admission)
    finish = pb.Finish(
        finish_reason=stored_finish_reason_to_pb(stored.finish_reason),
        usage=stored_usage_to_pb(stored),
        timings=stored_timings_to_pb(stored),
    )
    yield pb.StreamGenerateResponse(sequence=2, finish=finish)


def outputs_to_pb(transcript: Transcript, deltas: abc.Sequence[Delta], outcome: Outcome) -> list[pb.Output]:
    """One; of a beam search each that it found, if it found any."""
    if deltas and deltas[0].found is not None:
        return [_output_to_pb(transcript, (delta,), outcome) for delta in deltas]
    return [_output_to_pb(transcript, deltas, outcome)]


def _output_to_pb(transcript: Transcript, deltas: abc.Sequence[Delta], outcome: Outcome) -> pb.Output:
    tokenizer, found = transcript.tokenizer, deltas[-1].found if deltas else None
    return pb.Output(
        index=0 if found is None else found.rank,
        score=None if found is None else found.score,
        text="".join(delta.text for delta in deltas),
        token_ids=[token_id for delta in deltas for token_id in delta.token_ids] if transcript.shows_token_ids else (),
        logprobs=[entry for delta in deltas for entry in logprobs_to_pb(delta, tokenizer)],
        finish_reason=finish_reason_to_pb(outcome.finish_reason if found is None else found.finish_reason),
        prompt_logprobs=[entry for delta in deltas for entry in prompt_logprobs_to_pb(delta, tokenizer)],
    )


def event_to_pb(sequence: int, event: Event, served: Served) -> pb.StreamGenerateResponse:
    """One message of a stream."""
    transcript = served.transcript
    match event:
        case Delta():
            delta = delta_to_pb(event, transcript.tokenizer, with_ids=transcript.shows_token_ids)
            return pb.StreamGenerateResponse(sequence=sequence, token_delta=delta)
        case Started():
            admission = pb.Admission(
                generation_id=transcript.generation_id,
                model=transcript.model,
                input_tokens=transcript.num_input_tokens,
                reserved_tokens=transcript.num_reserved_tokens,
                replayed=served.is_replay,
            )
            return pb.StreamGenerateResponse(sequence=sequence, admission=admission)
        case Queued():
            return pb.StreamGenerateResponse(sequence=sequence, queue_update=queued_to_pb(event))
        case Paused():
            paused = pb.Preempted(reason=event.reason, mode=event.mode)
            return pb.StreamGenerateResponse(sequence=sequence, preempted=paused)
        case Continued():
            return pb.StreamGenerateResponse(sequence=sequence, resumed=pb.Resumed())


def end_to_pb(sequence: int, served: Served) -> pb.StreamGenerateResponse:
    """The last message of a stream. Raises the error that stands for a result."""
    return pb.StreamGenerateResponse(sequence=sequence, finish=finish_to_pb(result_of(served)))


def state_to_pb(transcript: Transcript, deltas: abc.Sequence[Delta] | None) -> pb.GetGenerationResponse:
    """Where a generation of this gateway stands; `deltas` None: its output is not, or no longer, all there."""
    outcome = transcript.outcome
    response = pb.GetGenerationResponse(
        generation_id=transcript.generation_id,
        model=transcript.model,
        request_id=transcript.request_id,
        last_sequence=transcript.journal.last_sequence,
        state=_state(transcript),
    )
    if outcome is None:
        if transcript.queued is not None:
            response.queue_update.CopyFrom(queued_to_pb(transcript.queued))
        return response
    response.finish_reason = finish_reason_to_pb(outcome.finish_reason)
    response.usage.CopyFrom(usage_to_pb(outcome.usage))
    if outcome.timings is not None:
        response.timings.MergeFrom(timings_to_pb(outcome.timings) or pb.Timings())
    if outcome.error is not None:
        response.error_reason = outcome.error.reason
    if deltas is not None:
        response.outputs.extend(outputs_to_pb(transcript, deltas, outcome))
    return response


def explained_state_to_pb(told: RequestExplanation) -> pb.GetGenerationResponse:
    """A generation that another gateway runs, by what the engine knows of it."""
    request = told.request
    response = pb.GetGenerationResponse(
        generation_id=request.generation_id,
        state=_ENGINE_STATES.get(request.state, pb.GENERATION_STATE_PAUSED),
        usage=pb.Usage(input_tokens=request.num_prompt_tokens, output_tokens=request.num_output_tokens),
    )
    if response.state == pb.GENERATION_STATE_QUEUED:
        queued = Queued(told.position, told.is_lower_bound, told.estimated_wait_ns)
        response.queue_update.CopyFrom(queued_to_pb(queued))
    return response


_ENGINE_STATES = {"waiting": pb.GENERATION_STATE_QUEUED, "running": pb.GENERATION_STATE_RUNNING}


def stored_state_to_pb(stored: StoredUsage) -> pb.GetGenerationResponse:
    """A generation that only the ledger knows."""
    reason = stored.finish_reason.lower()
    failed = reason in (FinishReason.ERROR.value, FinishReason.QUEUE_TIMEOUT.value)
    return pb.GetGenerationResponse(
        generation_id=str(stored.generation_id),
        model=stored.model,
        request_id=stored.request_id,
        state=pb.GENERATION_STATE_FINISHED,
        finish_reason=stored_finish_reason_to_pb(stored.finish_reason),
        usage=stored_usage_to_pb(stored),
        timings=stored_timings_to_pb(stored),
        error_reason=stored.finish_reason if failed else "",
    )


def _state(transcript: Transcript) -> pb.GenerationState.ValueType:
    if transcript.outcome is not None:
        return pb.GENERATION_STATE_FINISHED
    if transcript.is_paused:
        return pb.GENERATION_STATE_PAUSED
    return pb.GENERATION_STATE_RUNNING if transcript.is_scheduled else pb.GENERATION_STATE_QUEUED
