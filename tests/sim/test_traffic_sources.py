"""Tenants, merging, shaping and drawing."""

from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest

from engine.sim.traffic import (
    Arrival,
    Shape,
    Trace,
    TraceOptions,
    TrafficSource,
    TrafficSpecError,
    generate,
    load_of,
    merge_traces,
    open_trace,
    open_traffic,
    parse_generator,
    reshape,
    stretch_for_load,
)

DATA = Path(__file__).parent / "data"


def drawn(spec, seed=0):
    return list(generate(parse_generator(spec, seed)))


def trace_of(*arrivals, starts_at_ns=None):
    return Trace("made", lambda: iter(arrivals), starts_at_ns=starts_at_ns)


def test_services_are_teams_of_one_organization_merged_on_the_wall_clock():
    merged = list(open_traffic(TrafficSource(traces=("azure_sample_conv", "azure_sample_code")), DATA))

    assert {arrival.tenant for arrival in merged} == {"azure_sample/conv", "azure_sample/code"}
    assert next(a.at_ns for a in merged if a.tenant.endswith("code")) == 23_419_410_000
    assert all(early.at_ns <= late.at_ns for early, late in pairwise(merged))


def test_traces_without_a_wall_clock_begin_together():
    merged = list(merge_traces([trace_of(Arrival(5, "a", 1, 1)), trace_of(Arrival(3, "b", 1, 1), starts_at_ns=10**18)]))

    assert [(row.at_ns, row.tenant) for row in merged] == [(3, "b"), (5, "a")]


def test_zipf_rule_gives_the_largest_of_twenty_tenants_28_percent(tmp_path):
    rows = "".join(f"0,x,{row},5,5\n" for row in range(20_000))
    (tmp_path / "made.csv").write_text("req_id,tenant,arrival_s,prompt_tokens,output_tokens\n" + rows)
    trace = open_trace(tmp_path / "made.csv", TraceOptions(tenants="zipf:20"))
    counts = Counter(row.tenant for row in trace)

    shares = [count / 20_000 for _, count in counts.most_common()]
    assert shares[0] == pytest.approx(0.28, abs=0.01)
    assert sum(shares[:3]) == pytest.approx(0.51, abs=0.015)
    assert counts.most_common(1)[0][0].endswith("t01")


def test_single_rule_makes_one_tenant():
    assert {arrival.tenant for arrival in open_trace(DATA / "arena.csv", TraceOptions(tenants="single"))} == {
        "arena/all"
    }


def test_lengths_are_divided_rounded_up_and_kept_within_limits():
    trace = trace_of(Arrival(0, "a", 17, 1), Arrival(10, "a", 160_000, 33, prefix_ids=(1,), prefix_block_size=512))

    small, large = reshape(trace, Shape(length_divisor=16))

    assert (small.num_prompt_tokens, small.num_output_tokens) == (4, 4)
    assert (large.num_prompt_tokens, large.num_output_tokens) == (512, 4)
    assert large.prefix_block_size == 32


def test_time_is_stretched_and_the_trace_cut():
    trace = trace_of(*(Arrival(second * 10**9, "a", 1, 1) for second in range(10)))

    assert [row.at_ns for row in reshape(trace, Shape(time_stretch=2.5, max_requests=2))] == [0, 2_500_000_000]
    assert len(list(reshape(trace, Shape(max_seconds=3.0)))) == 3


def test_shape_is_said_beside_the_result():
    notes = reshape(trace_of(Arrival(0, "a", 1, 1)), Shape(length_divisor=16, time_stretch=0.5)).notes

    assert notes == ("lengths / 16, kept within 4..512 tokens", "time stretched x 0.5")


def test_stretch_makes_the_offered_load_what_is_asked_for():
    trace = generate(parse_generator("rate=5,prompt=100,output=50,requests=2000"))
    stretch = stretch_for_load(load_of(trace), 0.7, 3_000.0)

    stretched = load_of(reshape(trace, Shape(time_stretch=stretch)))

    assert stretched.work_per_s == pytest.approx(0.7 * 3_000, rel=1e-3)


def test_poisson_gaps_have_the_rate_and_vary_as_much_as_their_mean():
    gaps = np.diff([row.at_ns / 1e9 for row in drawn("rate=8,requests=20000")])

    assert gaps.mean() == pytest.approx(1 / 8, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.03)


def test_on_off_source_is_silent_while_it_is_off():
    rows = drawn("rate=20,arrivals=onoff:10:30,seconds=400")

    assert all(row.at_ns / 1e9 % 40 < 10 + 1e-6 for row in rows)
    assert len(rows) == pytest.approx(20 * 100, rel=0.1)


def test_equal_gaps_begin_at_the_start():
    assert [row.at_ns for row in drawn("rate=2,arrivals=every,start=1,requests=3")] == [10**9, 15 * 10**8, 2 * 10**9]


def test_salvo_comes_all_at_once():
    assert [row.at_ns for row in drawn("arrivals=salvo,requests=24,start=0.5")] == [5 * 10**8] * 24


