"""What the command line says about traffic, as one trace."""

from collections import abc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.sim.json_text import is_text
from engine.sim.traffic.errors import TrafficSpecError
from engine.sim.traffic.formats import TraceOptions, open_trace
from engine.sim.traffic.generate import generate, parse_generator
from engine.sim.traffic.reshape import Shape, merge_traces, reshape
from engine.sim.traffic.tenants import tenant_rule
from engine.sim.traffic.trace import Trace

NO_CHANGE = Shape()
TRACE_SETTINGS = ("format", "tenants", "org", "scale", "spread", "seed")


@dataclass(frozen=True, slots=True)
class TrafficSource:
    """Everything is merged on one clock, then shaped.

    traces      PATH[,NAME=VALUE...]: format, tenants (a rule), org, scale (of a ServeGen pool's rates), spread (yes or
                no: the ticks of a Mooncake clock), seed
    generators  see `generate.py`; a flood laid over a trace is one of them
    tenants     the rule for traces that name none of their own
    seed        for all that names no other
    """

    traces: tuple[str, ...] = ()
    generators: tuple[str, ...] = ()
    tenants: str = "column"
    shape: Shape = NO_CHANGE
    seed: int = 0


def open_traffic(source: TrafficSource, folder: Path | None = None) -> Trace:
    """The traffic; a trace that is not found as it is named is looked for in `folder`, with and without its endings.

    Raises TraceError and TrafficSpecError.
    """
    tenant_rule(source.tenants, "")  # refused also where every row has its tenant
    traces = [_open(spec, source, folder) for spec in source.traces]
    traces += [generate(parse_generator(spec, source.seed)) for spec in source.generators]
    if not traces:
        raise TrafficSpecError("", "there is no traffic: give --trace FILE or --generate NAME=VALUE,…")
    return reshape(merge_traces(traces), source.shape)


def _open(spec: str, source: TrafficSource, folder: Path | None) -> Trace:
    name, settings = _split(spec)
    options = TraceOptions(tenants=source.tenants, seed=source.seed)
    for key, word in settings:
        try:
            if not is_text(word):
                raise ValueError(word)
            options = replace(options, **_option(key, word))
        except ValueError:
            raise TrafficSpecError(spec, f"{key}={word} is not understood") from None
    return open_trace(_find(Path(name), folder), options)


def _split(spec: str) -> tuple[str, list[tuple[str, str]]]:
    """The path, and the settings after it. A comma that no setting follows belongs to the path."""
    path, settings = spec, list[tuple[str, str]]()
    while True:
        head, comma, tail = path.rpartition(",")
        key, equals, word = tail.partition("=")
        if not comma or not equals or key not in TRACE_SETTINGS:
            return path, settings[::-1]
        path = head
        settings.append((key, word))


def _option(key: str, word: str) -> dict[str, Any]:  # the options have many types
    if key == "scale":
        return {"rate_scale": float(word)}
    if key == "seed":
        if not word.isdecimal():
            raise ValueError(word)
        return {"seed": int(word)}
    if key == "spread":
        if word not in ("yes", "no"):
            raise ValueError(word)
        return {"spread_ticks": word == "yes"}
    return {{"org": "organization"}.get(key, key): word}


def _find(path: Path, folder: Path | None) -> Path:
    if path.exists() or folder is None:
        return path
    candidates: abc.Iterable[Path] = (folder / f"{path}{end}" for end in ("", ".csv.gz", ".jsonl.gz", ".csv", ".jsonl"))
    return next((candidate for candidate in candidates if candidate.is_file()), path)
