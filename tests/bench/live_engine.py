"""The engine of the product in this process: its loop on a thread of its own, the default model, prices measured at the
start. Requests are made of random token ids, nothing but their length ends them, and each is sent when its time has
come, whatever became of those before it. Moments are those of the engine's clock, `time.monotonic_ns`.
"""

import heapq
import math
import random
import time
from collections import abc
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from engine.core.config import SchedulerConfig
from engine.core.costs import OUTPUT_COST, PREFILL_COST
from engine.core.events import Finished, Preempted, TokensEmitted, Usage
from engine.core.plan import StepOutput, StepPlan
from engine.core.scheduler import Scheduler
from engine.core.stats import SchedulerStats, TenantStats
from engine.core.types import FinishReason, Nanos, PathNode, Request, SamplingParams
from engine.loop import EngineLoop, Runner
from engine.loop_messages import Abort, Delivery, LoopStats, ReadStats, Refused, Stop, Submit, Update
from engine.plugins import load_preemption_policy, load_scheduling_policy
from engine.server.backend import Backend, load_backend
from engine.settings import read_settings

POLL_S, NANOS_PER_S = 0.01, 1e9
VICTIMS = {"fair": "over_served"}  # other policies lose the latest arrival


@dataclass(frozen=True, slots=True)
class Job:
    """A request that is sent `at_s` after the start. Without `token_ids` its prompt's tokens are random, but for the
    first ones, which are `beginning`."""

    at_s: float
    tenant: str
    prompt: int
    output: int
    token_ids: tuple[int, ...] = ()
    beginning: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Call:
    """One request's way through the engine; latencies run from the moment when it was due."""

    job: Job
    generation_id: str
    due_ns: int
    left: dict[str, int]
    sent_ns: int = 0
    token_ns: list[int] = field(default_factory=list)
    ended_ns: int | None = None
    usage: Usage | None = None
    num_pauses: int = 0

    def put(self, update: Update, at: Nanos) -> None:
        if isinstance(update, TokensEmitted):
            self.token_ns += [at] * len(update.token_ids)
        elif isinstance(update, Preempted):
            self.num_pauses += 1
        elif isinstance(update, Finished):
            self.ended_ns, self.usage = at, update.usage
            self.left[self.job.tenant] -= 1
        elif isinstance(update, Refused):
            raise RuntimeError(f"the bench sent a request that is refused: {update.error}")

    @property
    def ttft_s(self) -> float:
        return (self.token_ns[0] - self.due_ns) / NANOS_PER_S

    @property
    def e2e_s(self) -> float:
        return (self.token_ns[-1] - self.due_ns) / NANOS_PER_S

    @property
    def tpot_s(self) -> float:
        return (self.token_ns[-1] - self.token_ns[0]) / (len(self.token_ns) - 1) / NANOS_PER_S

    @property
    def is_complete(self) -> bool:
        return len(self.token_ns) == self.job.output


@dataclass(frozen=True, slots=True)
class Step:
    """What the runner computed and how long it took. `num_copied` blocks began to move beside it."""

    began_ns: int
    ended_ns: int
    num_decodes: int
    num_chunks: int
    num_chunk_tokens: int
    num_copied: int

    @property
    def ms(self) -> float:
        return (self.ended_ns - self.began_ns) / 1e6


@dataclass(slots=True)
class Run:
    """One load served. `over_ns` is when sending ended, `stats` what the scheduler said then."""

    began_ns: int
    calls: list[Call] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)
    over_ns: int = 0
    stats: SchedulerStats | None = None
    client_cpu_s: float = 0.0
    clock: abc.Callable[[], int] = time.monotonic_ns

    @property
    def seconds(self) -> float:
        return (self.over_ns - self.began_ns) / NANOS_PER_S

    @property
    def elapsed_s(self) -> float:
        return (self.clock() - self.began_ns) / NANOS_PER_S

    def of(self, tenant: str) -> list[Call]:
        return [call for call in self.calls if call.job.tenant == tenant]

    def tenant(self, tenant: str) -> TenantStats:
        assert self.stats is not None
        return next(each for each in self.stats.tenants if each.path[-1].id == tenant)

    def work(self, tenant: str) -> float:
        """What the tenant was served until the run was over, as the policies count by default."""
        stats = self.tenant(tenant)
        return PREFILL_COST * stats.num_prefill_tokens + OUTPUT_COST * stats.num_output_tokens

    def late_ms(self) -> float:
        """By how much requests were sent after their time, p99."""
        return percentile([(call.sent_ns - call.due_ns) / 1e6 for call in self.calls], 0.99)

    def busy_steps(self) -> list[Step]:
        """Those with a decode or a chunk, until the run was over."""
        return [s for s in self.steps if s.ended_ns <= self.over_ns and s.num_decodes + s.num_chunks]


