"""Outcomes as tables, JSON and pictures."""

import io
import json
import subprocess
import sys

import pytest
from rich.console import Console

from engine.sim.metrics import Recorder
from engine.sim.report import PictureError, outcome_tables, to_json_text, units, write_picture
from tests.sim.sim_stories import busy_outcome

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


def printed(outcomes):
    console = Console(file=io.StringIO(), width=160)
    console.print(outcome_tables(outcomes))
    return console.file.getvalue()


def test_table_has_a_column_for_each_run_and_a_section_for_each_group():
    text = printed([busy_outcome("fair"), busy_outcome("fcfs", swaps=False)])

    assert "fair" in text
    assert "fcfs" in text
    assert "light tenants" in text
    assert "TTFT p50 / p99" in text
    assert "note: made up" in text


def test_table_of_an_empty_run_is_still_a_table():
    assert "requests" in printed([Recorder().result(0)])


def test_json_is_equal_for_equal_runs_and_has_sorted_keys():
    text = to_json_text([busy_outcome()], config={"seed": 1})

    assert text == to_json_text([busy_outcome()], config={"seed": 1})
    document = json.loads(text)
    assert list(document) == sorted(document)
    assert document["runs"][0]["label"] == "fair"
    assert document["config"] == {"seed": 1}


def test_picture_is_a_png_and_equal_for_equal_runs(tmp_path):
    outcomes = [busy_outcome("fair"), busy_outcome("fcfs", swaps=False)]
    for name in ("one.png", "two.png"):
        write_picture(outcomes, tmp_path / name, title="made up")

    drawn = (tmp_path / "one.png").read_bytes()
    assert drawn.startswith(PNG_MAGIC)
    assert drawn == (tmp_path / "two.png").read_bytes()
    assert b"Software" not in drawn


@pytest.mark.parametrize("num_tenants", [1, 3, 40])
def test_picture_is_drawn_for_any_number_of_tenants(tmp_path, num_tenants):
    write_picture([busy_outcome(num_tenants=num_tenants)], tmp_path / "one.png")

    assert (tmp_path / "one.png").stat().st_size > 10_000


def test_picture_of_an_empty_run_is_drawn(tmp_path):
    write_picture([Recorder().result(0)], tmp_path / "empty.png")

    assert (tmp_path / "empty.png").read_bytes().startswith(PNG_MAGIC)


def test_picture_of_nothing_and_into_nowhere_is_refused(tmp_path):
    with pytest.raises(PictureError, match="no run"):
        write_picture([], tmp_path / "none.png")
    with pytest.raises(PictureError, match="No such file"):
        write_picture([busy_outcome()], tmp_path / "missing" / "one.png")


def test_matplotlib_is_imported_only_for_a_picture():
    code = "import engine.sim.report, sys; sys.exit('matplotlib' in sys.modules or 'torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0 s"),
        (0.00095, "950 µs"),
        (0.01234, "12.3 ms"),
        (0.9996, "1.00 s"),
        (4.5678, "4.57 s"),
        (1234.5, "1,234 s"),
    ],
)
def test_seconds_are_shown_with_three_digits(value, text):
    assert units.seconds(value) == text


def test_sizes_are_shown_in_powers_of_1024():
    assert units.size(1536 * 1024) == "1.50 MiB"
