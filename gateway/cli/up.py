"""`evenflow up`: database, engine and gateway on this machine, kept running until Ctrl-C or SIGTERM."""

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from gateway.bootstrap import Installation
    from gateway.cli.stack import StackSettings

from gateway.cli.command import DataDirOption, command
from gateway.cli.data_dir import DataDir
from gateway.cli.output import stderr
from gateway.settings import DEFAULT_LISTEN, GATEWAY_PREFIX, check_environment

ListenOption = Annotated[
    str,
    typer.Option("--listen", envvar="EVENFLOW_GATEWAY_LISTEN", help="HOST:PORT of the gateway; port 0: a free one."),
]
MetricsOption = Annotated[
    str | None,
    typer.Option(
        "--metrics-listen",
        envvar="EVENFLOW_GATEWAY_METRICS_LISTEN",
        help="HOST:PORT on loopback for Prometheus; unset: a free port; off: none.",
    ),
]
TlsCertOption = Annotated[
    Path | None,
    typer.Option("--tls-cert", envvar=f"{GATEWAY_PREFIX}TLS_CERT", help="PEM file: the certificate and its chain."),
]
TlsKeyOption = Annotated[
    Path | None,
    typer.Option("--tls-key", envvar=f"{GATEWAY_PREFIX}TLS_KEY", help="PEM file: the certificate's key."),
]
ClientCaOption = Annotated[
    Path | None,
    typer.Option("--client-ca", envvar=f"{GATEWAY_PREFIX}CLIENT_CA", help="PEM file: only clients certified by it."),
]


@command
def up(
    context: typer.Context,
    listen: ListenOption = DEFAULT_LISTEN,
    metrics_listen: MetricsOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    client_ca: ClientCaOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Start everything on this machine: database, engine and gateway.

    Any other option goes to the engine, such as --model PATH, --scheduling-policy NAME, --max-num-seqs N or
    --num-device-blocks N (see evenflow engine --help), and so do EVENFLOW_ENGINE_* variables. EVENFLOW_DATABASE_URL
    takes an outside Postgres instead of the embedded one. With --tls-cert and --tls-key, EVENFLOW_CA_CERT says whom the
    commands on this machine trust.
    """
    # Here, so that other commands do not wait for the database's packages.
    from gateway.cli.running import Session, run_stack
    from gateway.cli.stack import StackSettings, listen_address
    from gateway.cli.up_settings import GatewayOptions, check_engine

    # Now, rather than when a part starts: nothing is brought up that a misspelt word would take down again.
    check_environment(os.environ)
    gateway_flags = GatewayOptions(metrics_listen, tls_cert, tls_key, client_ca).flags()
    check_engine(context.args, os.environ)
    directory = DataDir.at(data_dir)
    with directory.lock() as lock, directory.socket_dir() as sockets:
        settings = StackSettings(
            data_dir=directory,
            sockets=sockets,
            listen=listen_address(listen),
            environment=os.environ,
            engine_flags=tuple(context.args),
            gateway_flags=gateway_flags,
        )
        lock.describe(settings.address)

        async def keep_up(session: Session) -> None:
            with session.board:
                installation = await session.stack.bring_up()
            directory.endpoint.write_text(settings.address + "\n")
            greet(session.console, settings, installation)
            await session.supervisor.guard(asyncio.Event().wait())

        asyncio.run(run_stack(settings, stderr(), keep_up))


def greet(console: Console, settings: "StackSettings", installation: "Installation") -> None:
    """What runs where, and what to do next."""
    evenflow = command_name()
    console.print(
        f"\nEvenflow serves on {settings.address}, with its data in {settings.data_dir.path}. Ctrl-C ends it."
    )
    if installation.has_new_admin_key:
        console.print(f"A new administrator's key is in {installation.admin_key_file}; commands find it there.")
    console.print("\nNext, in another terminal:")
    if settings.data_dir != DataDir.at(None):
        console.print(f"  export EVENFLOW_DATA_DIR={settings.data_dir.path}")
    if installation.has_new_admin_key:
        for line in ("orgs create acme", "teams create acme/search", "keys create --team acme/search --save"):
            console.print(f"  {evenflow} {line}")
    console.print(f'  {evenflow} chat "Why is the sky blue?"')
    console.print(f"  {evenflow} status")


def command_name() -> str:
    """How this command can be called again from where the user is."""
    started_as = Path(sys.argv[0])
    if started_as.name != "evenflow":
        return "evenflow"
    found = shutil.which("evenflow")
    return "evenflow" if found and Path(found).samefile(started_as) else str(started_as)
