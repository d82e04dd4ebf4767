"""The run that was published with the VTC paper, simulated: Llama-2-7b on an A10G, real clients, measured latencies.

That engine admitted in its own way: steps of prompts only, admission at most every 10 decode steps or when a request
has ended, room kept for the peak that the running requests can still reach (their lengths are known), prompts whole.
One free factor on all costs is set from the makespan under `fcfs`; everything else is the `a10g` line as it is.
Source: Sheng et al. 2024 (OSDI), artifact; the traces' README says how its results were taken over.
"""

import csv
import gzip
from collections import abc
from dataclasses import dataclass, fields
from pathlib import Path

from engine.core.config import AdmissionReserve, SchedulerConfig
from engine.decision_log import PolicyChoice
from engine.sim.cost_lines import A10G, CostLine
from engine.sim.errors import ScenarioError
from engine.sim.run import Setup, simulate
from engine.sim.samples import Samples, percentile
from engine.sim.traffic.formats import open_trace
from engine.sim.traffic.row import NANOS_PER_S, Traffic
from engine.sim.work import work_of

TRACE_FILE = "vtc_arena.csv.gz"
RESULTS_FILE = "vtc_arena_published_results.csv.gz"
POLICIES = ("fcfs", "vtc")
LIGHT_SHARE = 0.02  # of all work; the tenants below it are light
FACTOR_ROUNDS = 3
# A hundredth of a second decides who is admitted together, and the tail of 170 light requests follows from that. So
# figures are medians over costs that differ by half a percent, which is less than any of them is known to.
NEARBY = (0.995, 0.9975, 1.0, 1.0025, 1.005)

