"""S8 and S10 to S12: a storm of cancels, thousands of tenants, the real traces, and an engine that is lost.

S7 needs a prefix cache, S9 the gateway's quotas: they are measured live.
"""

from dataclasses import replace
from pathlib import Path

from engine.core.types import FinishReason, Nanos
from engine.decision_log import PolicyChoice
from engine.sim.capacity import capacity
from engine.sim.cost_lines import A10G
from engine.sim.errors import ScenarioError
from engine.sim.published import PublishedRow, light_tenants
from engine.sim.requests import Tenancy
from engine.sim.samples import percentile, ttfts_s
from engine.sim.suite import FCFS, Bench, Check, Judged, Options, Result, Scenario, merged
from engine.sim.traffic.reshape import Shape, load_of, reshape, stretch_for_load
from engine.sim.traffic.row import NANOS_PER_S
from engine.sim.traffic.source import TrafficSource, open_traffic
from engine.sim.traffic.trace import Trace
from engine.sim.world import Outage

# What the real traces run on: long contexts, and a pool that holds 16 of the usual ones.
TRACE_LIMITS = {
    "max_num_seqs": 64,
    "max_num_batched_tokens": 2048,
    "num_device_blocks": 4096,
    "num_host_blocks": 4096,
    "max_model_len": 65_536,
}


def cancel_storm(bench: Bench, policy: PolicyChoice) -> Judged:
    """1.0 C of 128/128; half of one tenant's clients give up within two seconds."""
    warm_up, end = bench.seconds(60.0), bench.seconds(240.0)
    calm = bench.poisson("calm", 0.5, 128, 128, seconds=end, seed=1)

    def traffic(share: float) -> Trace:
        storm = bench.poisson("storm", 0.5, 128, 128, seconds=end, seed=2, cancel=f"{share}:1.5")
        return merged(calm, storm)

    result = bench.run(bench.setup(policy), traffic(0.5))
    quiet = bench.remembered(f"S8 quiet {policy}", lambda: bench.run(bench.setup(policy), traffic(0.0)))
    ratio = result.ttft_p99("suite/calm", since_s=warm_up) / quiet.ttft_p99("suite/calm", since_s=warm_up)
    open_requests = sum(sample.ended_at is None for sample in result.samples.by_id.values())
    return Judged(
        result.run,
        (
            Check("TTFT p99 of the others over no cancels", ratio, 1.1),
            Check("requests without an end", open_requests, 0.0),
        ),
    )


def many_tenants(num_tenants: int, bench: Bench, policy: PolicyChoice) -> Judged:
    """So many tenants of Zipf popularity, 1.3 C of 128/64 together: how long rare ones wait."""
    end = bench.seconds(240.0)
    traffic = bench.poisson("", 1.3, 128, 64, seconds=end, tenants=num_tenants, zipf=1)
    result = bench.run(bench.setup(policy), traffic, end)
    first = bench.remembered(f"S10 {num_tenants}", lambda: bench.run(bench.setup(FCFS), traffic, end))
    ratio = _light_p99(result) / _light_p99(first)
    return Judged(result.run, (Check("TTFT p99 of one-request tenants over fcfs", ratio, 0.5),))


def replica_loss(bench: Bench, policy: PolicyChoice) -> Judged:
    """Two engines, three tenants of weight 1, 2 and 4 at 1.2 C of both; one drains from 60 to 90 s, the other one is
    killed at 120 s and back at 150 s."""
    end = bench.seconds(240.0)
    weight = {"suite/one": 1.0, "suite/two": 2.0, "suite/four": 4.0}
    names = [name.rpartition("/")[2] for name in weight]
    traffic = merged(*(bench.poisson(name, 1.6, 128, 64, seconds=end, seed=seed) for seed, name in enumerate(names)))
    setup = replace(bench.setup(policy, tenancy=Tenancy(weight)), num_engines=2)
    drain, kill = (
        Outage(engine, _nanos(bench.seconds(at)), _nanos(bench.seconds(at + 30.0)), is_kill=is_kill)
        for engine, at, is_kill in ((0, 60.0, False), (1, 120.0, True))
    )
    result = bench.run(setup, traffic, end, outages=(drain, kill))
    samples = result.samples.by_id.values()
    lost = sum(sample.reason is FinishReason.ERROR and sample.first_token_at is None for sample in samples)
    work = {name: result.samples.work(name, bench.seconds(160.0), end) for name in weight}
    served, total = sum(work.values()), sum(weight.values())
    error = max(abs(work[name] / served * total / units - 1) for name, units in weight.items())
    return Judged(
        result.run,
        (
            Check("lost before their first token", lost, 0.0),
            Check("share error from 10 s after it is back", error, 0.05),
        ),
    )


