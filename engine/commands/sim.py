"""`evenflow sim`: policies in virtual time, on traces or made-up traffic, before anyone switches them on.

Progress goes to stderr, results to stdout. Nothing here decides anything: `engine.sim` runs, `engine.sim.report` shows.
"""

from collections import abc
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console

from engine.commands.simulation import flags, options, output, suite_table
from engine.commands.simulation.progress import traffic_progress
from engine.core.types import Nanos
from engine.decision_log import PolicyChoice
from engine.sim.cost_lines import load_cost_line
from engine.sim.errors import ReplayError, ScenarioError
from engine.sim.metrics import Outcome, Recorder, RecorderOptions
from engine.sim.replay import Difference
from engine.sim.replay import replay as replay_log
from engine.sim.report import outcome_tables, to_json_text, write_picture
from engine.sim.run import Setup, parse_policy, policy_label, simulate
from engine.sim.scenarios import SCENARIOS
from engine.sim.scenarios_at_scale import SCENARIOS as SCENARIOS_AT_SCALE
from engine.sim.suite import REFERENCE, Bench, Options, Scenario, Verdict
from engine.sim.traffic.reshape import Shape
from engine.sim.traffic.row import NANOS_PER_S
from engine.sim.traffic.source import TrafficSource, open_traffic
from engine.sim.traffic.text_lines import text_lines
from engine.sim.traffic.trace import Trace

EXIT_DIFFERENT = 1

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True, help="Run policies in virtual time."
)


class Span(NamedTuple):
    """When a run stops, if not at its end, and what of its beginning is left out of percentiles."""

    until: Nanos | None
    warm_up_ns: int

    @classmethod
    def of(cls, until_s: float | None, warm_up_s: float) -> "Span":
        """From seconds."""
        until = None if until_s is None else Nanos(round(until_s * NANOS_PER_S))
        return cls(until, round(warm_up_s * NANOS_PER_S))


@app.command()
def run(
    trace: flags.Traces = None,
    generate: flags.Generators = None,
    policy: flags.Policies = None,
    preemption_policy: flags.Preemption = "over_served",
    costs: flags.Costs = "a10g",
    tenants: flags.Tenants = "column",
    traces: flags.Folder = None,
    load: flags.Load = None,
    weight: Annotated[list[str] | None, typer.Option("--weight", metavar="PATH=NUMBER")] = None,
    priority_class: Annotated[list[str] | None, typer.Option("--class", metavar="NAME=RANK[:MIN_SHARE]")] = None,
    engines: Annotated[int, typer.Option("--engines", min=1, help="Engines that share the traffic.")] = 1,
    max_num_seqs: flags.Rows = 64,
    max_num_batched_tokens: flags.Batch = 2048,
    block_size: flags.BlockSize = 16,
    num_device_blocks: flags.DeviceBlocks = 4096,
    num_host_blocks: flags.HostBlocks = 4096,
    max_model_len: flags.Context = 131_072,
    preemption_mode: Annotated[str, typer.Option("--preemption", metavar="auto|swap|recompute")] = "auto",
    enable_prefix_caching: flags.PrefixCaching = False,
    max_requests: Annotated[int | None, typer.Option("--max-requests", min=1)] = None,
    max_seconds: Annotated[float | None, typer.Option("--max-seconds", help="Of the traffic.")] = None,
    until: Annotated[float | None, typer.Option("--until", help="Stop at that virtual second, done or not.")] = None,
    length_divisor: Annotated[int, typer.Option("--length-divisor", min=1, help="Divide all lengths.")] = 1,
    warm_up: Annotated[float, typer.Option("--warm-up", min=0, help="Virtual seconds left out of percentiles.")] = 0.0,
    seed: flags.Seed = 0,
    json: flags.JsonFile = None,
    picture: Annotated[Path | None, typer.Option("--picture", metavar="FILE.png")] = None,
    decision_log: Annotated[Path | None, typer.Option("--decision-log", metavar="FILE")] = None,
) -> None:
    """Serve the same traffic under each policy and compare. The same seed gives the same bytes on any machine."""
    with output.told_in_one_line("run"):
        options.check_numbers(options.SECONDS, max_seconds=max_seconds, until=until, warm_up=warm_up)
        options.check_numbers(options.ENGINES, engines=engines)
        shape = Shape(max_requests=max_requests, max_seconds=max_seconds, length_divisor=length_divisor)
        source = _source(trace, generate, tenants, shape, seed)
        policies, victims = _policies(policy, decision_log), parse_policy(preemption_policy)
        limits = (max_num_seqs, max_num_batched_tokens, block_size, num_device_blocks, num_host_blocks, max_model_len)
        size = options.EngineSize(*limits, preemption_mode, enable_prefix_caching).config()
        tenancy = options.parse_tenancy(weight or (), priority_class or ())
        base = Setup(size, load_cost_line(costs), policies[0], victims, engines, tenancy)
        traffic = _traffic(source, options.traces_folder(traces), load, base)
        setups = [replace(base, scheduling=choice) for choice in policies]
        outcomes = [_outcome(setup, traffic, Span.of(until, warm_up), decision_log) for setup in setups]
        _show(outcomes, base, json, picture, traffic.name)


