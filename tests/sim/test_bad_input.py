"""What a stranger wrote ends in one line that names file and line, never in an error of ours, and never in a hang."""

import json
import math
from pathlib import Path

import pytest

from engine.sim.json_text import parse_json
from engine.sim.traffic import TraceError, TraceOptions, TrafficSpecError, open_trace
from engine.sim.traffic.generate import parse_generator
from engine.sim.traffic.row import NANOS_PER_S
from engine.sim.traffic.servegen import MAX_POOL_RATE

DEEP = "[" * 100_000
DIGITS = "1" + "0" * 5_000
LARGE = 10**400
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
AZURE_ROW = "2023-11-16 18:15:46.6805900,3,2\n"
ROW = '{"timestamp": 0, "tenant": "o/t", "input_length": 3, "output_length": 2}\n'
CLIENT = {
    "client": 1,
    "window_start_s": 0,
    "trace_rows": [["0", "0.01", "1", "Gamma", "1", "100"]],
    "input_tokens": "{3: 1.0}",
    "output_tokens": "{2: 1.0}",
}


def written(folder: Path, content: str | bytes, name: str = "odd.jsonl") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def pattern(**changes: object) -> list[list[object]]:
    row = {"start": "0", "rate": "0.01", "cv": "1", "kind": "Gamma", "shape": "1", "scale": "100"} | changes
    return [list(row.values())]


def pool(folder: Path, *clients: dict[str, object]) -> Path:
    return written(folder, "\n".join(json.dumps(CLIENT | client) for client in clients))


class TestJson:
    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            (DEEP, "nested too deeply"),
            ('{"a":' * 100_000, "nested too deeply"),
            (DIGITS, "too many digits"),
            ('"\\ud800"', "half of a character"),
            ('{"\\udfff": 1}', "half of a character"),
            ("{", "this is not JSON"),
        ],
    )
    def test_what_cannot_be_held_is_refused_in_one_line(self, text: str, problem: str):
        with pytest.raises(ValueError, match=problem) as caught:
            parse_json(text)

        assert len(str(caught.value)) < 200
        assert "\n" not in str(caught.value)

    def test_characters_of_two_halves_are_read(self):
        assert parse_json('"\\ud83d\\ude00 ü"') == "\U0001f600 ü"


class TestTraces:
    @pytest.mark.parametrize(
        ("content", "line", "problem"),
        [
            ((AZURE + AZURE_ROW * 498).encode() + b"2023-11-16 18:15:47,\xff3,2\n", 500, "this is not text"),
            ((AZURE + AZURE_ROW).encode() + b"\xff\xfe,3,2\n" + AZURE_ROW.encode(), 3, "this is not text"),
            ((AZURE + AZURE_ROW).encode("utf-16"), 1, "this is not text"),
            (AZURE.strip() + "," + "x" * 200_000 + "\n" + AZURE_ROW, 1, "larger than field limit"),
            (ROW.replace('"timestamp": 0', f'"timestamp": {DIGITS}'), 1, "too many digits"),
            ("\n\n" + ROW.replace('"timestamp": 0', f'"timestamp": {DIGITS}'), 3, "too many digits"),
            ('{"a":' * 100_000, 1, "nested too deeply"),
            (ROW + DEEP, 2, "nested too deeply"),
            (ROW + ROW.replace("o/t", "\\ud800/t"), 2, "half of a character"),
        ],
    )
    def test_the_line_that_cannot_be_read_is_the_one_that_is_named(
        self, tmp_path: Path, content: str | bytes, line: int, problem: str
    ):
        with pytest.raises(TraceError, match=problem) as caught:
            list(open_trace(written(tmp_path, content)))

        assert caught.value.line == line

    def test_a_line_without_end_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("engine.sim.traffic.text_lines.MAX_LINE_CHARS", 1_000)

        with pytest.raises(TraceError, match=r"odd\.jsonl:2: the line has 1,000 characters or more"):
            list(open_trace(written(tmp_path, ROW + "x" * 2_000)))

    def test_a_name_that_no_file_has_is_refused(self):
        with pytest.raises(TraceError, match="null byte"):
            open_trace(Path("x\0y"))

    def test_a_number_of_many_digits_is_told_in_a_short_line(self, tmp_path: Path):
        with pytest.raises(TraceError, match="ContextTokens must be a finite number") as caught:
            list(open_trace(written(tmp_path, AZURE + AZURE_ROW.replace(",3,", f",{DIGITS},"))))

        assert len(str(caught.value)) < 300


