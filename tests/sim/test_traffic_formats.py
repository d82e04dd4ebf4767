"""Each format is read as documented, found out from its content, and refused with file and line where it is broken."""

import gzip
import json
from pathlib import Path

import pytest

from engine.sim.traffic import Arrival, TraceError, TraceOptions, TrafficSpecError, open_trace, write_jsonl
from engine.sim.traffic.reshape import Shape
from engine.sim.traffic.source import TrafficSource, open_traffic

DATA = Path(__file__).parent / "data"


def read(name, **options):
    return list(open_trace(DATA / name, TraceOptions(**options)))


def written(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def test_azure_rows_keep_their_distances_to_the_tenth_of_a_microsecond():
    arrivals = read("azure_sample_conv.csv")

    assert len(arrivals) == 12
    assert arrivals[0] == Arrival(0, "azure_sample/conv", 1426, 82)
    assert arrivals[1].at_ns == 2_008_940_500


def test_azure_file_without_a_final_newline_keeps_its_last_row():
    lines = (DATA / "azure_sample_conv.csv").read_text().splitlines()

    assert len(read("azure_sample_conv.csv")) == len(lines) - 1


def test_azure_wall_clock_is_known_for_merging():
    assert open_trace(DATA / "azure_sample_conv.csv").starts_at_ns == 1_741_112_146_680_590_000


def test_arena_tenants_are_its_clients():
    arrivals = read("arena.csv")

    assert {arrival.tenant for arrival in arrivals} == {"arena/0", "arena/2", "arena/3"}
    assert len(arrivals) == 15


def test_burstgpt_leaves_out_requests_that_failed():
    arrivals = read("burstgpt.csv")

    assert len(arrivals) == 8
    assert arrivals[0].at_ns == 0


def test_mooncake_arrivals_are_spread_over_the_ticks_and_said_to_be():
    trace = open_trace(DATA / "mooncake.jsonl")
    times = [arrival.at_ns for arrival in trace]

    assert times == sorted(times)
    assert len(set(times)) == 20
    assert "spread over its clock's ticks of 3 s, seed 0" in trace.notes[0]


def test_mooncake_ticks_stay_where_that_is_asked_for():
    trace = open_trace(DATA / "mooncake.jsonl", TraceOptions(spread_ticks=False))

    assert len({arrival.at_ns for arrival in trace}) == 5
    assert trace.notes == ()


@pytest.mark.parametrize(("prompt", "output"), [(64, 32), (0, 32), (64, 0)])
def test_lengths_of_0_are_told_of_where_there_are_any(tmp_path, prompt: int, output: int):
    path = tmp_path / "t3.jsonl"
    rows = ((0, 1, 1), (5, prompt, output))
    path.write_text(
        "".join(
            f'{{"timestamp": {at}, "input_length": {length}, "output_length": {end}, "tenant": "a/b"}}\n'
            for at, length, end in rows
        )
    )
    trace = open_traffic(TrafficSource((str(path),), shape=Shape(length_divisor=2)))
    list(trace)

    told = ("t3: a length of 0 counts as 1",)
    assert trace.notes_of_rows == (told if 0 in (prompt, output) else ())


def test_mooncake_prefixes_are_blocks_of_512_tokens():
    first = read("mooncake.jsonl", spread_ticks=False)[0]

    assert first.prefix_ids == (0, 1, 2, 3, 4)
    assert first.prefix_block_size == 512


def test_bailian_conversations_keep_their_tenant():
    arrivals = read("bailian.jsonl", tenants="conversation:1000")

    tenants = [arrival.tenant for arrival in arrivals]
    assert all(len(set(tenants[first : first + 3])) == 1 for first in range(0, 12, 3))
    assert len(set(tenants)) == 4
    assert arrivals[0].prefix_block_size == 16


def test_own_format_carries_prefixes_classes_cancellation_and_deadlines():
    first, second, third, fourth = read("evenflow.jsonl")

    assert first == Arrival(0, "acme/search", 40, 10)
    assert second.at_ns == 250_500_000
    assert (second.prefix_ids, second.prefix_block_size) == ((7, 8), 512)
    assert (third.tenant, third.priority_class) == ("acme/search", "batch")
    assert (fourth.cancel_after_ns, fourth.deadline_after_ns) == (1_500_000_000, 30_000_000_000)


def test_own_format_is_read_as_it_was_written(tmp_path):
    arrivals = read("evenflow.jsonl")

    assert write_jsonl(arrivals, tmp_path / "copy.jsonl") == 4
    assert list(open_trace(tmp_path / "copy.jsonl")) == arrivals


def test_servegen_clients_are_tenants_with_their_own_lengths():
    trace = open_trace(DATA / "servegen.jsonl")
    arrivals = list(trace)

    assert {arrival.tenant for arrival in arrivals} == {"servegen/3", "servegen/8", "servegen/11"}
    assert {a.num_prompt_tokens for a in arrivals if a.tenant == "servegen/3"} <= {32, 103, 1000}
    assert [a.at_ns for a in arrivals] == sorted(a.at_ns for a in arrivals)
    assert "seed 0" in trace.notes[0]


def test_servegen_rate_is_the_stated_one():
    arrivals = read("servegen.jsonl", rate_scale=200.0)

    assert len(arrivals) == pytest.approx(200 * (0.05 * 1800 + 0.02 * 1200 + 0.1 * 1800), rel=0.03)


def test_servegen_client_is_silent_where_its_pattern_is_empty():
    arrivals = read("servegen.jsonl", rate_scale=50.0)

    assert not [a for a in arrivals if a.tenant == "servegen/8" and 600e9 <= a.at_ns < 1200e9]


@pytest.mark.parametrize("name", ["servegen.jsonl", "mooncake.jsonl"])
def test_what_is_drawn_depends_on_the_seed_alone(name):
    assert read(name, seed=3) == read(name, seed=3)
    assert read(name, seed=3) != read(name, seed=4)


def test_compressed_file_is_read_like_a_plain_one(tmp_path):
    (tmp_path / "arena.csv.gz").write_bytes(gzip.compress((DATA / "arena.csv").read_bytes()))

    assert list(open_trace(tmp_path / "arena.csv.gz")) == read("arena.csv")


def test_trace_can_be_iterated_again():
    trace = open_trace(DATA / "mooncake.jsonl")

    assert list(trace) == list(trace)


def test_length_of_zero_becomes_one(tmp_path):
    path = written(
        tmp_path, "a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2025-03-04 18:15:46,0,7\n2025-03-04 18:15:46,7,0\n"
    )

    assert list(open_trace(path)) == [Arrival(0, "a/a", 1, 7), Arrival(0, "a/a", 7, 1)]


AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ARENA_HEADER = "req_id,tenant,arrival_s,prompt_tokens,output_tokens\n"
MOONCAKE = '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [0]}\n'
BROKEN = {
    "missing column": ("TIMESTAMP,ContextTokens\n2025-03-04 18:15:46,1\n", 1, "missing column GeneratedTokens"),
    "unsorted": (ARENA_HEADER + "0,1,2.0,5,5\n1,1,1.0,5,5\n", 3, "the time goes back by 1 s"),
    "negative length": (ARENA_HEADER + "0,1,0.0,5,5\n1,1,1.0,-5,5\n", 3, "prompt_tokens must not be negative"),
    "NaN length": (ARENA_HEADER + "0,1,0.0,5,nan\n", 2, "output_tokens must be a finite number"),
    "broken length": (ARENA_HEADER + "0,1,0.0,5,1.5\n", 2, "output_tokens must be a whole number"),
    "NaN time": (ARENA_HEADER + "0,1,nan,5,5\n", 2, "arrival_s must be a finite number"),
    "no time": (AZURE_HEADER + "yesterday,5,5\n", 2, "is not a time like"),
    "impossible time": (AZURE_HEADER + "2025-13-04 18:15:46,5,5\n", 2, "is not a time like"),
    "short row": (ARENA_HEADER + "0,1,0.0,5,5\n1,1\n", 3, "2 columns instead of 5"),
    "long row": (ARENA_HEADER + "0,1,0.0,5,5\n1,1,1.0,5,5,5\n", 3, "6 columns instead of 5"),
    "no tokens": (ARENA_HEADER + "0,1,0.0,0,0\n", 2, "0 tokens of both"),
    "huge length": (ARENA_HEADER + "0,1,0.0,5,1000000000000\n", 2, "output_tokens must be at most 10,000,000"),
    "late row": (AZURE_HEADER + "2023-01-01 00:00:00,5,5\n2099-01-01 00:00:00,5,5\n", 3, "more than ten years after"),
    "year 9999": (AZURE_HEADER + "2023-01-01 00:00:00,5,5\n9999-01-01 00:00:00,5,5\n", 3, "is not within 1970"),
    "year 1": (AZURE_HEADER + "0001-01-01 00:00:00,5,5\n", 2, "is not within 1970"),
    "huge time": (MOONCAKE.replace('p": 0', 'p": 1e308'), 1, "timestamp must be below 146 years"),
    "time of 400 digits": (MOONCAKE.replace('p": 0', 'p": 1' + 400 * "0"), 1, "timestamp is too large"),
    "time as text": (MOONCAKE.replace('p": 0', 'p": "0"'), 1, "timestamp must be a number, not '0'"),
    "length as text": (MOONCAKE.replace("5", '"5"'), 1, "input_length must be a number, not '5'"),
    "empty tenant": (ARENA_HEADER + "0,,0.0,5,5\n", 2, "tenant is empty"),
    "bad JSON": (MOONCAKE + "{oops\n", 2, "this is not JSON"),
    "no object": (MOONCAKE + "[1]\n", 2, "one JSON object"),
    "missing key": (MOONCAKE + '{"timestamp": 1}\n', 2, "missing column input_length"),
    "negative JSON length": (MOONCAKE.replace("5", "-5"), 1, "input_length must not be negative"),
    "NaN in JSON": (MOONCAKE.replace("5", "NaN"), 1, "input_length must be a whole number"),
    "length that is true": (MOONCAKE.replace("5", "true"), 1, "input_length must be a whole number"),
    "bad tenant": ('{"timestamp": 0, "tenant": "a//b"}\n', 1, "tenant must be a path"),
    "no format": ("a,b,c\n1,2,3\n", 1, "no known format begins like this"),
    "bad pool": ('{"client": 1, "trace_rows": []}\n', 1, "missing column window_start_s"),
}


@pytest.mark.parametrize("case", BROKEN, ids=BROKEN)
def test_broken_file_is_named_with_its_line(tmp_path, case):
    text, line, problem = BROKEN[case]
    path = written(tmp_path, "broken", text)

    with pytest.raises(TraceError, match=f"broken:{line}: .*") as caught:
        list(open_trace(path))

    assert caught.value.line == line
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"", "the file is empty"), (AZURE_HEADER.encode(), "the trace has no rows"), (b"\xff\xfe\x00", "not text")],
)
def test_file_without_rows_is_refused(tmp_path, content, problem):
    path = tmp_path / "odd.csv"
    path.write_bytes(content)

    with pytest.raises(TraceError, match=problem):
        open_trace(path)