CONFIG = SchedulerConfig(
    max_num_seqs=1024,  # no limit: the pool is reached first
    max_num_batched_tokens=3072,
    block_size=1,
    num_device_blocks=10_000,
    max_model_len=3072,
    enable_chunked_prefill=False,
    admission_reserve=AdmissionReserve.PEAK,
    admission_interval=10,
    mix_prefill=False,
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds, but for tokens per second."""

    ttft_p50: float
    ttft_p99: float
    light_ttft_p99: float
    makespan: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One request of the published results."""

    tenant: str
    arrival_s: float
    prompt: int
    output: int
    ttft_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """By policy, what was published and what the simulator says; `factor` is the free one."""

    factor: float
    published: abc.Mapping[str, Figures]
    simulated: abc.Mapping[str, Figures]

    def errors(self) -> dict[str, float]:
        """Relative error of each figure that the claim is about."""
        claimed = [(policy, name) for policy in POLICIES for name in ("ttft_p50", "ttft_p99", "makespan")]
        claimed.append(("vtc", "light_ttft_p99"))
        return {
            f"{policy}_{name}": getattr(self.simulated[policy], name) / getattr(self.published[policy], name) - 1
            for policy, name in claimed
        }

    def worst_error(self) -> float:
        return max(abs(error) for error in self.errors().values())


def compare_with_published(folder: Path, line: CostLine = A10G) -> Comparison:
    """Simulate both policies on the published requests, which lie in `folder`. Raises ScenarioError if they do not."""
    rows = read_results(folder / RESULTS_FILE)
    traffic = open_trace(folder / TRACE_FILE)
    light = light_tenants(rows["fcfs"])
    published = {policy: _published_figures(rows[policy], light) for policy in POLICIES}
    factor = _factor(lambda scale: _simulate("fcfs", traffic, line.scaled(scale), light), published["fcfs"].makespan)
    simulated = {
        policy: _median([_simulate(policy, traffic, line.scaled(factor * near), light) for near in NEARBY])
        for policy in POLICIES
    }
    return Comparison(factor, published, simulated)


def read_results(path: Path) -> dict[str, list[PublishedRow]]:
    """The published rows of served requests, by policy. Raises ScenarioError."""
    rows: dict[str, list[PublishedRow]] = {}
    try:
        with gzip.open(path, "rt", newline="") as file:
            for row in csv.DictReader(file):
                if float(row["first_token_latency_s"]) >= 0:  # else it was rejected
                    rows.setdefault(row["scheduler"], []).append(_row(row))
    except (OSError, KeyError, ValueError) as error:
        raise ScenarioError(f"the published results cannot be read from {path}: {error}") from error
    missing = [policy for policy in POLICIES if policy not in rows]
    if missing:
        raise ScenarioError(f"{path} has no results of {missing[0]}")
    return rows


def light_tenants(rows: abc.Iterable[PublishedRow]) -> frozenset[str]:
    """Tenants with less than `LIGHT_SHARE` of all work."""
    work: dict[str, float] = {}
    for row in rows:
        work[row.tenant] = work.get(row.tenant, 0.0) + work_of(row.prompt, row.output)
    total = sum(work.values())
    return frozenset(tenant for tenant, units in work.items() if units < LIGHT_SHARE * total)


def _row(row: abc.Mapping[str, str]) -> PublishedRow:
    return PublishedRow(
        tenant=row["tenant"],
        arrival_s=float(row["arrival_s"]),
        prompt=int(row["prompt_tokens"]),
        output=int(row["output_tokens"]),
        ttft_s=float(row["first_token_latency_s"]),
        latency_s=float(row["request_latency_s"]),
    )


def _published_figures(rows: abc.Sequence[PublishedRow], light: frozenset[str]) -> Figures:
    makespan = max(row.arrival_s + row.latency_s for row in rows)
    ttfts = [row.ttft_s for row in rows]
    return Figures(
        ttft_p50=percentile(ttfts, 0.5),
        ttft_p99=percentile(ttfts, 0.99),
        light_ttft_p99=percentile([row.ttft_s for row in rows if row.tenant in light], 0.99),
        makespan=makespan,
        tokens_per_s=sum(row.output for row in rows) / makespan,
    )


def _factor(simulated: abc.Callable[[float], Figures], makespan: float) -> float:
    """The factor on all costs with which the makespan is the published one, by secants from 1 and what it suggests.

    Of those tried the one that came closest: a makespan moves in small jumps, as who is admitted together changes.
    """
    first = simulated(1.0).makespan
    tried = [(1.0, first), (factor := makespan / first, simulated(factor).makespan)]
    for _ in range(FACTOR_ROUNDS):
        (before, makespan_before), (last, makespan_last) = tried[-2:]
        if makespan_last == makespan_before:
            break
        slope = (last - before) / (makespan_last - makespan_before)
        factor = min(max(last + slope * (makespan - makespan_last), last / 2), last * 2)
        tried.append((factor, simulated(factor).makespan))
    return min(tried, key=lambda pair: abs(pair[1] - makespan))[0]


def _median(runs: abc.Sequence[Figures]) -> Figures:
    """Figure by figure."""
    return Figures(*(percentile([getattr(run, field.name) for run in runs], 0.5) for field in fields(Figures)))


def _simulate(policy: str, traffic: Traffic, line: CostLine, light: frozenset[str]) -> Figures:
    samples = Samples()
    setup = Setup(CONFIG, line, PolicyChoice(policy, {}), PolicyChoice("never", {}))
    run = simulate(setup, traffic, samples)
    served = [sample for sample in samples.by_id.values() if sample.ttft_s is not None]
    ttfts = [(sample.arrival.tenant.rpartition("/")[2], sample.ttft_s or 0.0) for sample in served]
    makespan = run.ended_at / NANOS_PER_S
    return Figures(
        ttft_p50=percentile([ttft for _, ttft in ttfts], 0.5),
        ttft_p99=percentile([ttft for _, ttft in ttfts], 0.99),
        light_ttft_p99=percentile([ttft for tenant, ttft in ttfts if tenant in light], 0.99),
        makespan=makespan,
        tokens_per_s=samples.num_output_tokens / makespan,
    )
