"""docs/metrics.md has every metric, and none that there is not."""

import re
from pathlib import Path

from engine.server import metric_names as engine_names
from gateway import metric_names as gateway_names

PAGE = Path(__file__).parents[2] / "docs/metrics.md"
ROW = re.compile(r"^\| `([a-z0-9_]+)` \| (counter|gauge|histogram) \|", re.MULTILINE)


def names_of(module: object) -> set[str]:
    return {value for name, value in vars(module).items() if name.startswith("METRIC_")}


def test_page_and_code_have_the_same_metrics():
    gateway, engine = PAGE.read_text().split("## The engine's page", 1)

    assert {name.removesuffix("_total") for name, _ in ROW.findall(gateway)} == names_of(gateway_names)
    assert {name.removesuffix("_total") for name, _ in ROW.findall(engine)} == names_of(engine_names)


def test_counters_and_nothing_else_end_in_total():
    for name, kind in ROW.findall(PAGE.read_text()):
        assert name.endswith("_total") == (kind == "counter"), name


def test_names_begin_as_ours_or_as_the_conventions_do():
    for name in names_of(gateway_names) | names_of(engine_names):
        assert name.startswith(("evenflow_", "gen_ai_server_", "rpc_server_", "http_server_"))
