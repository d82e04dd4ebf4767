"""What is measured while the gateway works: calls, generations, stages of the way to the engine, by Prometheus's types.

One object per process, made by the composition root. What can be read off the parts at a scrape is not here but in
`gateway.metrics`. Recording never waits and never fails; nothing is recorded per token.
"""

import time
from collections import abc
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import Metric

from gateway import metric_names as names
from gateway.tenant_labels import MAX_TENANTS, TenantLabels

PROVIDER = "evenflow"
CREATED_SUFFIX = "_created"  # a sample that the library adds, and that would be half of all series
MAX_NAMES = 20
"""Models and priority classes that have a label: operators make them, and few."""

# Sources: OpenTelemetry's semantic conventions, GenAI v0.1.0 (server metrics), RPC and HTTP; of the first token the
# last three are Envoy AI Gateway's.
CALL_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
DURATION_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
    *(20, 40, 60),
)
OUTPUT_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
OVERHEAD_BUCKETS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1)
WAIT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
TENANT_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)  # a hundred times as many series as the others have
PROPAGATION_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10)


@dataclass(frozen=True, slots=True)
class Ended:
    """A generation that the engine was asked for, at its end. Times are on the monotonic clock.

    outcome      the reason of its end, in the words of the public protocol
    reason       of the error that its caller is told; empty: none
    queue_s      from its arrival at the engine to its first step, or to its end; None: the engine did not say
    """

    operation: str
    model: str
    tenant: str
    priority_class: str
    outcome: str
    reason: str
    is_scheduled: bool
    arrived_s: float
    first_token_s: float | None
    ended_s: float
    queue_s: float | None
    tokens: abc.Mapping[str, int]
    num_output_tokens: int
    num_reader_holds: int


