"""From a file to a trace: which format it has, and whose its rows are."""

from collections import abc
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from engine.sim.json_text import parse_json
from engine.sim.traffic.csv_traces import CSV_FORMATS, CsvFormat, csv_rows
from engine.sim.traffic.errors import TraceError, TrafficSpecError
from engine.sim.traffic.json_traces import bailian_rows, evenflow_rows, mooncake_rows
from engine.sim.traffic.raw_rows import RawRow, to_arrivals
from engine.sim.traffic.servegen import check_rate, pool_arrivals, read_clients
from engine.sim.traffic.tenants import default_organization, tenant_rule
from engine.sim.traffic.text_lines import first_line, trace_name
from engine.sim.traffic.ticks import has_ticks, spread_over_ticks
from engine.sim.traffic.trace import RowNote, Trace

RowReader = abc.Callable[[Path], abc.Iterator[RawRow]]

JSON_READERS: dict[str, RowReader] = {"evenflow": evenflow_rows, "mooncake": mooncake_rows, "bailian": bailian_rows}
CSV_LAYOUTS: dict[str, CsvFormat] = {layout.name: layout for layout in CSV_FORMATS}
FORMATS = (*JSON_READERS, *CSV_LAYOUTS, "servegen")


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """How to read one file.

    format        one of FORMATS; found out from the content where it is None
    tenants       a rule of `tenants.py`
    organization  that the tenants belong to; from the file's name where it is None
    rate_scale    factor on the request rate of a ServeGen pool
    spread_ticks  whether a Mooncake clock of 3 s is spread; found out where it is None
    seed          of everything that is drawn
    """

    format: str | None = None
    tenants: str = "column"
    organization: str | None = None
    rate_scale: float = 1.0
    spread_ticks: bool | None = None
    seed: int = 0


def open_trace(path: Path, options: TraceOptions = TraceOptions()) -> Trace:
    """The trace in that file; its rows are read each time that it is iterated.

    Raises TraceError where the file is no trace, at once for its beginning and while iterating for the rest, and
    TrafficSpecError where the options contradict it.
    """
    name = trace_name(path)
    format_name = options.format or _detect(path)
    if format_name not in FORMATS:
        raise TrafficSpecError(format_name, f"a format is one of {', '.join(FORMATS)}")
    if format_name == "servegen":
        return _open_pool(path, name, options)
    if options.rate_scale != 1:
        raise TrafficSpecError(str(path), "a rate can be scaled for a ServeGen pool only; stretch the time instead")
    return _open_log(path, name, format_name, options)


def _open_log(path: Path, name: str, format_name: str, options: TraceOptions) -> Trace:
    layout = CSV_LAYOUTS.get(format_name)
    reader = partial(csv_rows, layout=layout) if layout else JSON_READERS[format_name]
    first = next(reader(path), None)
    if first is None:
        raise TraceError(path, None, "the trace has no rows")
    rule = tenant_rule(options.tenants, name, options.organization)
    is_spread = format_name == "mooncake" and (
        has_ticks(reader(path)) if options.spread_ticks is None else options.spread_ticks
    )

    spread = (f"{name}: arrivals spread over its clock's ticks of 3 s, seed {options.seed}",) if is_spread else ()

    def read() -> abc.Iterator[RawRow]:
        return spread_over_ticks(reader(path), options.seed) if is_spread else reader(path)

    zeros = RowNote(f"{name}: a length of 0 counts as 1")
    return Trace(
        name,
        lambda: to_arrivals(path, read(), rule, zeros),
        spread,
        first.at_ns if layout is not None and layout.is_wall_clock else None,
        (zeros,),
    )


def _open_pool(path: Path, name: str, options: TraceOptions) -> Trace:
    if options.tenants != "column":
        raise TrafficSpecError(options.tenants, "the tenants of a ServeGen pool are its clients")
    if not 0 < options.rate_scale <= 1000:
        raise TrafficSpecError(str(options.rate_scale), "the rate scale must lie above 0 and not above 1000")
    clients = read_clients(path)
    check_rate(path, clients, options.rate_scale)
    org = options.organization or name
    return Trace(
        name,
        lambda: pool_arrivals(clients, org, options.seed, options.rate_scale),
        (f"{name}: drawn from the pool's clients, seed {options.seed}, rates x {options.rate_scale:g}",),
    )


def _detect(path: Path) -> str:
    number, line = first_line(path)
    return _detect_json(path, number, line) if line.startswith("{") else _detect_csv(path, number, line)


def _detect_json(path: Path, number: int, line: str) -> str:
    try:
        record = parse_json(line)
    except ValueError as error:
        raise TraceError(path, number, str(error)) from error
    if "trace_rows" in record:
        return "servegen"
    if "chat_id" in record:
        return "bailian"
    return "evenflow" if "tenant" in record or "extra" in record else "mooncake"


def _detect_csv(path: Path, number: int, line: str) -> str:
    columns = {column.strip().strip('"') for column in line.split(",")}
    best = max(CSV_FORMATS, key=lambda layout: len(columns.intersection(layout.required)))
    if not columns.intersection(best.required):
        known = "; ".join(f"{layout.name}: {', '.join(layout.required)}" for layout in CSV_FORMATS)
        raise TraceError(path, number, f"no known format begins like this (columns of the CSV formats: {known})")
    return best.name


__all__ = ["FORMATS", "TraceOptions", "default_organization", "open_trace"]
