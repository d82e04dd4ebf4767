"""From a `GenerationSpec` to a running Generation: validate, tokenize, size, admit, start.

From the moment that the quota is reserved to the started task there is no await, so no cancellation can come between
them, and what fails there gives it back; a reservation that is cancelled while it is asked for is the quota backend's
to undo. What may have ended during the awaits before (the caller's time, the key, this gateway) is looked at once more.
"""

from collections import abc
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from opentelemetry import trace
from uuid_utils.compat import uuid7

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.admission import Admission
from gateway.admission_terms import Admitted, Demand, Forecast
from gateway.auth import Principal, current_principal
from gateway.errors import GatewayError, NoEngineError
from gateway.meters import Meters
from gateway.semconv import ADMISSION_SPAN
from gateway.servicer.admission_span import note_admitted, note_refused
from gateway.servicer.ask import GenerationAsk
from gateway.servicer.attachment import Served
from gateway.servicer.deadline import Deadline
from gateway.servicer.grammar import check_tokens
from gateway.servicer.job import Job
from gateway.servicer.journal import JournalSizes
from gateway.servicer.limits_snapshot import tell_limits
from gateway.servicer.live import LiveGenerations
from gateway.servicer.measuring import measured_admission, measured_refusal
from gateway.servicer.prompt import Prompts
from gateway.servicer.record import Recorder
from gateway.servicer.relay import Generation
from gateway.servicer.request_ids import Claim, RequestIds
from gateway.servicer.served_models import ServedModels
from gateway.servicer.sizing import Sized, Wish, engine_request
from gateway.servicer.validation import ask_from_pb
from gateway.store.generations import StoredUsage
from gateway.telemetry import current_rpc, inner_span, trace_headers

Named = Served | Claim | None
"""What is under a request id, or is to be; None: there is no id."""

