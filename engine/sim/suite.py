"""The scenarios S1-S12, as far as they can be simulated: the same traffic under several policies, and its pass lines.

A scenario knows its traffic and what it promises; a `Bench` runs it and, where a promise compares with them, the same
traffic under `fcfs`, the light tenant alone, or an engine that reserves whole requests.
"""

from collections import abc
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from engine.core.config import AdmissionReserve, SchedulerConfig
from engine.core.types import Nanos
from engine.decision_log import PolicyChoice
from engine.sim.capacity import capacity
from engine.sim.cost_lines import CPU, CostLine
from engine.sim.requests import NO_RECORDS, Tenancy
from engine.sim.run import Run, Setup, policy_label, simulate
from engine.sim.samples import Samples, percentile, ttfts_s
from engine.sim.traffic.generate import generate, parse_generator
from engine.sim.traffic.reshape import merge_traces
from engine.sim.traffic.row import NANOS_PER_S, Arrival
from engine.sim.traffic.trace import Trace
from engine.sim.work import work_of
from engine.sim.world import Outage

# The reference engine of the scenarios' model: 16 rows, 256 tokens a step, 8,192 tokens of KV, as much on the host.
REFERENCE = SchedulerConfig(
    max_num_seqs=16,
    max_num_batched_tokens=256,
    block_size=16,
    num_device_blocks=512,
    max_model_len=8192,
    num_host_blocks=512,
)
C_PROMPT, C_OUTPUT = 128, 64  # the requests that C is measured with
FCFS = PolicyChoice("fcfs", {})
FAIR = PolicyChoice("fair", {})
OVER_SERVED = PolicyChoice("over_served", {})
UNCHANGED: abc.Mapping[str, Any] = MappingProxyType({})  # settings of any type, by name


@dataclass(frozen=True, slots=True)
class Check:
    """One promise: `value` of what `name` says is at most `line`, or at least, if not `is_upper`. NaN is a miss."""

    name: str
    value: float
    line: float
    is_upper: bool = True

    @property
    def passed(self) -> bool:
        return self.value <= self.line if self.is_upper else self.value >= self.line


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one policy did in one scenario."""

    scenario: str
    policy: str
    checks: tuple[Check, ...]
    policy_faults: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks) and not self.policy_faults


@dataclass(frozen=True, slots=True)
class Options:
    """What the suite runs with. `traces` is where the real ones lie; `scale` shortens every scenario."""

    policies: tuple[PolicyChoice, ...] = (FAIR, FCFS)
    preemption: PolicyChoice = OVER_SERVED
    config: SchedulerConfig = REFERENCE
    line: CostLine = CPU
    seed: int = 0
    scale: float = 1.0
    traces: Path | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """One run of a scenario, `end_s` seconds long."""

    samples: Samples
    run: Run
    end_s: float

    def ttft_p99(self, *tenants: str, since_s: float = 0.0) -> float:
        return percentile(ttfts_s(self.samples.of(*tenants, since_s=since_s), self.end_s), 0.99)

    def ttft_p50(self, *tenants: str, since_s: float = 0.0) -> float:
        return percentile(ttfts_s(self.samples.of(*tenants, since_s=since_s), self.end_s), 0.5)

    def work_per_s(self, *tenants: str, since_s: float = 0.0) -> float:
        names = tenants or tuple(self.samples.served)
        return sum(self.samples.work(name, since_s, self.end_s) for name in names) / (self.end_s - since_s)


@dataclass(slots=True)
class Bench:
    """Runs scenarios with one set of options, and remembers runs that several policies are compared with."""

    options: Options
    work_per_s: float = 0.0
    _remembered: dict[str, Result] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.work_per_s = capacity(self.setup(FCFS), C_PROMPT, C_OUTPUT)

    def setup(
        self, policy: PolicyChoice, config: abc.Mapping[str, Any] = UNCHANGED, tenancy: Tenancy = NO_RECORDS
    ) -> Setup:
        """The options with some of the engine's settings changed."""
        settings = replace(self.options.config, **config)
        return Setup(settings, self.options.line, policy, self.options.preemption, tenancy=tenancy)

    def seconds(self, full: float) -> float:
        """A length of the scenario at the scale asked for."""
        return full * self.options.scale

    def rate(self, share: float, prompt: int, output: int) -> float:
        """Requests per second of these lengths that ask for `share` of C."""
        return share * self.work_per_s / work_of(prompt, output)

    def poisson(self, tenant: str, share: float, prompt: int, output: int, **words: object) -> Trace:
        """Traffic of one tenant at `share` of C, lengths uniform within a quarter; `words` are the generator's."""
        settings: dict[str, object] = {
            "org": "suite",
            "tenant": tenant,
            "rate": f"{self.rate(share, prompt, output):.9g}",
            "prompt": _around(prompt),
            "output": _around(output),
            **words,
        }
        if "/" in tenant or "tenants" in words:
            settings.pop("tenant")
        text = ",".join(f"{name}={value}" for name, value in settings.items())
        return generate(parse_generator(text, self.options.seed))

    def run(
        self,
        setup: Setup,
        traffic: abc.Iterable[Arrival],
        until_s: float | None = None,
        outages: abc.Iterable[Outage] = (),
    ) -> Result:
        """One run, to its end or for so long."""
        samples = Samples()
        until = None if until_s is None else Nanos(round(until_s * NANOS_PER_S))
        run = simulate(setup, traffic, samples, until=until, outages=outages)
        return Result(samples, run, run.ended_at / NANOS_PER_S)

    def remembered(self, name: str, make: abc.Callable[[], Result]) -> Result:
        """The run of that name, made when it is first asked for."""
        if name not in self._remembered:
            self._remembered[name] = make()
        return self._remembered[name]


@dataclass(frozen=True, slots=True)
class Judged:
    """The checks of one run."""

    run: Run
    checks: tuple[Check, ...]


class Scenario:
    """A name, a title, and `judge`, which runs one policy and checks what it must keep."""

    def __init__(self, name: str, title: str, judge: abc.Callable[[Bench, PolicyChoice], Judged]) -> None:
        self.name = name
        self.title = title
        self._judge = judge

    def verdict(self, bench: Bench, policy: PolicyChoice) -> Verdict:
        """What `policy` did."""
        judged = self._judge(bench, policy)
        return Verdict(self.name, policy_label(policy), judged.checks, judged.run.policy_faults)


def merged(*traces: Trace) -> Trace:
    """All of them on one clock."""
    return merge_traces(traces)


def isolation_line(solo_s: float, step_p99_s: float) -> float:
    """The longest p99 of a time to first token that counts as isolated: nobody is served before a running step ends."""
    return max(1.5 * solo_s, solo_s + 2 * step_p99_s)


def without_eviction(bench: Bench, policy: PolicyChoice, config: abc.Mapping[str, Any]) -> Setup:
    """The same engine, with whole requests reserved at admission."""
    return bench.setup(policy, {**config, "admission_reserve": AdmissionReserve.WHOLE})


def _around(length: int) -> str:
    return f"uniform:{length - length // 4}:{length + length // 4}"