def test_lengths_follow_their_distributions():
    rows = drawn("prompt=lognormal:1000:0.8,output=pareto:50:1.5,requests=40000")
    prompts, outputs = (
        np.array(column) for column in zip(*((r.num_prompt_tokens, r.num_output_tokens) for r in rows), strict=True)
    )

    assert np.median(prompts) == pytest.approx(1000, rel=0.03)
    assert np.percentile(prompts, 99) == pytest.approx(1000 * np.exp(2.326 * 0.8), rel=0.08)
    assert outputs.min() >= 50
    assert (outputs > 500).mean() == pytest.approx(0.1**1.5, rel=0.1)


def test_uniform_lengths_reach_both_ends():
    assert {row.num_prompt_tokens for row in drawn("prompt=uniform:3:6,requests=500")} == {3, 4, 5, 6}


def test_popularity_follows_zipf():
    counts = Counter(row.tenant for row in drawn("tenants=20,zipf=1,requests=20000"))

    assert counts["generated/t01"] / 20_000 == pytest.approx(0.28, abs=0.015)
    assert len(counts) == 20


def test_each_tenant_has_a_prefix_of_its_own():
    rows = drawn("tenants=3,prefix=512,prompt=32,requests=50")

    assert {row.prefix_block_size for row in rows} == {512}
    assert all(row.num_prompt_tokens == 513 for row in rows)
    assert len({(row.tenant, row.prefix_ids) for row in rows}) == 3


def test_a_share_of_the_clients_gives_up():
    rows = drawn("cancel=0.25:1.5,requests=4000")

    assert {row.cancel_after_ns for row in rows} == {None, 1_500_000_000}
    assert sum(row.cancel_after_ns is not None for row in rows) == pytest.approx(1000, rel=0.1)


def test_json_means_the_same_as_words():
    assert drawn('{"rate": 3, "requests": 20, "prompt": "uniform:5:9"}') == drawn(
        "rate=3,requests=20,prompt=uniform:5:9"
    )


def test_same_seed_same_traffic():
    assert drawn("requests=100", seed=5) == drawn("requests=100,seed=5")
    assert drawn("requests=100", seed=5) != drawn("requests=100", seed=6)


def test_endless_traffic_is_streamed():
    rows = generate(parse_generator("tenants=10000,zipf=1,requests=1000000000"))

    assert len(list(islice(rows, 10))) == 10


def test_aggressor_is_laid_over_a_trace():
    source = TrafficSource(traces=("arena",), generators=("org=arena,tenant=flood,rate=10,requests=30",))
    counts = Counter(row.tenant for row in open_traffic(source, DATA))

    assert counts["arena/flood"] == 30
    assert counts.total() == 45


def test_settings_follow_the_path_of_a_trace():
    source = TrafficSource(traces=("servegen,scale=20,org=pool,seed=4", "arena.csv,tenants=zipf:2"))
    trace = open_traffic(source, DATA)

    assert {row.tenant.partition("/")[0] for row in trace} == {"pool", "arena"}
    assert "rates x 20" in trace.notes[0]


@pytest.mark.parametrize(
    "spec",
    [
        "rate=8",
        "rate=0,requests=5",
        "rate=nan,requests=5",
        "rate=inf,requests=5",
        "requests=-5",
        "requests=many",
        "tenants=0,requests=5",
        "prompt=normal:5:5,requests=5",
        "prompt=lognormal:5,requests=5",
        "prompt=-5,requests=5",
        "prompt=uniform:9:5,requests=5",
        "arrivals=sometimes,requests=5",
        "arrivals=onoff:0:5,requests=5",
        "arrivals=onoff:5,requests=5",
        "cancel=2:1,requests=5",
        "tenants=2,tenant=a,requests=5",
        "color=red,requests=5",
        "requests",
        "{oops",
    ],
)
def test_generator_that_makes_no_sense_is_refused(spec):
    with pytest.raises(TrafficSpecError):
        parse_generator(spec)


@pytest.mark.parametrize(
    "source",
    [
        TrafficSource(),
        TrafficSource(traces=("arena,scale=fast",)),
        TrafficSource(traces=("arena,spread=maybe",)),
        TrafficSource(traces=("servegen,scale=-1",)),
        TrafficSource(traces=("servegen,tenants=zipf:3",)),
    ],
)
def test_source_that_makes_no_sense_is_refused(source):
    with pytest.raises(TrafficSpecError):
        open_traffic(source, DATA)


@pytest.mark.parametrize("values", [{"length_divisor": 0}, {"time_stretch": 0.0}, {"time_stretch": float("nan")}])
def test_shape_that_makes_no_sense_is_refused(values):
    with pytest.raises(TrafficSpecError):
        Shape(**values)


def test_a_length_that_is_asked_for_by_name_is_not_cut():
    assert {arrival.num_prompt_tokens for arrival in drawn("requests=3,prompt=200000")} == {200_000}


def test_traffic_ends_where_its_times_would_leave_64_bits():
    with pytest.raises(TrafficSpecError, match="more than ten years"):
        drawn("requests=5,rate=1e-9")


def test_slow_traffic_that_ends_in_time_is_drawn():
    assert len(drawn("requests=5,rate=1e-6,arrivals=every")) == 5