Held = dict[str, Admitted]
"""Admitted and not started, by generation id."""


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
    meters: Meters = field(default_factory=Meters)

    async def launch(
        self, spec: pb.GenerationSpec, time_left_s: float | None, *, reports_queue: bool = False
    ) -> Served | StoredUsage:
        """A running generation for the current principal, or what an earlier call made under the same request id.

        `reports_queue`: its messages tell of its place while it waits. Raises GatewayError; then nothing was reserved.
        """
        launched = await self.launch_all((spec,), time_left_s, reports_queue=reports_queue)
        return launched if isinstance(launched, StoredUsage) else launched[0]

    async def launch_all(
        self, specs: abc.Sequence[pb.GenerationSpec], time_left_s: float | None, *, reports_queue: bool = False
    ) -> list[Served] | StoredUsage:
        """What `launch` returns for each, in order. All are admitted before one is started; else none is.

        Nor is one where the output of another is gone: that one's usage is returned.
        """
        deadline = Deadline.after(time_left_s)
        principal, asks = current_principal(), [ask_from_pb(spec) for spec in specs]
        with self.live.launching(), self._given_back_on_failure() as held:
            async with AsyncExitStack() as claims:
                named = await self._find_or_claim_all(principal, asks, claims)
                if isinstance(named, StoredUsage):
                    return named
                wishes = {
                    index: Wish(principal, ask, deadline, name.row.generation_id if name else uuid7(), reports_queue)
                    for index, (ask, name) in enumerate(zip(asks, named, strict=True))
                    if not isinstance(name, Served)
                }
                sized = await self._size_all(wishes)
                await self._require_together(principal, [each.demand for each in sized.values()])
                jobs = {index: await self._prepare(each, held) for index, each in sized.items()}
                if jobs:
                    deadline.require_left()
                    self.admission.require_unchanged(principal)
                return self._start_all(named, jobs, held)

    async def _find_or_claim_all(
        self, principal: Principal, asks: abc.Sequence[GenerationAsk], claims: AsyncExitStack
    ) -> list[Named] | StoredUsage:
        named: list[Named] = []
        for ask in asks:
            name = await self._find_or_claim(principal, ask, claims)
            if isinstance(name, StoredUsage):
                return name
            named.append(name)
        return named

    async def _find_or_claim(
        self, principal: Principal, ask: GenerationAsk, claims: AsyncExitStack
    ) -> Named | StoredUsage:
        """What the request id stands for, or the claim on it; None where the request has none."""
        if not ask.request_id:
            return None
        found = await self.request_ids.find(principal, ask)
        if found is not None:
            return Served.found(found)
        self.admission.require_open()
        claim = await claims.enter_async_context(self.request_ids.claim(principal, ask))
        return claim if claim.stored is None else claim.stored

    async def _size_all(self, wishes: abc.Mapping[int, Wish]) -> dict[int, Sized]:
        prompts, sized = Prompts(), {}
        for index, wish in wishes.items():
            self.admission.require_open()
            with self.meters.stage("tokenize"):
                sized[index] = await self._size(wish, prompts)
        return sized

    async def _require_together(self, principal: Principal, demands: abc.Sequence[Demand]) -> None:
        """Where there are several, none is reserved unless all could be, so that the caller is told how long all wait.

        What comes between this look and the reservations is seen by those.
        """
        if len(demands) > 1:
            with measured_refusal(self.meters, principal), self._refusals_told(principal, demands[0]):
                await self.admission.require_together(principal, demands)

    async def _prepare(self, sized: Sized, held: Held) -> Job:
        """Everything but the start; the quota is in `held`."""
        wish = sized.wish
        wish.deadline.require_left()
        admitting = self._admit(wish.principal, sized.demand, held)
        admitted = await measured_admission(self.meters, wish.principal, admitting)
        request = engine_request(sized, admitted)
        request = self.recorder.accountable(request, wish.principal, wish.ask, admitted)
        return Job(wish.principal, wish.ask, sized.model, admitted, request, wish.deadline.give_up_at_s)

    def _start_all(self, named: abc.Sequence[Named], jobs: abc.Mapping[int, Job], held: Held) -> list[Served]:
        """Each is started, or was before. If one cannot be, those started before it are told to end."""
        launched: list[Served] = []
        try:
            for index, name in enumerate(named):
                launched.append(self._start_under(name, jobs.get(index), held))
        except BaseException:
            for served in launched:
                served.abandon()
            raise
        return launched

    def _start_under(self, name: Named, job: Job | None, held: Held) -> Served:
        if isinstance(name, Served):
            return name
        assert job is not None, "what was not found is new"
        generation = self._start(job)
        del held[job.generation_id]
        if name is not None:
            self.request_ids.started(name, generation)
        return Served(generation, generation.transcript, is_replay=False)

    async def forecast(self, spec: pb.GenerationSpec) -> Forecast:
        """Whether `launch` would start a generation now. Raises GatewayError for what has nothing to do with quota."""
        wish = Wish(current_principal(), ask_from_pb(spec), Deadline.after(None), uuid7(), reports_queue=False)
        sized = await self._size(wish, Prompts())
        forecast = await self.admission.forecast(wish.principal, sized.demand)
        try:
            stats = await sized.model.engine.stats()
        except NoEngineError:
            return forecast
        return replace(forecast, queue_wait_ns=stats.new_request_wait_ns if stats.requests.num_waiting else 0)

    async def _size(self, wish: Wish, prompts: Prompts) -> Sized:
        ask = wish.ask
        model = self.models.resolve(ask.model, wish.principal.model_grants, "spec.model")
        check_tokens(ask, model.info)
        return Sized.of(wish, model, await prompts.encode(ask.prompt, model, "spec"))

    async def _admit(self, principal: Principal, demand: Demand, held: Held) -> Admitted:
        with self._refusals_told(principal, demand) as span:
            admitted = held[demand.generation_id] = await self.admission.admit(principal, demand)
            note_admitted(span, admitted)
            return admitted

    @contextmanager
    def _refusals_told(self, principal: Principal, demand: Demand) -> abc.Iterator[trace.Span]:
        """The span of an admission. Of what is refused there, it and the caller are told what is left of the limits."""
        with inner_span(self.tracer, ADMISSION_SPAN) as span:
            try:
                yield span
            except GatewayError as error:
                if error.quota_violations:
                    # What is left may have no answer now; the refusal has one.
                    with suppress(GatewayError):
                        tell_limits(self.admission.limits_left(principal, demand))
                note_refused(span, error)
                raise

    @contextmanager
    def _given_back_on_failure(self) -> abc.Iterator[Held]:
        """What has not been started when the block fails holds nothing any more."""
        held: Held = {}
        try:
            yield held
        except BaseException:
            for admitted in held.values():
                self.admission.release(admitted)
            raise

    def _start(self, job: Job) -> Generation:
        # What was least busy when the prompt was sized may have been given all that came at the same time.
        job = replace(job, model=self.models.least_busy(job.model))
        rpc = current_rpc()
        if rpc is not None:
            rpc.generation_id = job.generation_id
        told = self.recorder.begin_span(job)
        request_id = rpc.request_id if rpc is not None else ""
        on_end, headers = partial(self.recorder.ended, told, request_id), trace_headers(told.span)
        generation = Generation(job, self.sizes, on_end, self.recorder.on_disk, told.watched)
        if rpc is not None:
            generation.progress.arrived_s = rpc.arrived_s
        generation.start(headers)
        self.live.add(generation)
        return generation