@app.command()
def suite(
    policy: flags.Policies = None,
    preemption_policy: flags.Preemption = "over_served",
    scenario: Annotated[list[str] | None, typer.Option("--scenario", metavar="S1", help="Only this one.")] = None,
    costs: flags.Costs = "cpu",
    traces: flags.Folder = None,
    scale: Annotated[float, typer.Option("--scale", min=0.01, max=1.0, help="Length of each scenario.")] = 1.0,
    seed: flags.Seed = 0,
    json: flags.JsonFile = None,
) -> None:
    """Run the scenarios that can be simulated under each policy, and print what each promises and what came of it.

    Exit code 1 if the first policy misses a line.
    """
    with output.told_in_one_line("suite"):
        options.check_numbers(options.SEEDS, seed=seed)
        folder = options.traces_folder(traces)
        chosen = _scenarios(scenario, has_traces=folder is not None)
        policies = tuple(_policies(policy))
        line, victims = load_cost_line(costs), parse_policy(preemption_policy)
        bench = Bench(Options(policies, victims, REFERENCE, line, seed, scale, folder))
        verdicts = _verdicts(chosen, bench)
        suite_table.show(chosen, bench, verdicts, json)
    if not all(verdict.passed for verdict in verdicts if verdict.policy == policy_label(policies[0])):
        raise typer.Exit(EXIT_DIFFERENT)


@app.command("check-policy")
def check_policy(name: Annotated[str, typer.Argument(metavar="NAME[:OPTION=VALUE,...]")]) -> None:
    """Run the conformance suite on an installed policy, ours or anyone's. Exit code 1 if it breaks a rule."""
    from engine.sim import conformance

    def tell(check: conformance.Check) -> None:
        console.print(f"[green]kept   [/] {check.name}" if check.passed else f"[red]broken [/] {check.name}")
        if check.reason is not None:
            console.print(f"        {check.reason}", markup=False)

    console = Console()
    with output.told_in_one_line("check-policy"):
        choice = parse_policy(name)
        reports = conformance.check_policy(choice.name, choice.options, tell)
    checks = [check for report in reports for check in report.checks]
    num_kept = sum(check.passed for check in checks)
    console.print(f"{name}: {num_kept} of {len(checks)} rules kept", markup=False, highlight=False)
    if num_kept < len(checks):
        raise typer.Exit(EXIT_DIFFERENT)


@app.command()
def replay(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="What evenflow engine --decision-log wrote.")],
) -> None:
    """Tell a decision log to a new scheduler: the same calls must give the same plans. Exit code 1 if they do not."""
    with output.told_in_one_line("replay"):
        try:
            with closing(text_lines(log)) as lines:
                report = replay_log(lines)
        except ReplayError as error:
            raise ScenarioError(f"{log}:{error.line_number}: {error.problem}") from error
    typer.echo(f"{report.num_equal:,} of {report.num_plans:,} plans are identical")
    if report.difference is not None:
        typer.echo(_difference_text(log, report.difference), err=True)
        raise typer.Exit(EXIT_DIFFERENT)


@app.command()
def validate(
    trace: flags.Traces = None,
    generate: flags.Generators = None,
    policy: flags.Policies = None,
    preemption_policy: flags.Preemption = "over_served",
    costs: Annotated[str, typer.Option("--costs", metavar="FILE", help="Of this machine. Default: measured now.")] = "",
    tenants: flags.Tenants = "column",
    traces: flags.Folder = None,
    load: flags.Load = None,
    model: Annotated[Path | None, typer.Option("--model", metavar="PATH")] = None,
    max_num_seqs: flags.Rows = 16,
    max_num_batched_tokens: flags.Batch = 256,
    num_device_blocks: flags.DeviceBlocks = 512,
    num_host_blocks: flags.HostBlocks = 512,
    max_requests: Annotated[int, typer.Option("--max-requests", min=1)] = 200,
    length_divisor: Annotated[int, typer.Option("--length-divisor", min=1)] = 1,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Live runs, for their own spread.")] = 1,
    seed: flags.Seed = 0,
    json: flags.JsonFile = None,
) -> None:
    """Serve the same traffic live, with the model in this process, and simulated; print both and the error."""
    with output.told_in_one_line("validate"):
        options.check_numbers(options.LOADS, load=load)
        shape = Shape(max_requests=max_requests, length_divisor=length_divisor)
        traffic = open_traffic(_source(trace, generate, tenants, shape, seed), options.traces_folder(traces))
        policies, victims = tuple(_policies(policy)), parse_policy(preemption_policy)
        options.check_policies(policies, victims)
        _check_validation(traffic, model, costs)
        from engine.commands.simulation import validation  # brings in the model's libraries, which takes seconds

        size = validation.LiveSize(model, max_num_seqs, max_num_batched_tokens, num_device_blocks, num_host_blocks)
        plan = validation.Plan(policies, victims, costs or None, load, repeat)
        validation.show(validation.validate(traffic, size, plan), json)


