"""`evenflow sim`: the same seed gives the same bytes, results go to stdout and files, mistakes end in one line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine.commands.sim import app

TRAFFIC = "tenants=3,zipf=1,rate=6,prompt=uniform:10:80,output=uniform:5:40,requests=60"
SMALL = ["--max-num-seqs", "4", "--num-device-blocks", "40", "--num-host-blocks", "40", "--max-model-len", "512"]


def invoke(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_policies_are_compared_on_the_same_traffic(tmp_path: Path):
    paths = [tmp_path / "first.json", tmp_path / "second.json"]
    for path in paths:
        result = invoke("run", "--generate", TRAFFIC, "--costs", "cpu", "--json", str(path), *SMALL)
        assert result.exit_code == 0, result.output

    assert paths[0].read_bytes() == paths[1].read_bytes()
    document = json.loads(paths[0].read_text())
    assert [run["label"] for run in document["runs"]] == ["fair", "fcfs"]
    assert {run["totals"]["num_requests"] for run in document["runs"]} == {60}
    assert document["config"]["costs"]["name"] == "cpu"
    assert "fair" in result.output


def test_json_alone_goes_to_stdout():
    result = invoke("run", "--generate", TRAFFIC, "--policy", "fcfs", "--json", "-", *SMALL)

    assert [run["label"] for run in json.loads(result.stdout)["runs"]] == ["fcfs"]


def test_a_load_stretches_the_traffic_and_says_so():
    result = invoke("run", "--generate", TRAFFIC, "--policy", "fcfs", "--load", "0.5", "--json", "-", *SMALL)

    notes = json.loads(result.stdout)["runs"][0]["notes"]
    assert any(note.startswith("load 0.5 of C = ") for note in notes)
    assert any(note.startswith("time stretched") for note in notes)


def test_prompts_that_begin_alike_are_computed_once_where_that_is_asked_for(tmp_path: Path):
    trace = tmp_path / "rows.jsonl"
    rows = [
        {"timestamp": 2000 * at, "input_length": 80, "output_length": 4, "hash_ids": [7, at], "block_size": 64}
        for at in range(10)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    totals = []
    for flags in ((), ("--enable-prefix-caching",)):
        result = invoke("run", "--trace", str(trace), "--policy", "fair", "--json", "-", *SMALL, *flags)
        assert result.exit_code == 0, result.output
        tenants = json.loads(result.stdout)["runs"][0]["tenants"]
        totals.append(sum(tenant["num_cached_tokens"] for tenant in tenants))

    assert totals == [0, 9 * 79]  # a trace in milliseconds has pieces of 512 tokens: all prompts are the same


def test_a_decision_log_replays(tmp_path: Path):
    log = tmp_path / "decisions.jsonl"
    arguments = ("--generate", TRAFFIC, "--policy", "vtc", "--decision-log", str(log), *SMALL)
    assert invoke("run", *arguments).exit_code == 0

    result = invoke("replay", str(log))

    assert result.exit_code == 0
    assert "plans are identical" in result.output


def test_a_decision_log_with_a_refused_row_replays(tmp_path: Path):
    trace, log = tmp_path / "rows.jsonl", tmp_path / "decisions.jsonl"
    rows = [{"timestamp": at, "input_length": 20, "output_length": length} for at, length in enumerate((8, 2000, 8))]
    trace.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    ran = invoke("run", "--trace", str(trace), "--policy", "fair", "--decision-log", str(log), "--json", "-", *SMALL)
    assert json.loads(ran.stdout)["runs"][0]["totals"]["num_refused"] == 1

    result = invoke("replay", str(log))

    assert result.exit_code == 0
    assert "plans are identical" in result.output


def test_a_log_that_does_not_replay_ends_with_code_1(tmp_path: Path):
    log = tmp_path / "decisions.jsonl"
    invoke("run", "--generate", TRAFFIC, "--policy", "vtc", "--decision-log", str(log), *SMALL)
    log.write_text(log.read_text().replace('"name": "vtc"', '"name": "srpt"').replace('"name":"vtc"', '"name":"srpt"'))

    result = invoke("replay", str(log))

    assert result.exit_code == 1
    assert f"{log}:" in result.output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--policy", "fiar"), "there is no policy fiar"),
        (("--policy", "fair:theta=much"), "theta"),
        (("--policy", "fair:theta"), "is not one OPTION=VALUE"),
        (("--costs", "h9000"), "there is no cost line h9000"),
        (("--weight", "o/a=0"), "a weight is PATH=NUMBER"),
        (("--weight", "o/a=nan"), "a weight is PATH=NUMBER"),
        (("--class", "gold"), "is no number"),
        (("--trace", "nowhere.csv"), "nowhere.csv"),
        (("--generate", "rate=-1"), "rate"),
        (("--preemption", "swap", "--num-host-blocks", "0"), "needs num_host_blocks"),
        (("--decision-log", "x"), "give --policy once"),
        (("--decision-log", "/nowhere/x", "--policy", "fcfs"), "/nowhere/x cannot be written"),
        (("--generate", "tenants=2,rate=1e-300,requests=5"), "a rate from 1e-09 to 1e+09"),
        (("--generate", "rate=1e-9,requests=5"), "more than ten years"),
        (("--generate", "start=1e300,requests=5"), "at most ten years"),
        (("--generate", "prompt=1e12,requests=5"), "at most 10,000,000 tokens"),
        (("--generate", "zipf=1e300,tenants=3,requests=5"), "zipf is at most 10"),
        (("--generate", "org=,requests=5"), "org and tenant are names"),
        (("--max-seconds", "nan"), "--max-seconds is a number from 0"),
        (("--max-seconds", "-1"), "--max-seconds is a number from 0"),
        (("--until", "nan"), "--until is a number from 0"),
        (("--until", "-1"), "--until is a number from 0"),
        (("--warm-up", "inf"), "--warm-up is a number from 0"),
        (("--load", "inf"), "--load is a number from 0.01 to 1,000"),
        (("--load", "nan"), "--load is a number from 0.01 to 1,000"),
        (("--seed", "-1"), "--seed is a number from 0"),
        (("--num-device-blocks", "1000000000000"), "--num-device-blocks is at most 10,000,000"),
        (("--max-num-seqs", "1000000000000"), "--max-num-seqs is at most 100,000"),
        (("--engines", "1000000000"), "--engines is a number from 1 to 10,000"),
        (("--tenants", "zipf:0"), "zipf needs a number of tenants"),
        (("--tenants", "conversation:-3"), "conversation needs a number of tenants"),
        (("--class", "gold=nan"), "RANK a whole number"),
        (("--generate", "reqests=10"), "there is no 'reqests'; there are tenants, requests, prefix, seed, zipf"),
    ],
)
def test_a_mistake_ends_with_code_2_and_one_line(arguments: tuple[str, ...], problem: str):
    result = invoke("run", "--generate", TRAFFIC, *arguments)

    assert result.exit_code == 2
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1
    assert problem in lines[0]


@pytest.mark.parametrize("command", ["run", "validate"])
def test_missing_traffic_is_told_with_the_options_that_give_it(command: str):
    result = invoke(command, "--policy", "fair")

    assert result.exit_code == 2
    assert (
        result.stderr == f"evenflow sim {command}: there is no traffic: give --trace FILE or --generate NAME=VALUE,…\n"
    )


def test_lengths_of_0_are_noted_only_where_there_are_any(tmp_path: Path):
    traces = {"whole": 32, "empty": 0}
    for name, length in traces.items():
        row = {"timestamp": 0, "input_length": 64, "output_length": length, "tenant": "a/b"}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")

    shown = {
        name: invoke("run", "--trace", str(tmp_path / f"{name}.jsonl"), "--policy", "fcfs", *SMALL).output
        for name in traces
    }

    assert "counts as 1" not in shown["whole"]
    assert "empty: a length of 0 counts as 1" in shown["empty"]


def test_records_of_nobody_are_warned_of():
    records = ("--weight", "nobody/x=2", "--weight", "generated/t1=2", "--weight", "generated=2", "--class", "gold=0")

    result = invoke("run", "--generate", TRAFFIC, "--policy", "fcfs", *records, *SMALL)

    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "evenflow sim run: nobody in the traffic is nobody/x, so its weight changes nothing",
        "evenflow sim run: no request is of class gold",
    ]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"", b"[]\n", b'{"version": 1, "config": []}\n'])
def test_a_file_that_is_no_decision_log_is_named(tmp_path: Path, content: bytes):
    log = tmp_path / "odd.log"
    log.write_bytes(content)

    result = invoke("replay", str(log))

    assert result.exit_code == 2
    [line] = result.stderr.splitlines()
    assert str(log) in line


def test_the_best_of_a_row_is_marked_without_colour():
    result = invoke("run", "--generate", TRAFFIC, "--costs", "cpu", *SMALL)

    assert "* the best of its row" in result.stdout
    assert "– nothing to measure" in result.stdout


def test_the_suite_marks_missed_lines_and_ends_with_code_1_if_they_are_the_first_policys():
    arguments = ("suite", "--scenario", "S4", "--scale", "0.2")

    kept = invoke(*arguments, "--policy", "fair", "--policy", "fcfs")
    missed = invoke(*arguments, "--policy", "fcfs", "--policy", "fair")

    assert (kept.exit_code, missed.exit_code) == (0, 1)
    assert "✗ marks a line that is missed: fcfs missed 1 of 1; fair missed 0 of 1" in missed.stdout
    assert missed.stdout.count("✗") == 2


def test_a_check_of_a_policy_ends_with_how_many_rules_it_kept(monkeypatch: pytest.MonkeyPatch):
    from engine.sim import conformance

    checks = conformance.Check("one", None), conformance.Check("two", "because")
    reports = [conformance.Report("fair", "scheduling", checks)]
    monkeypatch.setattr(conformance, "check_policy", lambda name, options, tell: reports)

    result = invoke("check-policy", "fair")

    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "fair: 1 of 2 rules kept"


def test_the_suite_prints_each_promise(tmp_path: Path):
    path = tmp_path / "suite.json"

    result = invoke("suite", "--scenario", "S4", "--scale", "0.2", "--policy", "fair", "--json", str(path))

    assert result.exit_code == 0
    assert "request-count trap" in result.output
    [verdict] = json.loads(path.read_text())["verdicts"]
    assert verdict["scenario"] == "S4"
    assert verdict["checks"][0]["name"] == "least service over max-min share"


def test_an_unknown_scenario_is_refused_with_the_known_ones():
    result = invoke("suite", "--scenario", "S99")

    assert result.exit_code == 2
    assert "S1, S2" in result.stderr


def test_a_real_trace_needs_its_folder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("EVENFLOW_TRACES", raising=False)

    result = invoke("suite", "--scenario", "S11a", "--policy", "fcfs")

    assert result.exit_code == 2
    assert "EVENFLOW_TRACES" in result.stderr
