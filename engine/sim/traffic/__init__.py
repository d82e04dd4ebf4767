"""Requests over time: traces that are read, traffic that is drawn, tenants, and scaling."""

from engine.sim.traffic.errors import TraceError, TrafficSpecError
from engine.sim.traffic.formats import FORMATS, TraceOptions, open_trace
from engine.sim.traffic.generate import GeneratorSpec, generate, parse_generator
from engine.sim.traffic.json_traces import write_jsonl
from engine.sim.traffic.reshape import Load, Shape, load_of, merge_traces, reshape, stretch_for_load
from engine.sim.traffic.row import Arrival, Traffic
from engine.sim.traffic.source import TrafficSource, open_traffic
from engine.sim.traffic.trace import Trace

__all__ = [
    "FORMATS",
    "Arrival",
    "GeneratorSpec",
    "Load",
    "Shape",
    "Trace",
    "TraceError",
    "TraceOptions",
    "Traffic",
    "TrafficSource",
    "TrafficSpecError",
    "generate",
    "load_of",
    "merge_traces",
    "open_trace",
    "open_traffic",
    "parse_generator",
    "reshape",
    "stretch_for_load",
    "write_jsonl",
]
