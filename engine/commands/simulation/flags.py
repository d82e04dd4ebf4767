"""The options that several sub-commands of `evenflow sim` have, each with its help."""

from pathlib import Path
from typing import Annotated

import typer

Traces = Annotated[
    list[str] | None,
    typer.Option("--trace", metavar="FILE[,NAME=VALUE...]", help="A trace to replay; repeatable, merged on one clock."),
]
Generators = Annotated[
    list[str] | None,
    typer.Option("--generate", metavar="SPEC", help="Made-up traffic, as tenants=8,rate=4,requests=1000; repeatable."),
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy", metavar="NAME[:OPTION=VALUE,...]", help="Scheduling policy; repeatable. Default: fair, fcfs."
    ),
]
Preemption = Annotated[str, typer.Option("--preemption-policy", metavar="NAME[:OPTION=VALUE,...]", help="Victims.")]
Costs = Annotated[
    str, typer.Option("--costs", metavar="NAME|FILE", help="a10g, cpu, or a file that evenflow profile wrote.")
]
Tenants = Annotated[
    str, typer.Option("--tenants", metavar="RULE", help="column, conversation:N, zipf:N or single, for traces without.")
]
Folder = Annotated[
    Path | None, typer.Option("--traces", metavar="DIR", help="Where traces lie. Else EVENFLOW_TRACES says it.")
]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write JSON; - is stdout, alone.")]
Load = Annotated[
    float | None, typer.Option("--load", help="Stretch the traffic to this part of the engines' capacity.")
]
Rows = Annotated[int, typer.Option("--max-num-seqs", min=1)]
Batch = Annotated[int, typer.Option("--max-num-batched-tokens", min=1)]
BlockSize = Annotated[int, typer.Option("--block-size", min=1)]
DeviceBlocks = Annotated[int, typer.Option("--num-device-blocks", min=1)]
HostBlocks = Annotated[int, typer.Option("--num-host-blocks", min=0)]
Context = Annotated[int, typer.Option("--max-model-len", min=1)]
PrefixCaching = Annotated[
    bool,
    typer.Option("--enable-prefix-caching", help="Share what prompts of one tenant begin with, where a trace says."),
]
Seed = Annotated[int, typer.Option("--seed", help="Of everything that is drawn.")]