def _check_validation(traffic: Trace, model: Path | None, costs: str) -> None:
    """Raises SimulationError for what would be found out only when the model is loaded."""
    if costs:
        load_cost_line(costs)
    if model is not None and not model.exists():
        raise ScenarioError(f"--model {model}: there is no such file or folder")
    if not sum(1 for _ in traffic):
        raise ScenarioError("the traffic is empty")


def _source(
    traces: list[str] | None, generators: list[str] | None, tenants: str, shape: Shape, seed: int
) -> TrafficSource:
    options.check_numbers(options.SEEDS, seed=seed)
    return TrafficSource(tuple(traces or ()), tuple(generators or ()), tenants, shape, seed)


def _policies(names: list[str] | None, decision_log: Path | None = None) -> list[PolicyChoice]:
    policies = [parse_policy(text) for text in names or ("fair", "fcfs")]
    if decision_log is not None and len(policies) > 1:
        raise ScenarioError("a decision log is of one policy: give --policy once")
    return policies


def _traffic(source: TrafficSource, folder: Path | None, load: float | None, setup: Setup) -> Trace:
    """The traffic, stretched to `load` where one is given. Weights and classes of nobody in it are told of."""
    options.check_numbers(options.LOADS, load=load)
    traffic = open_traffic(source, folder)
    if setup.tenancy.weights or setup.tenancy.classes:
        for unused in options.unused_records(setup.tenancy, traffic):
            typer.echo(f"evenflow sim run: {unused}", err=True)
    return traffic if load is None else options.at_load(traffic, load, setup)


def _outcome(setup: Setup, traffic: Trace, span: Span, decision_log: Path | None) -> Outcome:
    """One run; a policy that failed is told of in its notes, and on stderr."""
    label = policy_label(setup.scheduling)
    notes = (*traffic.notes, options.line_note(setup.line))
    recorder = Recorder(RecorderOptions(label, setup.tenancy.weights, warm_up_ns=span.warm_up_ns, notes=notes))
    with traffic_progress(label) as advance:
        finished = simulate(setup, traffic, recorder, until=span.until, on_progress=advance, decision_log=decision_log)
    for fault in finished.policy_faults:
        typer.echo(f"evenflow sim run: {fault}; requests were served in order of arrival from then on", err=True)
    outcome = recorder.result(finished.ended_at)
    return replace(outcome, notes=(*outcome.notes, *traffic.notes_of_rows, *finished.policy_faults))


def _show(outcomes: abc.Sequence[Outcome], setup: Setup, json: Path | None, picture: Path | None, title: str) -> None:
    if str(json) != "-":
        output.table_console().print(outcome_tables(outcomes))
    if json is not None:
        output.write_text(json, to_json_text(outcomes, config=options.describe(setup)))
    if picture is not None:
        write_picture(outcomes, picture, title=title)
        typer.echo(f"picture: {picture}", err=True)


def _scenarios(names: list[str] | None, *, has_traces: bool) -> tuple[Scenario, ...]:
    known = {scenario.name: scenario for scenario in (*SCENARIOS, *SCENARIOS_AT_SCALE)}
    if names is None:
        return tuple(each for each in known.values() if has_traces or not each.name.startswith("S11"))
    for name in names:
        if name not in known:
            raise ScenarioError(f"there is no simulated scenario {name}; there are {', '.join(known)}")
    return tuple(known[name] for name in names)


def _verdicts(scenarios: abc.Iterable[Scenario], bench: Bench) -> list[Verdict]:
    """Of each scenario under each policy; stderr tells which one is running."""
    verdicts = []
    for scenario in scenarios:
        for choice in bench.options.policies:
            typer.echo(f"{scenario.name} {scenario.title}: {policy_label(choice)}", err=True)
            verdicts.append(scenario.verdict(bench, choice))
    return verdicts


def _difference_text(log: Path, difference: Difference) -> str:
    planned = "no step" if difference.plan is None else f"step {difference.plan.step_id}"
    expected = "no step" if difference.step is None else f"step {difference.step}"
    return (
        f"{log}:{difference.line_number}: the log has {expected} ({difference.expected_digest}), planned is {planned}"
    )
