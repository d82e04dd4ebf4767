"""`evenflow scheduling-policies`: which policies the engines decide by; the same as `evenflow engines`, by its noun."""

import typer

from gateway.cli.engines import list_, set_policy

app = typer.Typer(help="What the engines decide by, switched while they run.", no_args_is_help=True)
app.command("list")(list_)
app.command("set")(set_policy)
