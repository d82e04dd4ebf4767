"""Writes the boards beside this file, which Grafana imports as they are: `python deploy/grafana/build.py [--check]`.

Grafana's own builders make the JSON, so that its format is theirs; what is asked of Prometheus is in the
modules beside this one. With --check nothing is written, and the exit code says whether every file is what would be.
"""

import sys
from pathlib import Path

from engine_board import ENGINES
from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, StackingMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh
from objectives_board import OBJECTIVES
from parts import Board, Panel
from plumbing_board import PLUMBING
from service_board import SERVICE
from tenants_board import TENANTS

FOLDER = Path(__file__).parent
BOARDS = (SERVICE, TENANTS, ENGINES, PLUMBING, OBJECTIVES)
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
PANEL_WIDTH, PANEL_HEIGHT = 8, 8  # of a grid that is 24 wide


def rendered(board: Board) -> str:
    """The board as a file's text."""
    built = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags(["evenflow"])
        .editable()
        .refresh("30s")
        .time("now-1h", "now")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for name, query in board.variables:
        built = built.with_variable(variable(name, query))
    for title, panels in board.rows:
        built = built.with_row(dashboard.Row(title))
        for panel in panels:
            built = built.with_panel(lines(panel))
    return JSONEncoder(sort_keys=True, indent=2).encode(built.build()) + "\n"


def variable(name: str, query: str) -> dashboard.QueryVariable:
    """A choice among a label's values, of which several, or all, can be taken."""
    return (
        dashboard.QueryVariable(name)
        .query(query)
        .datasource(SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(multi=True)
        .include_all(include_all=True)
        .all_value(".*")
    )


def lines(panel: Panel) -> timeseries.Panel:
    """One panel, lines over time."""
    built = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.description)
        .datasource(SOURCE)
        .unit(panel.unit)
        .min(0)
        .span(PANEL_WIDTH)
        .height(PANEL_HEIGHT)
        .fill_opacity(30 if panel.is_stacked else 5)
        .legend(common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).show_legend(show_legend=True))
    )
    if panel.is_stacked:
        built = built.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    for index, (query, legend) in enumerate(panel.queries):
        built = built.with_target(
            prometheus.Dataquery().expr(query).legend_format(legend).ref_id(chr(ord("A") + index))
        )
    return built


def main(arguments: list[str]) -> int:
    texts = {FOLDER / f"{board.uid.removeprefix('evenflow-')}.json": rendered(board) for board in BOARDS}
    if "--check" in arguments:
        stale = [path.name for path, text in texts.items() if not path.exists() or path.read_text() != text]
        for name in stale:
            print(f"{name} is not what build.py makes")
        return 1 if stale else 0
    for path, text in texts.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
