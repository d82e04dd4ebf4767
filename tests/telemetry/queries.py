"""What a query asks for: the names of the metrics in it, by a parser of Prometheus's language that is not ours."""

import json
import re
from collections import abc
from pathlib import Path

import promql_parser
import yaml

from engine.server import metric_names as engine_names
from gateway import metric_names as gateway_names

ROOT = Path(__file__).parents[2]
BOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))
RULE_FILES = sorted((ROOT / "deploy/prometheus").glob("[ra]*s.yml"))
SUFFIXES = ("", "_total", "_bucket", "_sum", "_count")
LABEL_VALUES = re.compile(r"label_values\((.*), \w+\)")
PROMETHEUS_OWN = frozenset({"up", "ALERTS"})


def metrics_of(query: str) -> set[str]:
    """Raises ValueError if it is no query."""
    return set(_names(promql_parser.parse(query)))


def _names(node: object) -> abc.Iterator[str]:
    if isinstance(node, promql_parser.VectorSelector):
        yield node.name
        return
    for part in ("expr", "lhs", "rhs", "vector_selector", "param"):
        if (inner := getattr(node, part, None)) is not None and not isinstance(inner, str):
            yield from _names(inner)
    for argument in getattr(node, "args", None) or ():
        yield from _names(argument)


def board_queries() -> list[tuple[str, str]]:
    """(board and panel, query), the variables replaced by what stands for all."""
    boards = {path.stem: json.loads(path.read_text()) for path in BOARDS}
    found = [
        (f"{name}: {panel['title']}", _plain(target["expr"]))
        for name, board in boards.items()
        for panel in board["panels"]
        for target in panel.get("targets", ())
    ]
    variables = [(name, one) for name, board in boards.items() for one in board["templating"]["list"]]
    found += [
        (f"{name}: ${one['name']}", LABEL_VALUES.sub(r"\1", one["query"]))
        for name, one in variables
        if one["type"] == "query"
    ]
    return found


def _plain(query: str) -> str:
    return query.replace("$__rate_interval", "5m").replace("$tenant", ".*").replace("$instance", ".*")


def rules() -> list[dict]:
    """Every recording and alerting rule."""
    files = [yaml.safe_load(path.read_text()) for path in RULE_FILES]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def exported_names() -> set[str]:
    """Of both processes, with what histograms and counters append."""
    return {
        value + suffix
        for module in (gateway_names, engine_names)
        for name, value in vars(module).items()
        if name.startswith("METRIC_")
        for suffix in SUFFIXES
    }


def known_names() -> set[str]:
    """What a query may ask for."""
    return exported_names() | {rule["record"] for rule in rules() if "record" in rule} | PROMETHEUS_OWN
