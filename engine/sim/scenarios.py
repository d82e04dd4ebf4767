"""S1 to S6: one light tenant and a flood, long against short, weights, request counts, priorities, bursts.

C is the work per second of 16 backlogged requests; lengths are prompt/output tokens. The first 60 of 240 seconds are
not measured. Where a promise is made against a run without the others, or under `fcfs`, that run is made, too.
"""

from dataclasses import replace

from engine.core.types import PriorityClass
from engine.decision_log import PolicyChoice
from engine.sim.requests import Tenancy
from engine.sim.samples import Sample, percentile, ttfts_s
from engine.sim.suite import FCFS, Bench, Check, Judged, Result, Scenario, isolation_line, merged, without_eviction
from engine.sim.traffic.generate import generate, parse_generator
from engine.sim.traffic.row import NANOS_PER_S
from engine.sim.traffic.trace import Trace
from engine.sim.work import work_of

WARM_UP_S = 60.0
END_S = 240.0


def flood(bench: Bench, policy: PolicyChoice) -> Judged:
    """A light tenant at 0.05 C of 64/32 beside an aggressor at 2 C of 128/64."""
    warm_up, end = bench.seconds(WARM_UP_S), bench.seconds(END_S)
    light = bench.poisson("light", 0.05, 64, 32, seconds=end, seed=1)
    aggressor = bench.poisson("aggressor", 2.0, 128, 64, seconds=end, seed=2)
    both = merged(light, aggressor)
    result = bench.run(bench.setup(policy), both, end)
    first = bench.remembered("S1 fcfs", lambda: bench.run(bench.setup(FCFS), both, end))
    solo = bench.remembered(f"S1 solo {policy}", lambda: bench.run(bench.setup(policy), light, end))
    kept = result.work_per_s("suite/aggressor", since_s=warm_up) / first.work_per_s("suite/aggressor", since_s=warm_up)
    isolation = _isolation(result, solo, "suite/light", warm_up)
    return Judged(result.run, (isolation, Check("aggressor's tokens/s over fcfs", kept, 0.95, is_upper=False)))


def long_against_short(bench: Bench, policy: PolicyChoice) -> Judged:
    """24 x 1024/256 at once, a short 32/16 each second for 30 s, a pool of half of what they come to hold."""
    config = bench.options.config
    num_blocks = config.max_num_seqs * 1280 // config.block_size // 2
    pool = {"num_device_blocks": num_blocks, "num_host_blocks": num_blocks}
    salvo = "org=suite,tenant=long,arrivals=salvo,requests=24,prompt=1024,output=256"
    each_second = "org=suite,tenant=short,arrivals=every,rate=1,seconds=30,prompt=32,output=16"
    long, short = (generate(parse_generator(text, bench.options.seed)) for text in (salvo, each_second))
    result = bench.run(bench.setup(policy, pool), merged(long, short))
    reserving = bench.remembered(
        f"S2 reserving {policy}", lambda: bench.run(without_eviction(bench, policy, pool), merged(long, short))
    )
    solo = bench.remembered(f"S2 solo {policy}", lambda: bench.run(bench.setup(policy, pool), short))
    silence = max(sample.longest_silence_ns for sample in result.samples.by_id.values()) / NANOS_PER_S
    return Judged(
        result.run,
        (
            _isolation(result, solo, "suite/short", 0.0),
            Check("tokens/s over reserving", reserving.end_s / result.end_s, 0.9, is_upper=False),
            Check("recomputed share", _recomputed_share(result), 0.05),
            Check("longest time without progress (s)", silence, 10.0),
        ),
    )


def weights(bench: Bench, policy: PolicyChoice) -> Judged:
    """Three tenants of weight 1, 2 and 4 at 1.2 C each; the last one stops at 60 s for 30 s."""
    end, pause, back = bench.seconds(180.0), bench.seconds(60.0), bench.seconds(90.0)
    weight = {"suite/one": 1.0, "suite/two": 2.0, "suite/four": 4.0}
    traffic = merged(
        bench.poisson("one", 1.2, 128, 64, seconds=end, seed=1),
        bench.poisson("two", 1.2, 128, 64, seconds=end, seed=2),
        _given_up(bench.poisson("four", 1.2, 128, 64, seconds=pause, seed=3), pause),
        bench.poisson("four", 1.2, 128, 64, start=back, seconds=end - back, seed=4),
    )
    result = bench.run(bench.setup(policy, tenancy=Tenancy(weight)), traffic, end)
    window = bench.seconds(30.0)
    busy = (bench.seconds(10.0), bench.seconds(60.0))
    freed = result.samples.work("suite/one", pause + bench.seconds(2.0), back)
    freed += result.samples.work("suite/two", pause + bench.seconds(2.0), back)
    usual = sum(result.samples.work(name, *busy) for name in weight) / (busy[1] - busy[0])
    return Judged(
        result.run,
        (
            Check("largest share error over 30 s", _share_error(result, weight, window, busy), 0.03),
            Check(
                "freed share that is used", freed / (back - pause - bench.seconds(2.0)) / usual, 0.95, is_upper=False
            ),
        ),
    )


