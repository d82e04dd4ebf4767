"""The simulator against the live engine on the same traffic: both sides' figures, the error, and the order of policies.

The cost line is the file that was given, or is profiled in this process before the first run. Where live runs are
repeated, an error counts against twice their own spread, if that is larger than the line.
"""

import math
from collections import abc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from engine.commands.profiling.profile import profile_line
from engine.commands.simulation.live import LiveEngine, LiveSize
from engine.commands.simulation.options import at_load
from engine.commands.simulation.output import table_console, write_json
from engine.decision_log import PolicyChoice
from engine.sim.cost_lines import load_cost_line
from engine.sim.metrics.recorder import ENDED_BY_ITSELF
from engine.sim.run import Setup, policy_label, simulate
from engine.sim.samples import Samples, percentile
from engine.sim.traffic.trace import Trace

P50_LINE, P99_LINE = 0.05, 0.10

__all__ = ["Comparison", "LiveSize", "Plan", "comparison_table", "comparisons_to_json", "show", "validate"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to compare. `load` stretches the traffic to that part of the capacity that the cost line says."""

    policies: tuple[PolicyChoice, ...]
    preemption: PolicyChoice
    costs: str | None = None
    load: float | None = None
    num_repeats: int = 1


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure under one policy, seconds. `live` has one value a run."""

    name: str
    live: tuple[float, ...]
    simulated: float
    line: float

    @property
    def error(self) -> float:
        return self.simulated / percentile(self.live, 0.5) - 1

    @property
    def is_close(self) -> bool:
        return abs(self.error) <= self.allowed

    @property
    def allowed(self) -> float:
        """The line, or twice the spread of the live runs over their median, where that is larger."""
        spread = (max(self.live) - min(self.live)) / percentile(self.live, 0.5)
        return max(self.line, 2 * spread)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One policy, both ways. `step_over_line`: the live steps' time over what the line says of the same plans."""

    traffic: str
    policy: str
    figures: tuple[Figure, ...]
    live_tokens_per_s: float
    simulated_tokens_per_s: float
    step_over_line: float


def validate(traffic: Trace, size: LiveSize, plan: Plan) -> list[Comparison]:
    """Both ways under each policy. Raises SettingsError, ModelError, CostLineError."""
    live = LiveEngine(size.load())
    return compare(live, traffic, plan)


def compare(live: LiveEngine, traffic: Trace, plan: Plan) -> list[Comparison]:
    """The same with a model that is loaded."""
    line = load_cost_line(plan.costs) if plan.costs else profile_line(live.backend)
    base = Setup(live.config, line, plan.policies[0], plan.preemption)
    shaped = traffic if plan.load is None else at_load(traffic, plan.load, base)
    arrivals = list(shaped)
    comparisons = []
    for policy in plan.policies:
        setup = Setup(live.config, line, policy, plan.preemption)
        simulated = Samples()
        run = simulate(setup, arrivals, simulated)
        runs, ends, speeds = [], [], []
        for _ in range(plan.num_repeats):
            samples = Samples()
            ends.append(live.run(setup, arrivals, samples))
            runs.append(samples)
            speeds.append(live.step_ns / live.line_ns)
        comparisons.append(
            Comparison(
                shaped.name,
                policy_label(policy),
                _figures(runs, simulated),
                runs[0].num_output_tokens / (ends[0] / 1e9),
                simulated.num_output_tokens / (run.ended_at / 1e9),
                percentile(speeds, 0.5),
            )
        )
    return comparisons


def _figures(live: abc.Sequence[Samples], simulated: Samples) -> tuple[Figure, ...]:
    figures = []
    for name, share, line in (("p50", 0.5, P50_LINE), ("p99", 0.99, P99_LINE)):
        for title, read in (("TTFT", _ttfts), ("completion", _latencies)):
            values = tuple(percentile(read(samples), share) for samples in live)
            figures.append(Figure(f"{title} {name}", values, percentile(read(simulated), share), line))
    return tuple(figures)


def _ttfts(samples: Samples) -> list[float]:
    return [ttft for sample in samples.by_id.values() if (ttft := sample.ttft_s) is not None]


def _latencies(samples: Samples) -> list[float]:
    """Of requests that ended by themselves: how long a client waited that gave up says nothing about the engine."""
    ended = [sample for sample in samples.by_id.values() if sample.reason in ENDED_BY_ITSELF]
    return [latency for sample in ended if (latency := sample.latency_s) is not None]


def show(comparisons: abc.Sequence[Comparison], json_file: Path | None) -> None:
    """On stdout and in the file, if there is one; JSON only where the file is stdout."""
    if str(json_file) != "-":
        stdout = table_console()
        stdout.print(comparison_table(comparisons))
        for line in verdict_lines(comparisons):
            stdout.print(line, markup=False, highlight=False)
    write_json(json_file, comparisons_to_json(comparisons))


def comparison_table(comparisons: abc.Sequence[Comparison]) -> Table:
    """A line a figure; errors within what is allowed are green, others have a mark."""
    table = Table(header_style="bold", box=box.SIMPLE_HEAD)
    for column in ("traffic", "policy", "figure", "live", "simulated", "error", "allowed"):
        table.add_column(column, justify="left" if column in ("traffic", "policy", "figure") else "right")
    for each in comparisons:
        for figure in each.figures:
            error = f"[green]{figure.error:+.1%}[/]" if figure.is_close else f"[red]✗ {figure.error:+.1%}[/]"
            live = " / ".join(f"{value:.3f} s" for value in figure.live)
            cells = (f"{figure.simulated:.3f} s", error, f"{figure.allowed:.1%}")
            table.add_row(each.traffic, each.policy, figure.name, live, *cells)
        rates = (f"{each.live_tokens_per_s:.1f}", f"{each.simulated_tokens_per_s:.1f}")
        rate_error = each.simulated_tokens_per_s / each.live_tokens_per_s - 1
        table.add_row(each.traffic, each.policy, "output tokens/s", *rates, f"{rate_error:+.1%}", "")
        table.add_row(each.traffic, each.policy, "step over line", f"{each.step_over_line:.3f}", "1", "", "")
    return table


def verdict_lines(comparisons: abc.Sequence[Comparison]) -> list[str]:
    """Whether the figures are within what is allowed, and whether each puts the policies in the same order."""
    figures = [(each.policy, figure) for each in comparisons for figure in each.figures]
    outside = [f"{policy} {figure.name} by {figure.error:+.1%}" for policy, figure in figures if not figure.is_close]
    problem = f"; outside: {', '.join(outside)}" if outside else ""
    lines = [f"error: {len(figures) - len(outside)} of {len(figures)} figures are within what is allowed{problem}"]
    for name in dict.fromkeys(figure.name for _, figure in figures) if len(comparisons) > 1 else ():
        live, simulated = (order_of(comparisons, name, live=side) for side in (True, False))
        order = " < ".join(live)
        is_same = "the same" if live == simulated else f"another, {' < '.join(simulated)}"
        lines.append(f"order of policies by {name}: live {order}, simulated {is_same}")
    return lines


def comparisons_to_json(comparisons: abc.Iterable[Comparison]) -> list[dict[str, Any]]:
    """One object a policy and traffic."""
    return [
        {
            "traffic": each.traffic,
            "policy": each.policy,
            "figures": {
                figure.name: {
                    "live": list(figure.live),
                    "simulated": figure.simulated,
                    "error": figure.error if math.isfinite(figure.error) else None,
                    "allowed": figure.allowed,
                }
                for figure in each.figures
            },
            "live_tokens_per_s": each.live_tokens_per_s,
            "simulated_tokens_per_s": each.simulated_tokens_per_s,
            "step_over_line": each.step_over_line,
        }
        for each in comparisons
    ]


def order_of(comparisons: abc.Iterable[Comparison], name: str, *, live: bool) -> list[str]:
    """Policies, the one with the smallest figure first."""
    ranked = []
    for each in comparisons:
        figure = next(figure for figure in each.figures if figure.name == name)
        ranked.append((percentile(figure.live, 0.5) if live else figure.simulated, each.policy))
    return [policy for _, policy in sorted(ranked)]
