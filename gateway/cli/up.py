"""`evenflow up`: database, engine and gateway on this machine, kept running until Ctrl-C or SIGTERM."""

import asyncio
import os
import shutil
import sys
from collections import abc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from gateway.bootstrap import Installation
    from gateway.cli.stack import StackSettings

from gateway.cli.command import DataDirOption, command
from gateway.cli.data_dir import DataDir
from gateway.cli.errors import CliError
from gateway.cli.output import stderr
from gateway.settings import DEFAULT_HTTP_LISTEN, DEFAULT_LISTEN, GATEWAY_PREFIX, HTTP_OFF, check_environment

ListenOption = Annotated[
    str,
    typer.Option("--listen", envvar="EVENFLOW_GATEWAY_LISTEN", help="HOST:PORT of the gateway; port 0: a free one."),
]
HttpOption = Annotated[
    str | None,
    typer.Option(
        "--http-listen",
        envvar="EVENFLOW_GATEWAY_HTTP_LISTEN",
        help=f"HOST:PORT for clients of OpenAI's API; unset: {DEFAULT_HTTP_LISTEN}, or a free port; off: none.",
    ),
]
MetricsOption = Annotated[
    str | None,
    typer.Option(
        "--metrics-listen",
        envvar="EVENFLOW_GATEWAY_METRICS_LISTEN",
        help="HOST:PORT on loopback for Prometheus; unset: a free port; off: none.",
    ),
]
EngineMetricsOption = Annotated[
    str | None,
    typer.Option(
        "--engine-metrics-listen",
        envvar="EVENFLOW_ENGINE_METRICS_LISTEN",
        help="The same for the engine's own page.",
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
    http_listen: HttpOption = None,
    metrics_listen: MetricsOption = None,
    engine_metrics_listen: EngineMetricsOption = None,
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
    from gateway.cli.up_settings import GatewayOptions, check_engine, metrics_addresses

    # Now, rather than when a part starts: nothing is brought up that a misspelt word would take down again.
    check_environment(os.environ)
    metrics = metrics_addresses(metrics_listen, engine_metrics_listen)
    gateway_flags = GatewayOptions(metrics.gateway, tls_cert, tls_key, client_ca).flags()
    engine_flags = (*context.args, "--metrics-listen", metrics.engine)
    check_engine(engine_flags, os.environ)
    directory = DataDir.at(data_dir)
    with directory.lock() as lock, directory.socket_dir() as sockets:
        settings = StackSettings(
            data_dir=directory,
            sockets=sockets,
            listen=listen_address(listen),
            environment=os.environ,
            engine_flags=engine_flags,
            gateway_flags=gateway_flags,
            http_listen=http_address(http_listen),
            has_tls=tls_cert is not None,
        )
        lock.describe(settings.address)

        async def keep_up(session: Session) -> None:
            with session.board:
                installation = await session.stack.bring_up()
            directory.endpoint.write_text(settings.address + "\n")
            greet(session.console, settings, installation, metrics.urls)
            await session.supervisor.guard(asyncio.Event().wait())

        asyncio.run(run_stack(settings, stderr(), keep_up))


def http_address(http_listen: str | None) -> str:
    """Where the HTTP door is to be, `off` for nowhere. Raises UsageError, and CliError if what was named is taken."""
    from gateway.cli.stack import listen_address

    if http_listen == HTTP_OFF:
        return HTTP_OFF
    if http_listen is not None:
        return listen_address(http_listen, "--http-listen")
    try:
        return listen_address(DEFAULT_HTTP_LISTEN)
    except CliError:  # a common port: whatever has it must not keep the rest from starting
        return listen_address("127.0.0.1:0")


def greet(
    console: Console, settings: "StackSettings", installation: "Installation", metrics_urls: abc.Sequence[str] = ()
) -> None:
    """What runs where, and what to do next."""
    evenflow = command_name()
    console.print(
        f"\nEvenflow serves on {settings.address}, with its data in {settings.data_dir.path}. Ctrl-C ends it."
    )
    if settings.http_url is not None:
        console.print(f"Clients of OpenAI's API take {settings.http_url} as base URL, and a key of a team.")
    if settings.console_url is not None:
        console.print(f"Administrators sign in at {settings.console_url} with a platform key.")
    if metrics_urls:
        console.print(f"Prometheus reads {' and '.join(metrics_urls)}.")
    if installation.has_new_admin_key:
        console.print(f"A new administrator's key is in {installation.admin_key_file}; commands find it there.")
    console.print("\nNext, in another terminal:")
    if settings.data_dir != DataDir.at(None):
        console.print(f"  export EVENFLOW_DATA_DIR={settings.data_dir.path}")
    if settings.has_tls:
        console.print(f"  export EVENFLOW_CA_CERT={os.environ['EVENFLOW_CA_CERT']}")
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
