"""From a `GenerationSpec` to a running Generation: validate, tokenize, size, admit, start.

Everything that awaits comes before the quota is reserved. From the reservation to the started task there is no await,
so no cancellation can come between them.
"""

import asyncio
import math
import secrets
from dataclasses import dataclass
from functools import partial

from opentelemetry import trace
from uuid_utils.compat import uuid7

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.admission import Admission, Admitted, Demand
from gateway.auth import Principal, current_principal
from gateway.engine_client import EngineRequest, ModelInfo, Sampling
from gateway.errors import (
    ContextLengthError,
    DeadlineExceededError,
    ExceedsKvPoolError,
    FieldViolation,
    InvalidFieldError,
)
from gateway.servicer.ask import GenerationAsk
from gateway.servicer.live import LiveGenerations
from gateway.servicer.prompt import encode
from gateway.servicer.record import Recorder
from gateway.servicer.relay import Generation, Job
from gateway.servicer.served_models import ServedModels
from gateway.servicer.validation import ask_from_pb
from gateway.telemetry import ADMISSION_SPAN, NUM_LIMITS, RESERVED_TOKENS, current_rpc, trace_headers

DEFAULT_MAX_OUTPUT_TOKENS = 1024
# The engine stops this long before the caller's deadline, so that the answer still reaches the caller.
DEADLINE_MARGIN = 0.1
MAX_DEADLINE_MARGIN_S = 0.25
# A longer one is as good as this; in nanoseconds it has to fit 64 bits.
MAX_DEADLINE_S = 365 * 86_400.0
NS_PER_S = 1_000_000_000
SEED_BITS = 63


@dataclass(frozen=True, slots=True)
class Launcher:
    """Starts generations on this gateway. `buffer_tokens`: output held for a client that does not read."""

    models: ServedModels
    admission: Admission
    live: LiveGenerations
    recorder: Recorder
    tracer: trace.Tracer
    buffer_tokens: int

    async def launch(self, spec: pb.GenerationSpec, time_left_s: float | None) -> Generation:
        """A running generation for the current principal. Raises GatewayError; then nothing was reserved."""
        deadline = Deadline.after(time_left_s)
        self.admission.require_open()
        principal, ask = current_principal(), ask_from_pb(spec)
        model = self.models.resolve(ask.model, principal.model_grants, "spec.model")
        check_stop_tokens(ask, model.info)
        prompt_token_ids = await encode(ask.prompt, model, "spec")
        max_output_tokens = output_size(ask.stopping.max_output_tokens, len(prompt_token_ids), model.info)
        deadline.require_left()
        self.live.require_new(principal, ask)
        demand = Demand(
            generation_id=str(uuid7()),
            model=model.info.name,
            priority_class=ask.admission.priority_class,
            num_input_tokens=len(prompt_token_ids),
            max_output_tokens=max_output_tokens,
        )
        admitted = self._admit(principal, demand)
        request = engine_request(ask, admitted, prompt_token_ids, deadline)
        return self._start(Job(principal, ask, model, admitted, request, deadline.give_up_at_s))

    def _admit(self, principal: Principal, demand: Demand) -> Admitted:
        with self.tracer.start_as_current_span(ADMISSION_SPAN, record_exception=False) as span:
            admitted = self.admission.admit(principal, demand)
            span.set_attribute(RESERVED_TOKENS, admitted.reserved_tokens)
            span.set_attribute(NUM_LIMITS, admitted.num_limits)
            return admitted

    def _start(self, job: Job) -> Generation:
        rpc = current_rpc()
        if rpc is not None:
            rpc.generation_id = job.generation_id
        span = self.recorder.begin_span(job)
        request_id = rpc.request_id if rpc is not None else ""
        generation = Generation(job, self.buffer_tokens, partial(self.recorder.ended, span, request_id))
        self.live.add(generation)
        generation.start(trace_headers(span))
        return generation