class WatchedRunner:
    """A runner whose steps are noted."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.steps: list[Step] = []

    def execute(self, plan: StepPlan) -> StepOutput:
        began_ns = time.monotonic_ns()
        output = self._runner.execute(plan)
        ended_ns = time.monotonic_ns()
        chunks = plan.num_tokens[(num_decodes := plan.num_tokens.count(1)) :]
        num_copied = sum(len(copy.device_block_ids) for copy in plan.copies)
        self.steps.append(Step(began_ns, ended_ns, num_decodes, len(chunks), sum(chunks), num_copied))
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


class Answer:
    """The outlet of one question."""

    def __init__(self) -> None:
        self.future: Future[tuple[LoopStats, Nanos]] = Future()

    def put(self, update: Update, at: Nanos) -> None:
        assert isinstance(update, LoopStats)
        self.future.set_result((update, at))


class LiveEngine:
    """One model and pool, loaded as `evenflow engine` does with these settings; serves one load after the other."""

    def __init__(self, **settings: object) -> None:
        # The number of threads that torch computes with is one of the thread that loads, so that one must compute too.
        self._thread = ThreadPoolExecutor(1, "engine")
        read = read_settings({"listen": "127.0.0.1:0"} | settings)  # nobody listens
        self.backend: Backend = self._thread.submit(load_backend, read, lambda part: None).result()
        self._num_threads = self._thread.submit(torch.get_num_threads).result()
        self._num_requests = 0

    @property
    def config(self) -> SchedulerConfig:
        return self.backend.config

    def describe(self) -> dict[str, object]:
        """What of the engine belongs beside the figures."""
        config = self.config
        return {
            "model": self.backend.model.name,
            "dtype": self.backend.model.dtype,
            "threads": self._num_threads,
            "pool_tokens": config.num_device_blocks * config.block_size,
            "host_tokens": config.num_host_blocks * config.block_size,
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "max_num_seqs": config.max_num_seqs,
        }

    def serve(
        self,
        jobs: abc.Iterable[Job],
        is_over: abc.Callable[[Run], bool],
        *,
        policy: str = "fair",
        waits_for: abc.Collection[str] = (),
        seed: int = 0,
        **limits: object,
    ) -> Run:
        """Send `jobs`, which are in order of time, until the run is over; those of the tenants in `waits_for` that were
        sent are served to their end, what else is unfinished then is cancelled. `limits` are of SchedulerConfig."""
        config = replace(self.config, **limits)  # type: ignore[arg-type]
        victims = load_preemption_policy(VICTIMS.get(policy, "latest_arrival"), {})
        scheduler = Scheduler(config, load_scheduling_policy(policy, {}), victims)
        runner = WatchedRunner(self.backend.runner)
        loop = EngineLoop(scheduler, runner, _deliver, calibrator=self.backend.calibrator)
        ended = self._thread.submit(loop.run)
        run, cpu_s = Run(time.monotonic_ns(), steps=runner.steps), time.thread_time()
        self._send(loop, run, jobs, is_over, ended, seed)
        run.stats, run.over_ns = self._ask(loop, ended)
        _wait(lambda: not any(run.left.get(tenant) for tenant in waits_for), ended)
        run.client_cpu_s = time.thread_time() - cpu_s
        for call in run.calls:
            loop.submit(Abort(call, call.generation_id, FinishReason.CANCELLED))
        _wait(lambda: not any(run.left.values()) and not scheduler.num_copies_in_flight, ended)
        loop.submit(Stop())
        ended.result()
        if scheduler.policy_fault is not None:
            raise RuntimeError(scheduler.policy_fault)
        return run

    def _send(
        self,
        loop: EngineLoop,
        run: Run,
        jobs: abc.Iterable[Job],
        is_over: abc.Callable[[Run], bool],
        ended: "Future[None]",
        seed: int,
    ) -> None:
        rng = random.Random(seed)
        for job in jobs:
            request = self._request(job, rng)  # made before its time: it is not to be late for it
            due_ns = run.began_ns + round(job.at_s * NANOS_PER_S)
            while (wait_s := (due_ns - time.monotonic_ns()) / NANOS_PER_S) > 0:
                if is_over(run) or ended.done():
                    return
                time.sleep(min(wait_s, POLL_S))
            call = Call(job, request.generation_id, due_ns, run.left, time.monotonic_ns())
            run.left[job.tenant] = run.left.get(job.tenant, 0) + 1
            run.calls.append(call)
            loop.submit(Submit(call, replace(request, arrived_at=loop.now())))
        _wait(lambda: is_over(run), ended)

    def _request(self, job: Job, rng: random.Random) -> Request:
        self._num_requests += 1
        size, num_drawn = self.backend.model.vocabulary_size, job.prompt - len(job.beginning)
        return Request(
            generation_id=f"{job.tenant}-{self._num_requests}",
            path=(PathNode("bench", 1.0), PathNode(job.tenant, 1.0)),
            prompt_token_ids=job.token_ids
            or job.beginning + tuple(rng.randrange(1000, size) for _ in range(num_drawn)),
            max_output_tokens=job.output,
            arrived_at=Nanos(0),
            sampling=SamplingParams(temperature=0.0),
        )

    def _ask(self, loop: EngineLoop, ended: "Future[None]") -> tuple[SchedulerStats, int]:
        loop.submit(ReadStats(answer := Answer()))
        _wait(answer.future.done, ended)
        stats, at = answer.future.result()
        return stats.scheduler, at


def merge(*loads: abc.Iterable[Job]) -> abc.Iterator[Job]:
    """Loads that are each in order of time, as one."""
    return heapq.merge(*loads, key=lambda job: job.at_s)


def percentile(values: abc.Iterable[float], share: float) -> float:
    """Nearest-rank percentile; NaN of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def _deliver(batch: list[Delivery]) -> None:
    for delivery in batch:
        delivery.outlet.put(delivery.update, delivery.at)


def _wait(is_done: abc.Callable[[], bool], ended: "Future[None]") -> None:
    """Until `is_done`. Raises what the engine's thread raised."""
    while not is_done():
        if ended.done():
            ended.result()
            raise RuntimeError("the engine has stopped")
        time.sleep(POLL_S)