def azure(bench: Bench, policy: PolicyChoice) -> Judged:
    """Azure's chat and code services as two tenants, at 0.95 C, full lengths."""
    result, first = _trace_runs(bench, policy, TrafficSource(("azure2023_conv", "azure2023_code")), 0.95)
    conv = next(name for name in first.samples.served if name.endswith("/conv"))
    gain = first.ttft_p99(conv) / result.ttft_p99(conv)
    kept = first.end_s / result.end_s
    return Judged(
        result.run,
        (
            Check("chat's TTFT p99 under fcfs over this", gain, 10.0, is_upper=False),
            Check("tokens/s over fcfs", kept, 0.98, is_upper=False),
        ),
    )


def arena(bench: Bench, policy: PolicyChoice) -> Judged:
    """The VTC arena's 27 clients at the recorded rate, on the line of its A10G: a pool of 10,000 tokens."""
    setup = replace(bench.setup(policy, {**TRACE_LIMITS, "num_device_blocks": 625}), line=A10G)
    traffic = open_traffic(TrafficSource(("vtc_arena",)), _folder(bench.options))
    result = bench.run(setup, traffic)
    rows = [
        PublishedRow(each.arrival.tenant, 0.0, each.arrival.num_prompt_tokens, each.arrival.num_output_tokens, 0.0, 0.0)
        for each in result.samples.by_id.values()
    ]
    light = result.ttft_p99(*light_tenants(rows))
    return Judged(
        result.run,
        (
            Check("light tenants' TTFT p99 (s)", light, 13.9),
            Check("TTFT p99 of all (s)", result.ttft_p99(), 216.0),
            Check("tokens/s", result.samples.num_output_tokens / result.end_s, 498.0, is_upper=False),
        ),
    )


def large_model(bench: Bench, policy: PolicyChoice) -> Judged:
    """ServeGen's large model at 1.3 C, one client with 78 % of the work: and the small ones without it."""
    source = TrafficSource(("servegen_m_large_1h,scale=0.02",))
    result, first = _trace_runs(bench, policy, source, 1.3)
    largest = max(first.samples.served, key=lambda name: first.samples.served[name].work[-1])
    others = tuple(name for name in first.samples.served if name != largest)
    ratio = percentile(ttfts_s(result.samples.of(*others), result.end_s), 0.99)
    alone = bench.remembered(f"S11c solo {policy}", lambda: _without(bench, policy, source, largest))
    return Judged(result.run, (Check("small clients' TTFT p99 over theirs alone", ratio / alone.ttft_p99(), 2.0),))


def _trace_runs(bench: Bench, policy: PolicyChoice, source: TrafficSource, load: float) -> tuple[Result, Result]:
    traffic = _at_load(bench, source, load)
    setup = bench.setup(policy, TRACE_LIMITS)
    result = bench.run(setup, traffic)
    first = bench.remembered(f"S11 {source.traces}", lambda: bench.run(bench.setup(FCFS, TRACE_LIMITS), traffic))
    return result, first


def _without(bench: Bench, policy: PolicyChoice, source: TrafficSource, tenant: str) -> Result:
    traffic = _at_load(bench, source, 1.3)
    rest = Trace("rest", lambda: (row for row in traffic if row.tenant != tenant))
    return bench.run(bench.setup(policy, TRACE_LIMITS), rest)


def _at_load(bench: Bench, source: TrafficSource, share: float) -> Trace:
    """The trace, cut to the suite's scale, stretched so that it asks for `share` of C with its mean lengths."""
    trace = open_traffic(source, _folder(bench.options))
    if bench.options.scale < 1:
        trace = reshape(trace, Shape(max_seconds=3600 * bench.options.scale))
    load = load_of(trace)
    mean = (load.num_prompt_tokens // load.num_requests, max(1, load.num_output_tokens // load.num_requests))
    work_per_s = capacity(bench.setup(FCFS, TRACE_LIMITS), *mean)
    return reshape(trace, Shape(time_stretch=stretch_for_load(load, share, work_per_s)))


def _light_p99(result: Result) -> float:
    """Of tenants with one request, which were never anything but light."""
    by_tenant: dict[str, int] = {}
    for sample in result.samples.by_id.values():
        by_tenant[sample.arrival.tenant] = by_tenant.get(sample.arrival.tenant, 0) + 1
    once = [name for name, count in by_tenant.items() if count == 1]
    return result.ttft_p99(*once, since_s=result.end_s / 4)


def _nanos(seconds: float) -> Nanos:
    return Nanos(round(seconds * NANOS_PER_S))


def _folder(options: Options) -> Path:
    if options.traces is None:
        raise ScenarioError("S11 reads real traces: name their folder with --traces or EVENFLOW_TRACES")
    return options.traces


SCENARIOS = (
    Scenario("S8", "cancel storm", cancel_storm),
    Scenario("S10", "1,000 tenants", lambda bench, policy: many_tenants(1000, bench, policy)),
    Scenario("S10b", "10,000 tenants", lambda bench, policy: many_tenants(10_000, bench, policy)),
    Scenario("S11a", "Azure chat and code", azure),
    Scenario("S11b", "VTC arena", arena),
    Scenario("S11c", "ServeGen large model", large_model),
    Scenario("S12", "drain and replica loss", replica_loss),
)