def test_file_that_is_cut_in_the_middle_is_refused(tmp_path):
    path = tmp_path / "cut.csv.gz"
    path.write_bytes(gzip.compress((DATA / "arena.csv").read_bytes())[:-20])

    with pytest.raises(TraceError, match="the compressed file is broken"):
        list(open_trace(path))


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(TraceError, match="No such file"):
        open_trace(tmp_path / "nothing.csv")


@pytest.mark.parametrize(
    "pattern",
    [
        ["0", "1", "1", "Cauchy", "1", "1"],
        ["0", "nan", "1", "Gamma", "1", "1"],
        ["0", "1", "1", "Gamma", "0", "1"],
        ["0", "1", "1", "Gamma"],
    ],
)
def test_pool_with_a_broken_pattern_is_refused(tmp_path, pattern):
    record = json.loads((DATA / "servegen.jsonl").read_text().splitlines()[0]) | {"trace_rows": [pattern]}
    path = written(tmp_path, "pool.jsonl", json.dumps(record))

    with pytest.raises(TraceError, match=r"pool\.jsonl:1: "):
        open_trace(path)


@pytest.mark.parametrize(
    "options",
    [
        TraceOptions(format="parquet"),
        TraceOptions(tenants="zipf:0"),
        TraceOptions(tenants="zipf"),
        TraceOptions(tenants="roundrobin:3"),
        TraceOptions(rate_scale=2.0),
    ],
)
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(TrafficSpecError):
        open_trace(DATA / "arena.csv", options)
