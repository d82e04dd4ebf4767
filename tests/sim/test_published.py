"""The published run is read, split into light and heavy, and compared figure by figure."""

import gzip
from pathlib import Path

import pytest

from engine.sim.errors import ScenarioError
from engine.sim.published import RESULTS_FILE, TRACE_FILE, compare_with_published, light_tenants, read_results

ROWS = [(index % 3, index * 0.5, 40 + index, 30 + 2 * index) for index in range(40)]


def write_files(folder: Path, latency: float = 1.0) -> None:
    with gzip.open(folder / TRACE_FILE, "wt") as file:
        file.write("req_id,tenant,arrival_s,prompt_tokens,output_tokens\n")
        for index, (tenant, at, prompt, output) in enumerate(ROWS):
            file.write(f"{index},{tenant},{at},{prompt},{output}\n")
    with gzip.open(folder / RESULTS_FILE, "wt") as file:
        file.write("scheduler,tenant,arrival_s,prompt_tokens,output_tokens,first_token_latency_s,request_latency_s\n")
        for policy in ("fcfs", "vtc", "rpm5"):
            for tenant, at, prompt, output in ROWS:
                file.write(f"{policy},{tenant},{at},{prompt},{output},{latency if policy != 'rpm5' else -1},4.0\n")


def test_rejected_rows_are_left_out(tmp_path: Path):
    write_files(tmp_path)

    rows = read_results(tmp_path / RESULTS_FILE)

    assert set(rows) == {"fcfs", "vtc"}
    assert len(rows["fcfs"]) == len(ROWS)


def test_light_tenants_have_little_of_the_work(tmp_path: Path):
    write_files(tmp_path)
    rows = read_results(tmp_path / RESULTS_FILE)["fcfs"]

    assert light_tenants(rows) == frozenset()
    assert light_tenants([*rows, *rows[:3], rows[0].__class__("tiny", 0.0, 1, 1, 0.0, 0.0)]) == {"tiny"}


def test_one_factor_is_set_from_the_makespan(tmp_path: Path):
    write_files(tmp_path)

    comparison = compare_with_published(tmp_path)

    errors = comparison.errors()
    assert set(errors) == {
        *(f"{policy}_{name}" for policy in ("fcfs", "vtc") for name in ("ttft_p50", "ttft_p99", "makespan")),
        "vtc_light_ttft_p99",
    }
    assert abs(errors["fcfs_makespan"]) < 0.05


def test_files_that_are_not_there_are_named(tmp_path: Path):
    with pytest.raises(ScenarioError, match=RESULTS_FILE):
        compare_with_published(tmp_path)