@dataclass(frozen=True, slots=True)
class Deadline:
    """The caller's deadline on the event loop's clock, and the earlier moments by which engine and gateway stop."""

    at_s: float | None
    margin_s: float

    @classmethod
    def after(cls, time_left_s: float | None) -> "Deadline":
        if time_left_s is None or math.isinf(time_left_s):
            return cls(None, 0.0)
        time_left_s = min(time_left_s, MAX_DEADLINE_S)
        margin_s = min(MAX_DEADLINE_MARGIN_S, DEADLINE_MARGIN * time_left_s)
        return cls(asyncio.get_running_loop().time() + time_left_s, margin_s)

    @property
    def give_up_at_s(self) -> float | None:
        """When the gateway answers without the engine: after the engine's deadline, before the caller's."""
        return None if self.at_s is None else self.at_s - self.margin_s / 2

    @property
    def engine_ns(self) -> int | None:
        """What is left for the engine from now on."""
        if self.at_s is None:
            return None
        return int((self.at_s - self.margin_s - asyncio.get_running_loop().time()) * NS_PER_S)

    def require_left(self) -> None:
        """Raises DeadlineExceededError if the engine would have no time at all."""
        left_ns = self.engine_ns
        if left_ns is not None and left_ns <= 0:
            raise DeadlineExceededError


def output_size(wanted: int | None, num_input_tokens: int, info: ModelInfo) -> int:
    """How many output tokens the request may have; `wanted` None: what is left, up to the default.

    Raises ContextLengthError or ExceedsKvPoolError where prompt and output can never be held.
    """
    room = min(info.context_tokens, info.max_request_tokens) - num_input_tokens
    size = max(1, min(room, DEFAULT_MAX_OUTPUT_TOKENS)) if wanted is None else wanted
    total = num_input_tokens + size
    field = "spec.prompt" if wanted is None or room < 1 else "spec.stopping.max_output_tokens"
    text = f"{num_input_tokens} input tokens and {size} output tokens are more than"
    sizes = {"input_tokens": str(num_input_tokens), "max_output_tokens": str(size)}
    if total > info.context_tokens:
        violation = FieldViolation(field, f"{text} the model's context of {info.context_tokens}")
        raise ContextLengthError(violation, metadata={**sizes, "context_tokens": str(info.context_tokens)})
    if total > info.max_request_tokens:
        violation = FieldViolation(field, f"{text} the {info.max_request_tokens} that one request can ever hold")
        raise ExceedsKvPoolError(violation, metadata={**sizes, "max_request_tokens": str(info.max_request_tokens)})
    return size


def check_stop_tokens(ask: GenerationAsk, info: ModelInfo) -> None:
    """Raises InvalidFieldError for a stop token that the model does not have."""
    if any(token_id >= info.vocabulary_size for token_id in ask.stopping.stop_token_ids):
        text = f"must be token ids of the model, each less than {info.vocabulary_size}"
        raise InvalidFieldError(FieldViolation("spec.stopping.stop_token_ids", text))


def engine_request(
    ask: GenerationAsk, admitted: Admitted, prompt_token_ids: tuple[int, ...], deadline: Deadline
) -> EngineRequest:
    """What the engine is asked; the seed is drawn here if the caller left it open."""
    waits_ns = [wait for wait in (ask.admission.max_queue_wait_ns, admitted.max_queue_wait_ns) if wait is not None]
    sampling, stopping = ask.sampling, ask.stopping
    return EngineRequest(
        generation_id=admitted.demand.generation_id,
        path=admitted.path,
        priority_class=admitted.priority_class,
        cache_salt=admitted.cache_salt,
        prompt_token_ids=prompt_token_ids,
        sampling=Sampling(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            seed=secrets.randbits(SEED_BITS) if sampling.seed is None else sampling.seed,
            stop_token_ids=stopping.stop_token_ids,
            ignore_eos=stopping.ignore_eos,
            num_logprobs=ask.output.num_logprobs,
        ),
        max_output_tokens=admitted.demand.max_output_tokens,
        deadline_ns=deadline.engine_ns,
        max_queue_wait_ns=min(waits_ns) if waits_ns else None,
        policy_revision=admitted.policy_revision,
    )
