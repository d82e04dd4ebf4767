"""Verdicts of the suite, shown as a table and as JSON."""

import math
from collections import abc
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from engine.commands.simulation.output import table_console, write_json
from engine.sim.suite import Bench, Check, Scenario, Verdict

MISSED = "✗"


def show(
    scenarios: abc.Sequence[Scenario], bench: Bench, verdicts: abc.Sequence[Verdict], json_file: Path | None
) -> None:
    """On stdout and in the file, if there is one; JSON only where the file is stdout."""
    if str(json_file) != "-":
        given, stdout = bench.options, table_console()
        head = f"C = {bench.work_per_s:,.0f} work/s on cost line {given.line.name}, seed {given.seed}"
        stdout.print(f"{head}, scale {given.scale:g}")
        stdout.print(verdict_table(scenarios, verdicts))
        stdout.print(summary(verdicts))
    write_json(json_file, {"work_per_s": bench.work_per_s, "verdicts": verdicts_to_json(verdicts)})


def verdict_table(scenarios: abc.Sequence[Scenario], verdicts: abc.Sequence[Verdict]) -> Table:
    """A line for each promise, a column for each policy."""
    policies = list(dict.fromkeys(verdict.policy for verdict in verdicts))
    table = Table(header_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("scenario")
    table.add_column("promise")
    table.add_column("line", justify="right")
    for policy in policies:
        table.add_column(policy, justify="right")
    by_key = {(verdict.scenario, verdict.policy): verdict for verdict in verdicts}
    for scenario in scenarios:
        of_scenario = [by_key[scenario.name, policy] for policy in policies if (scenario.name, policy) in by_key]
        for index, checks in enumerate(zip(*(verdict.checks for verdict in of_scenario), strict=True)):
            title = f"{scenario.name} {scenario.title}" if index == 0 else ""
            has_one_line = len({check.line for check in checks}) == 1
            line = f"{'≤' if checks[0].is_upper else '≥'} {_figure(checks[0].line) if has_one_line else 'its line'}"
            table.add_row(title, checks[0].name, line, *(_cell(check, has_one_line=has_one_line) for check in checks))
        for verdict in of_scenario:
            for fault in verdict.policy_faults:
                table.add_row("", f"[red]{fault}")
    return table


def summary(verdicts: abc.Sequence[Verdict]) -> str:
    """How many lines each policy missed, in one line."""
    parts = []
    for policy in dict.fromkeys(verdict.policy for verdict in verdicts):
        checks = [check for verdict in verdicts if verdict.policy == policy for check in verdict.checks]
        num_faults = sum(len(verdict.policy_faults) for verdict in verdicts if verdict.policy == policy)
        fault = ", and failed as a policy" if num_faults else ""
        parts.append(f"{policy} missed {sum(not check.passed for check in checks)} of {len(checks)}{fault}")
    return f"{MISSED} marks a line that is missed: {'; '.join(parts)}"


def verdicts_to_json(verdicts: abc.Iterable[Verdict]) -> list[dict[str, Any]]:
    """One object a verdict."""
    return [
        {
            "scenario": verdict.scenario,
            "policy": verdict.policy,
            "passed": verdict.passed,
            "policy_faults": list(verdict.policy_faults),
            "checks": [
                {"name": check.name, "value": _finite(check.value), "line": _finite(check.line), "passed": check.passed}
                for check in verdict.checks
            ],
        }
        for verdict in verdicts
    ]


def _cell(check: Check, *, has_one_line: bool) -> str:
    """The value; with its line, where that follows from each policy's own run. Marked where it misses the line."""
    color = "green" if check.passed else "red"
    line = "" if has_one_line else f" / {_figure(check.line)}"
    mark = "" if check.passed else f"{MISSED} "
    return f"[{color}]{mark}{_figure(check.value)}[/]{line}"


def _figure(value: float) -> str:
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _finite(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None