class TestPools:
    @pytest.mark.parametrize(
        ("client", "problem"),
        [
            ({"window_start_s": LARGE}, "window_start_s is too large"),
            ({"window_start_s": math.nan}, "window_start_s must be a finite number"),
            ({"window_start_s": 1e300}, "begins before window_start_s"),
            ({"window_start_s": -1e300}, "more than ten years apart"),
            ({"window_start_s": None}, "window_start_s must be a number"),
            ({"trace_rows": pattern(kind="Weibull", shape="0.001")}, "out of range"),
            ({"trace_rows": pattern(kind="Weibull", shape="0.006")}, "out of range"),
            ({"trace_rows": pattern(shape="1e300")}, "out of range"),
            ({"trace_rows": pattern(rate="1e-320")}, "out of range"),
            ({"trace_rows": pattern(rate="1e5")}, "out of range"),
            ({"trace_rows": pattern(start="1e200")}, "more than ten years apart"),
            ({"trace_rows": pattern(start="nan")}, "the start of a row must be a finite number"),
            ({"trace_rows": pattern(rate=LARGE)}, "the rate of a row is too large"),
            ({"trace_rows": None}, "trace_rows must be a list"),
            ({"input_tokens": f"{{3: {LARGE}}}"}, "a probability of input_tokens is too large"),
            ({"input_tokens": "{3: 1e308, 4: 1e308}"}, "must be finite"),
            ({"input_tokens": "{3: [1, 2]}"}, "a probability of input_tokens must be a number"),
            ({"input_tokens": "{3: [1]}"}, "a probability of input_tokens must be a number"),
            ({"input_tokens": "{3: 0}"}, "one above 0"),
            ({"input_tokens": "(" * 5_000}, "no table of numbers"),
            ({"input_tokens": "-" * 50_000 + "1"}, "no table of numbers"),
            ({"client": LARGE}, "client must be at most"),
        ],
    )
    def test_a_client_that_cannot_be_drawn_is_refused_with_its_line(
        self, tmp_path: Path, client: dict[str, object], problem: str
    ):
        with pytest.raises(TraceError, match=problem) as caught:
            open_trace(pool(tmp_path, {"client": 7}, client))

        assert caught.value.line == 2

    def test_a_client_that_has_a_line_already_is_refused(self, tmp_path: Path):
        with pytest.raises(TraceError, match=r"odd\.jsonl:2: client 1 has a line already"):
            open_trace(pool(tmp_path, {}, {}))

    @pytest.mark.parametrize("rows", [[], [[None] * 6], pattern(kind="")])
    def test_a_pool_of_silence_is_refused(self, tmp_path: Path, rows: list[object]):
        with pytest.raises(TraceError, match="no client of the pool sends any request"):
            open_trace(pool(tmp_path, {"trace_rows": rows}))

    def test_a_rate_that_memory_cannot_hold_is_refused_before_anything_is_drawn(self, tmp_path: Path):
        path = pool(tmp_path, *({"client": number, "trace_rows": pattern(rate="60")} for number in range(2)))

        with pytest.raises(TrafficSpecError, match=f"120,000 requests/s, of which at most {MAX_POOL_RATE:,.0f}"):
            open_trace(path, TraceOptions(rate_scale=1000))

    def test_the_most_bursty_patterns_that_are_taken_end(self, tmp_path: Path):
        kinds = [("Gamma", "0.001"), ("Weibull", "0.1")]
        rows = [{"client": n, "trace_rows": pattern(kind=kind, shape=shape)} for n, (kind, shape) in enumerate(kinds)]

        arrivals = list(open_trace(pool(tmp_path, *rows)))

        assert 0 < len(arrivals) < 1_000_000
        assert all(0 <= arrival.at_ns < 600 * NANOS_PER_S for arrival in arrivals)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (f'{{"requests": {DIGITS}}}', "too many digits"),
        (f'{{"a": {DEEP}', "nested too deeply"),
        ('{"requests": 5, "org": "\\ud800"}', "half of a character"),
        ("requests=5,org=\udcff", "this is not text"),
    ],
)
def test_a_generator_that_cannot_be_read_is_refused(spec: str, problem: str):
    with pytest.raises(TrafficSpecError, match=problem):
        parse_generator(spec)