def request_counts(bench: Bench, policy: PolicyChoice) -> Judged:
    """Two tenants of as many requests, 32/16 and 256/96, 2.5 C together: a round robin starves the first."""
    warm_up, end = bench.seconds(WARM_UP_S), bench.seconds(END_S)
    each = work_of(32, 16), work_of(256, 96)
    small = 2.5 * each[0] / sum(each)
    traffic = merged(
        bench.poisson("small", small, 32, 16, seconds=end, seed=1),
        bench.poisson("large", 2.5 - small, 256, 96, seconds=end, seed=2),
    )
    result = bench.run(bench.setup(policy), traffic, end)
    asked = sum(
        work_of(sample.arrival.num_prompt_tokens, sample.arrival.num_output_tokens)
        for sample in result.samples.of("suite/small", since_s=warm_up)
    ) / (end - warm_up)
    served = [result.work_per_s(name, since_s=warm_up) for name in ("suite/small", "suite/large")]
    share = min(asked, sum(served) / 2)
    shares = (served[0] / share, served[1] / (sum(served) - share))
    return Judged(result.run, (Check("least service over max-min share", min(shares), 0.95, is_upper=False),))


def priority_inversion(bench: Bench, policy: PolicyChoice) -> Judged:
    """A low class fills every row with 512/256, a middle one asks for 1.5 C, a high one sends 64/32 every 5 s."""
    warm_up, end = bench.seconds(WARM_UP_S), bench.seconds(END_S)
    classes = {
        "high": PriorityClass("high", 0),
        "middle": PriorityClass("middle", 1),
        "low": PriorityClass("low", 2, min_share=0.05),
    }
    low = "org=suite,tenant=low,arrivals=salvo,requests=160,prompt=512,output=256,class=low"
    traffic = merged(
        generate(parse_generator(low, bench.options.seed)),
        bench.poisson("middle", 1.5, 128, 64, seconds=end, seed=2, **{"class": "middle"}),
    )
    high = bench.poisson("high", 1.0, 64, 32, rate=0.2, seconds=end, seed=3, **{"class": "high"})
    tenancy = Tenancy(classes=classes)
    result = bench.run(bench.setup(policy, tenancy=tenancy), merged(traffic, high), end)
    solo = bench.remembered(f"S5 solo {policy}", lambda: bench.run(bench.setup(policy, tenancy=tenancy), high, end))
    low_share = result.work_per_s("suite/low", since_s=warm_up) / bench.work_per_s
    return Judged(
        result.run,
        (
            _isolation(result, solo, "suite/high", warm_up),
            Check("service of the low class over C", low_share, 0.05, is_upper=False),
        ),
    )


def bursts(bench: Bench, policy: PolicyChoice) -> Judged:
    """One tenant at 0.1 C beside one that is on for 10 s at 1.5 C, and off for 10 s."""
    end, on = bench.seconds(180.0), bench.seconds(10.0)
    steady = bench.poisson("steady", 0.1, 128, 64, seconds=end, seed=1)
    burst = bench.poisson("burst", 1.5, 128, 64, seconds=end, seed=2, arrivals=f"onoff:{on}:{on}")
    result = bench.run(bench.setup(policy), merged(steady, burst), end)
    solo = bench.remembered(f"S6 solo {policy}", lambda: bench.run(bench.setup(policy), steady, end))
    samples = result.samples.of("suite/burst")
    firsts = _first_of_each_burst(samples, 2 * on)
    late = percentile(ttfts_s(firsts, end), 0.5) / percentile(ttfts_s(samples, end), 0.5)
    return Judged(
        result.run,
        (
            _isolation(result, solo, "suite/steady", 0.0),
            Check("first request of a burst over the median one", late, 1.2),
        ),
    )


def _isolation(result: Result, solo: Result, tenant: str, warm_up_s: float) -> Check:
    """The p99 of the tenant's time to first token beside the others, over its line."""
    line = isolation_line(solo.ttft_p99(tenant, since_s=warm_up_s), result.samples.step_p99_s())
    return Check(f"TTFT p99 of {tenant.rpartition('/')[2]} (s)", result.ttft_p99(tenant, since_s=warm_up_s), line)


def _given_up(trace: Trace, at_s: float) -> Trace:
    """The clients of all its requests give up at that moment, so that nothing of it is left."""
    at_ns = round(at_s * NANOS_PER_S)
    rows = lambda: (replace(row, cancel_after_ns=at_ns - row.at_ns) for row in trace)  # noqa: E731 - a field of Trace
    return Trace(trace.name, rows, trace.notes, row_notes=trace.row_notes)


def _recomputed_share(result: Result) -> float:
    recomputed = sum(sample.usage.num_recomputed_tokens for sample in result.samples.by_id.values() if sample.usage)
    return recomputed / (recomputed + result.samples.num_prefill_tokens + result.samples.num_output_tokens)


def _share_error(result: Result, weight: dict[str, float], window_s: float, span_s: tuple[float, float]) -> float:
    """The largest distance of a tenant's share from its weight's, over its weight's, in any window of the span."""
    total = sum(weight.values())
    worst = 0.0
    since = span_s[0]
    while since + window_s <= span_s[1] + 1e-9:
        work = {tenant: result.samples.work(tenant, since, since + window_s) for tenant in weight}
        served = sum(work.values())
        for tenant, units in weight.items():
            worst = max(worst, abs(work[tenant] / served / (units / total) - 1) if served else 1.0)
        since += 1.0
    return worst


def _first_of_each_burst(samples: list[Sample], period_s: float) -> list[Sample]:
    first: dict[int, Sample] = {}
    for sample in samples:
        first.setdefault(int(sample.arrival.at_ns / NANOS_PER_S // period_s), sample)
    return list(first.values())


SCENARIOS = (
    Scenario("S1", "flood", flood),
    Scenario("S2", "long against short under KV pressure", long_against_short),
    Scenario("S3", "weights 1:2:4", weights),
    Scenario("S4", "request-count trap", request_counts),
    Scenario("S5", "priority inversion", priority_inversion),
    Scenario("S6", "bursts", bursts),
)
