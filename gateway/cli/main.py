"""The root of `evenflow`: its own commands, and those that installed packages add to the group `evenflow.commands`.

A plug-in that cannot be loaded keeps its place in the list and says what is wrong when it is called; every other
command works. Own commands cannot be replaced.
"""

from collections import abc
from importlib.metadata import EntryPoint, entry_points, version
from typing import Annotated

import typer

from gateway.cli import (
    audit,
    classes,
    engines,
    generations,
    issuers,
    key_ends,
    models,
    orgs,
    policy_commands,
    queue,
    quota,
    roles,
    scheduling_policies,
    teams,
    usage,
)
from gateway.cli.chat import chat
from gateway.cli.command import command
from gateway.cli.demo import demo
from gateway.cli.errors import CliError
from gateway.cli.gateway_command import bootstrap, gateway
from gateway.cli.status import status
from gateway.cli.top import top
from gateway.cli.up import up

COMMAND_GROUP = "evenflow.commands"
EPILOG = "Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 gateway not reached, 130 ended by Ctrl-C."
# What `up` does not know goes to the engine.
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def main() -> None:
    """Run the command line."""
    build_app(entry_points(group=COMMAND_GROUP))(prog_name="evenflow")


def build_app(plugins: abc.Iterable[EntryPoint]) -> typer.Typer:
    """All commands. A plug-in is a typer.Typer or a function."""
    app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, epilog=EPILOG)
    app.callback()(root)
    add_own(app)
    own = {info.name for info in app.registered_commands} | {group.name for group in app.registered_groups}
    for plugin in sorted(plugins, key=lambda plugin: plugin.name):
        if plugin.name not in own:
            add_plugin(app, plugin)
    return app


def add_own(app: typer.Typer) -> None:
    """`app` has the commands of this package, in the order of its help."""
    app.command("up", context_settings=PASS_ON)(up)
    app.command("demo")(demo)
    app.command("gateway")(gateway)
    app.command("bootstrap")(bootstrap)
    app.command("status")(status)
    app.command("top")(top)
    app.command("chat")(chat)
    app.add_typer(orgs.app, name="orgs")
    app.add_typer(teams.app, name="teams")
    app.add_typer(key_ends.app, name="keys")
    app.add_typer(classes.app, name="classes")
    app.add_typer(policy_commands.app, name="quota-policies")
    app.add_typer(quota.app, name="quota")
    app.add_typer(engines.app, name="engines")
    app.add_typer(models.app, name="model")
    app.add_typer(scheduling_policies.app, name="scheduling-policies")
    app.add_typer(issuers.app, name="issuers")
    app.add_typer(roles.app, name="roles")
    app.add_typer(audit.app, name="audit")
    app.add_typer(usage.app, name="usage")
    app.add_typer(queue.app, name="queue")
    app.add_typer(generations.app, name="generations")


def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=lambda value: print_version(value), is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Evenflow: a multi-tenant, fair-scheduling gateway with its own LLM inference engine."""


def print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"evenflow {version('evenflow')}")
        raise typer.Exit


def add_plugin(app: typer.Typer, plugin: EntryPoint) -> None:
    """`app` has the command that `plugin` offers, or one that tells why it has not."""
    try:
        offered = plugin.load()
    except Exception as error:  # noqa: BLE001 - foreign code: whatever it raises must not take other commands along
        app.command(plugin.name, help="(cannot be loaded)", context_settings=PASS_ON)(_broken(plugin, error))
        return
    if isinstance(offered, typer.Typer):
        app.add_typer(offered, name=plugin.name)
    else:
        app.command(plugin.name)(offered)


def _broken(plugin: EntryPoint, error: Exception) -> abc.Callable[[], None]:
    @command
    def run() -> None:
        raise CliError(f"the command {plugin.name!r} ({plugin.value}) cannot be loaded: {error}") from error

    return run


if __name__ == "__main__":
    main()
