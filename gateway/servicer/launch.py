"""From a `GenerationSpec` to a running Generation: validate, tokenize, size, admit, start.

From the moment that the quota is reserved to the started task there is no await, so no cancellation can come between
them, and what fails there gives it back; a reservation that is cancelled while it is asked for is the quota backend's
to undo. What may have ended during the awaits before (the caller's time, the key, this gateway) is looked at once more.
"""

import asyncio
import math
import secrets
from collections import abc
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from opentelemetry import trace
from uuid_utils.compat import uuid7

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.admission import Admission, Forecast
from gateway.admission_terms import Admitted, Demand
from gateway.auth import Principal, current_principal
from gateway.engine_client import EngineRequest, ModelInfo, Sampling
from gateway.errors import FieldViolation, InvalidFieldError, NoEngineError
from gateway.errors_requests import ContextLengthError, DeadlineExceededError, ExceedsKvPoolError
from gateway.servicer.ask import GenerationAsk
from gateway.servicer.attachment import Served
from gateway.servicer.journal import JournalSizes
from gateway.servicer.live import LiveGenerations
from gateway.servicer.prompt import encode
from gateway.servicer.record import Recorder
from gateway.servicer.relay import Generation, Job
from gateway.servicer.request_ids import RequestIds
from gateway.servicer.served_models import ServedModel, ServedModels
from gateway.servicer.validation import ask_from_pb
from gateway.store.generations import StoredUsage
from gateway.telemetry import ADMISSION_SPAN, NUM_LIMITS, RESERVED_TOKENS, current_rpc, inner_span, trace_headers

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
    """Starts generations on this gateway. `sizes`: how much of their output is held."""

    models: ServedModels
    admission: Admission
    live: LiveGenerations
    request_ids: RequestIds
    recorder: Recorder
    tracer: trace.Tracer
    sizes: JournalSizes

    async def launch(
        self, spec: pb.GenerationSpec, time_left_s: float | None, *, reports_queue: bool = False
    ) -> Served | StoredUsage:
        """A running generation for the current principal, or what an earlier call made under the same request id.

        `reports_queue`: its messages tell of its place while it waits. Raises GatewayError; then nothing was reserved.
        """
        deadline = Deadline.after(time_left_s)
        principal, ask = current_principal(), ask_from_pb(spec)
        wish = Wish(principal, ask, deadline, uuid7(), reports_queue)
        with self.live.launching():
            return await (self._launch_named(wish) if ask.request_id else self._launch_new(wish))

    async def _launch_named(self, wish: "Wish") -> Served | StoredUsage:
        principal, ask = wish.principal, wish.ask
        found = await self.request_ids.find(principal, ask)
        if found is not None:
            return Served.found(found)
        self.admission.require_open()
        async with self.request_ids.claim(principal, ask) as claim:
            if claim.stored is not None:
                return claim.stored
            served = await self._launch_new(replace(wish, generation_id=claim.row.generation_id))
            assert served.generation is not None, "it is new"
            self.request_ids.started(claim, served.generation)
            return served

    async def _launch_new(self, wish: "Wish") -> Served:
        self.admission.require_open()
        model, prompt_token_ids, demand = await self._size(wish)
        wish.deadline.require_left()
        admitted = await self._admit(wish.principal, demand)
        with self._released_on_failure(admitted):
            wish.deadline.require_left()
            self.admission.require_unchanged(wish.principal)
            request = engine_request(wish, admitted, prompt_token_ids)
            request = self.recorder.accountable(request, wish.principal, wish.ask, admitted)
            job = Job(wish.principal, wish.ask, model, admitted, request, wish.deadline.give_up_at_s)
            generation = self._start(job)
        return Served(generation, generation.transcript, is_replay=False)

    async def forecast(self, spec: pb.GenerationSpec) -> Forecast:
        """Whether `launch` would start a generation now. Raises GatewayError for what has nothing to do with quota."""
        wish = Wish(current_principal(), ask_from_pb(spec), Deadline.after(None), uuid7(), reports_queue=False)
        model, _, demand = await self._size(wish)
        forecast = await self.admission.forecast(wish.principal, demand)
        try:
            stats = await model.engine.stats()
        except NoEngineError:
            return forecast
        return replace(forecast, queue_wait_ns=stats.new_request_wait_ns if stats.num_waiting else 0)

    async def _size(self, wish: "Wish") -> tuple[ServedModel, tuple[int, ...], Demand]:
        """The model, the prompt in its tokens, and what that asks for."""
        ask = wish.ask
        model = self.models.resolve(ask.model, wish.principal.model_grants, "spec.model")
        check_stop_tokens(ask, model.info)
        prompt_token_ids = await encode(ask.prompt, model, "spec")
        demand = Demand(
            generation_id=str(wish.generation_id),
            model=model.info.name,
            priority_class=ask.admission.priority_class,
            num_input_tokens=len(prompt_token_ids),
            max_output_tokens=output_size(ask.stopping.max_output_tokens, len(prompt_token_ids), model.info),
            when_exhausted=ask.admission.when_exhausted,
        )
        return model, prompt_token_ids, demand

    async def _admit(self, principal: Principal, demand: Demand) -> Admitted:
        with inner_span(self.tracer, ADMISSION_SPAN) as span:
            admitted = await self.admission.admit(principal, demand)
            with self._released_on_failure(admitted):
                span.set_attribute(RESERVED_TOKENS, admitted.reserved_tokens)
                span.set_attribute(NUM_LIMITS, len(admitted.limits_left))
            return admitted

    @contextmanager
    def _released_on_failure(self, admitted: Admitted) -> abc.Iterator[None]:
        try:
            yield
        except BaseException:
            self.admission.release(admitted)
            raise

    def _start(self, job: Job) -> Generation:
        rpc = current_rpc()
        if rpc is not None:
            rpc.generation_id = job.generation_id
        span = self.recorder.begin_span(job)
        request_id = rpc.request_id if rpc is not None else ""
        on_end = partial(self.recorder.ended, span, request_id)
        generation, headers = Generation(job, self.sizes, on_end, self.recorder.on_disk), trace_headers(span)
        self.live.add(generation)
        generation.start(headers)
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


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to become a generation of that id."""

    principal: Principal
    ask: GenerationAsk
    deadline: Deadline
    generation_id: UUID
    reports_queue: bool


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


def engine_request(wish: Wish, admitted: Admitted, prompt_token_ids: tuple[int, ...]) -> EngineRequest:
    """What the engine is asked; the seed is drawn here if the caller left it open."""
    ask = wish.ask
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
        deadline_ns=wish.deadline.engine_ns,
        max_queue_wait_ns=min(waits_ns) if waits_ns else None,
        policy_revision=admitted.policy_revision,
        reports_queue=wish.reports_queue,
        granted_output_tokens=None if admitted.slices is None else admitted.slices.num_granted,
    )