class Meters:
    """Written on the event loop; read on any thread."""

    def __init__(self, max_tenants: int = MAX_TENANTS, clock: abc.Callable[[], float] = time.monotonic) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._names: dict[str, TenantLabels] = {kind: TenantLabels(MAX_NAMES) for kind in ("model", "class")}
        self.tenants = TenantLabels(max_tenants, on_gone=self._forget, clock=clock)
        self._make_call_meters()
        self._make_generation_meters()
        self._make_tenant_meters()

    def families(self) -> list[Metric]:
        """Everything so far."""
        return [without_created(family) for family in self._registry.collect()]

    def rpc_ended(self, method: str, code: str, duration_s: float) -> None:
        """`method` is `package.Service/Method`, one that is served; `code` the name of its status."""
        self._rpc.labels(method, code).observe(duration_s)

    def http_ended(self, verb: str, route: str, status: int, error_type: str, duration_s: float) -> None:
        """`route` is a pattern of the router's, `verb` one that it knows; `error_type` is empty if nothing failed."""
        self._http.labels(verb, route, str(status), error_type).observe(duration_s)

    def authenticated(self, result: str) -> None:
        """ "hit", "miss", "refused" or "unavailable"."""
        self._auth.labels(result).inc()

    def admitted(self, outcome: str, reason: str, tenant: str) -> None:
        """`outcome` is "admitted", "best_effort" or "refused", `reason` the refusal's."""
        self._admissions.labels(outcome, reason, self.tenants.label(tenant)).inc()

    def propagated(self, delay_s: float) -> None:
        """A change of the tenancy governs here, so long after it was made."""
        self._propagation.observe(max(0.0, delay_s))

    @contextmanager
    def stage(self, name: str) -> abc.Iterator[None]:
        """The block is a stage of a request's way through the gateway, whether or not it is refused there."""
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self._overhead.labels(name).observe(time.perf_counter() - began_s)

    def ended(self, ended: Ended) -> None:
        """A generation has ended."""
        tenant, duration_s = self.tenants.label(ended.tenant), ended.ended_s - ended.arrived_s
        model, named = self._names["model"].label(ended.model), self._names["class"].label(ended.priority_class)
        common = ended.operation, PROVIDER, model, model
        self._duration.labels(*common, ended.reason).observe(duration_s)
        self._requests.labels(ended.outcome, ended.reason, named, tenant).inc()
        if ended.first_token_s is not None:
            first_token_s = ended.first_token_s - ended.arrived_s
            self._first_token.labels(*common).observe(first_token_s)
            self._tenant_first_token.labels(tenant).observe(first_token_s)
            if not ended.reason and ended.num_output_tokens > 1:
                self._output_token.labels(*common).observe((duration_s - first_token_s) / (ended.num_output_tokens - 1))
        if ended.queue_s is not None:
            self._queue_wait.labels(named, "scheduled" if ended.is_scheduled else ended.outcome).observe(ended.queue_s)
            self._tenant_queue_wait.labels(tenant).observe(ended.queue_s)
        for kind, number in ended.tokens.items():
            self._tokens.labels(kind, tenant).inc(number)
        self._slow_readers.inc(ended.num_reader_holds)

    def _make_call_meters(self) -> None:
        self._rpc = self._histogram(
            names.METRIC_RPC_DURATION,
            "Calls over gRPC, streams from their first to their last message.",
            ("rpc_method", "rpc_response_status_code"),
            CALL_BUCKETS,
        )
        self._http = self._histogram(
            names.METRIC_HTTP_DURATION,
            "Requests over HTTP, streams to their last event.",
            ("http_request_method", "http_route", "http_response_status_code", "error_type"),
            CALL_BUCKETS,
        )
        self._overhead = self._histogram(
            names.METRIC_OVERHEAD, "Time that a stage of the gateway took.", ("stage",), OVERHEAD_BUCKETS
        )
        self._auth = self._counter(names.METRIC_AUTH_CACHE, "Credentials checked, by result.", ("result",))
        self._propagation = self._histogram(
            names.METRIC_POLICY_PROPAGATION,
            "From a change of the tenancy to the moment from which it governs here.",
            (),
            PROPAGATION_BUCKETS,
        )

    def _make_generation_meters(self) -> None:
        common = "gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "gen_ai_response_model"
        self._duration = self._histogram(
            names.METRIC_GEN_AI_DURATION,
            "Generations, from the call's arrival to the last token.",
            (*common, "error_type"),
            DURATION_BUCKETS,
        )
        self._first_token = self._histogram(
            names.METRIC_GEN_AI_TTFT, "From the call's arrival to the first token.", common, FIRST_TOKEN_BUCKETS
        )
        self._output_token = self._histogram(
            names.METRIC_GEN_AI_TPOT,
            "Time of each token after the first, of generations without an error.",
            common,
            OUTPUT_TOKEN_BUCKETS,
        )
        self._queue_wait = self._histogram(
            names.METRIC_QUEUE_WAIT,
            "From arrival at the engine to the first step, or to the end if there was none.",
            ("priority_class", "outcome"),
            WAIT_BUCKETS,
        )
        self._slow_readers = self._counter(
            names.METRIC_SLOW_READERS, "Times that an ended generation was held because nobody read its output.", ()
        )

    def _make_tenant_meters(self) -> None:
        self._requests = self._counter(
            names.METRIC_REQUESTS,
            "Generations that have ended.",
            ("outcome", "reason", "priority_class", "tenant"),
        )
        self._admissions = self._counter(
            names.METRIC_ADMISSIONS, "What the door answered to requests.", ("outcome", "reason", "tenant")
        )
        self._tokens = self._counter(
            names.METRIC_TOKENS, "Tokens of ended generations, as they are billed.", ("kind", "tenant")
        )
        self._tenant_first_token = self._histogram(
            names.METRIC_TENANT_TTFT, "Time to first token by tenant.", ("tenant",), TENANT_BUCKETS
        )
        self._tenant_queue_wait = self._histogram(
            names.METRIC_TENANT_QUEUE_WAIT, "Wait for the first step by tenant.", ("tenant",), TENANT_BUCKETS
        )

    def _forget(self, tenant: str) -> None:
        of_tenants: tuple[Counter | Histogram, ...] = (
            *(self._requests, self._admissions, self._tokens),
            *(self._tenant_first_token, self._tenant_queue_wait),
        )
        for meter in of_tenants:
            meter.remove_by_labels({"tenant": tenant})

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(name, text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self._registry)


def without_created(family: Metric) -> Metric:
    """`family`, as it was made for this scrape, without the time at which each series began."""
    family.samples = [sample for sample in family.samples if not sample.name.endswith(CREATED_SUFFIX)]
    return family
