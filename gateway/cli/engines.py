"""`evenflow engines`: the policies that the engines decide by, while they run."""

from typing import Annotated

import typer

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.command import Admin, admin_command
from gateway.cli.errors import UsageError
from gateway.cli.output import Column, OutputFormat, OutputOption, print_many, stdout
from gateway.words import policy_text

app = typer.Typer(help="Engines, and the policies that they decide by.", no_args_is_help=True)

NameArgument = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Scheduling policy, such as fair. Left out, it stays.")
]
OptionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="NAME=VALUE", help="For the scheduling policy; repeatable. Left out: its default."
    ),
]
PreemptionOption = Annotated[
    str | None, typer.Option("--preemption", metavar="NAME", help="Preemption policy. Left out, it stays.")
]
PreemptionOptionOption = Annotated[
    list[str] | None,
    typer.Option("--preemption-option", metavar="NAME=VALUE", help="For the preemption policy; repeatable."),
]
EngineOption = Annotated[
    str | None, typer.Option("--engine", metavar="ADDRESS", help="Only this one; left out: every engine.")
]
ValidateOption = Annotated[bool, typer.Option("--validate-only", help="Check everything, change nothing.")]

COLUMNS: tuple[Column[pb.EngineStatus], ...] = (
    Column("ENGINE", lambda engine: engine.address),
    Column("MODEL", lambda engine: engine.model or "-"),
    Column("SCHEDULING", lambda engine: policy_text(engine.scheduling_policy, dict(engine.scheduling_options))),
    Column("PREEMPTION", lambda engine: policy_text(engine.preemption_policy, dict(engine.preemption_options))),
    Column("STATE", lambda engine: _state_text(engine)),
)


VALID = "Nothing was changed: valid."
IN_FORCE = (
    "In force from the next step on, until the engine starts again: then --scheduling-policy and --preemption-policy of"
    " evenflow up decide."
)


@app.command("list")
@admin_command
def list_(admin: Admin, output: OutputOption = OutputFormat.TABLE) -> None:
    """List the engines and their policies."""
    report = admin.call(admin.stub.GetSystemStatus, pb.GetSystemStatusRequest())
    print_many(list(report.engines), COLUMNS, output)


@app.command("set-policy")
@admin_command
def set_policy(
    admin: Admin,
    name: NameArgument = None,
    option: OptionOption = None,
    preemption: PreemptionOption = None,
    preemption_option: PreemptionOptionOption = None,
    engine: EngineOption = None,
    validate_only: ValidateOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Let the engines decide by another policy from the next step on, their counters carried over.

    Lasts until an engine starts again: what it starts with is set by --scheduling-policy.
    """
    if name is None and preemption is None:
        raise UsageError("nothing to change: give the NAME of a scheduling policy, or --preemption NAME")
    request = pb.SetSchedulingPolicyRequest(
        engine=engine or "",
        scheduling_policy=name or "",
        scheduling_options=parse_options("--option", option or ()),
        preemption_policy=preemption or "",
        preemption_options=parse_options("--preemption-option", preemption_option or ()),
        validate_only=validate_only,
    )
    response = admin.call(admin.stub.SetSchedulingPolicy, request)
    print_many(list(response.switches), switch_columns(request), output)
    if output is OutputFormat.TABLE:
        stdout().print(VALID if validate_only else IN_FORCE)


def switch_columns(request: pb.SetSchedulingPolicyRequest) -> tuple[Column[pb.PolicySwitch], ...]:
    """How the answer to `request` reads: what each engine decided by, and what by now, or would if it only checks."""
    scheduling = policy_text(request.scheduling_policy, dict(request.scheduling_options))
    preemption = policy_text(request.preemption_policy, dict(request.preemption_options))
    when = "WOULD BE" if request.validate_only else "NOW"
    return (
        Column("ENGINE", lambda switch: switch.engine),
        Column("SCHEDULING BEFORE", _scheduling_before),
        Column(when, lambda switch: scheduling or f"{_scheduling_before(switch)}, unchanged"),
        Column("PREEMPTION BEFORE", _preemption_before),
        Column(when, lambda switch: preemption or f"{_preemption_before(switch)}, unchanged"),
    )


def _scheduling_before(switch: pb.PolicySwitch) -> str:
    return policy_text(switch.previous_scheduling_policy, dict(switch.previous_scheduling_options))


def _preemption_before(switch: pb.PolicySwitch) -> str:
    return policy_text(switch.previous_preemption_policy, dict(switch.previous_preemption_options))


def parse_options(flag: str, texts: list[str] | tuple[()]) -> dict[str, str]:
    """Names and values of NAME=VALUE. Raises UsageError for anything else and for a name that comes twice."""
    options: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name or name in options:
            raise UsageError(f"{flag}: {text!r} must be NAME=VALUE, each name once")
        options[name] = value
    return options


def _state_text(engine: pb.EngineStatus) -> str:
    if not engine.reachable:
        return "NOT REACHABLE"
    return "draining" if engine.draining else "serving"
