"""`evenflow gateway` and `evenflow bootstrap`: the parts of `evenflow up` for those who run processes themselves."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.command import DataDirOption, command
from gateway.cli.data_dir import DataDir
from gateway.cli.errors import CliError, UsageError
from gateway.cli.output import stderr
from gateway.semconv import Semconv
from gateway.settings import DEFAULT_LISTEN, load_settings, read_pepper_variable

# The environment is read by the settings themselves, so that both ways are judged alike; unset is None.
ListenFlag = Annotated[str | None, typer.Option("--listen", help=f"HOST:PORT; default {DEFAULT_LISTEN}.")]
EngineFlag = Annotated[str | None, typer.Option("--engine", help="The engines' addresses, unix:PATH, by commas.")]
DatabaseFlag = Annotated[str | None, typer.Option("--database-url", help="Better given as EVENFLOW_DATABASE_URL.")]
DataDirFlag = Annotated[Path | None, typer.Option("--data-dir", help="The directory that holds the pepper.")]
ReusePortFlag = Annotated[bool | None, typer.Option("--reuse-port", help="Several gateways may share the port.")]
StaleFlag = Annotated[str | None, typer.Option("--auth-stale-max-s", help="Seconds that keys work without Postgres.")]
GraceFlag = Annotated[str | None, typer.Option("--drain-grace-s", help="Seconds that streams may take to end.")]
RpcsFlag = Annotated[str | None, typer.Option("--max-concurrent-rpcs", help="Calls taken at once.")]
LedgerFlag = Annotated[str | None, typer.Option("--ledger-capacity", help="Usage events that may wait for Postgres.")]
RetentionFlag = Annotated[
    str | None, typer.Option("--usage-retention-days", help="Days that usage events are kept; default for ever.")
]
ReaderFlag = Annotated[str | None, typer.Option("--reader-buffer-tokens", help="Tokens held for a slow client.")]
HttpFlag = Annotated[
    str | None, typer.Option("--http-listen", help="HOST:PORT of the OpenAI-compatible door; off (default): none.")
]
BodyFlag = Annotated[str | None, typer.Option("--http-max-body-bytes", help="The largest body that it takes.")]
ProxiesFlag = Annotated[
    str | None, typer.Option("--trusted-proxies", help="Networks (CIDR) of proxies that say whom they stand for.")
]
ForwardedFlag = Annotated[
    str | None, typer.Option("--forwarded-header", help="Where they say it: x-forwarded-for (default); forwarded.")
]
ConsoleFlag = Annotated[
    str | None, typer.Option("--console", help="on (default): pages for administrators at /console; off.")
]
TlsCertFlag = Annotated[Path | None, typer.Option("--tls-cert", help="PEM file: the certificate and its chain.")]
TlsKeyFlag = Annotated[Path | None, typer.Option("--tls-key", help="PEM file: the certificate's key.")]
ClientCaFlag = Annotated[Path | None, typer.Option("--client-ca", help="PEM file: only clients certified by it.")]
MetricsFlag = Annotated[
    str | None, typer.Option("--metrics-listen", help="HOST:PORT on loopback for Prometheus; default a free one; off.")
]

SemconvFlag = Annotated[
    str | None, typer.Option("--telemetry-semconv", help=f"The words of traces: {', '.join(Semconv)}.")
]
ContentFlag = Annotated[bool | None, typer.Option("--telemetry-content", help="Prompts and outputs are in traces.")]


@command
def gateway(
    listen: ListenFlag = None,
    engine: EngineFlag = None,
    database_url: DatabaseFlag = None,
    data_dir: DataDirFlag = None,
    reuse_port: ReusePortFlag = None,
    auth_stale_max_s: StaleFlag = None,
    drain_grace_s: GraceFlag = None,
    max_concurrent_rpcs: RpcsFlag = None,
    ledger_capacity: LedgerFlag = None,
    usage_retention_days: RetentionFlag = None,
    reader_buffer_tokens: ReaderFlag = None,
    tls_cert: TlsCertFlag = None,
    tls_key: TlsKeyFlag = None,
    client_ca: ClientCaFlag = None,
    http_listen: HttpFlag = None,
    http_max_body_bytes: BodyFlag = None,
    trusted_proxies: ProxiesFlag = None,
    forwarded_header: ForwardedFlag = None,
    console: ConsoleFlag = None,
    metrics_listen: MetricsFlag = None,
    telemetry_semconv: SemconvFlag = None,
    telemetry_content: ContentFlag = None,
) -> None:
    """Serve tenants through engines that run already, until SIGTERM.

    Each flag --NAME can be given as EVENFLOW_GATEWAY_NAME instead; database URL, data directory and pepper
    are EVENFLOW_DATABASE_URL, EVENFLOW_DATA_DIR and EVENFLOW_PEPPER.
    """
    from gateway.process import serve  # here, so that other commands do not wait for it

    settings = load_settings(
        listen=listen,
        engine=engine,
        database_url=database_url,
        data_dir=data_dir,
        reuse_port=reuse_port,
        auth_stale_max_s=auth_stale_max_s,
        drain_grace_s=drain_grace_s,
        max_concurrent_rpcs=max_concurrent_rpcs,
        ledger_capacity=ledger_capacity,
        usage_retention_days=usage_retention_days,
        reader_buffer_tokens=reader_buffer_tokens,
        tls_cert=tls_cert,
        tls_key=tls_key,
        client_ca=client_ca,
        http_listen=http_listen,
        http_max_body_bytes=http_max_body_bytes,
        trusted_proxies=trusted_proxies,
        forwarded_header=forwarded_header,
        console=console,
        metrics_listen=metrics_listen,
        telemetry_semconv=telemetry_semconv,
        telemetry_content=telemetry_content,
    )
    asyncio.run(serve(settings))


@command
def bootstrap(
    database_url: Annotated[str, typer.Option("--database-url", envvar="EVENFLOW_DATABASE_URL", help="The database.")],
    data_dir: DataDirOption = None,
    new_pepper: Annotated[
        bool, typer.Option("--new-pepper", help="Hash keys with a new secret from each gateway's next start on.")
    ] = False,
) -> None:
    """Prepare a database: its schema, the pepper and an administrator's key. `evenflow up` does this by itself.

    EVENFLOW_PEPPER is used in place of the file `pepper` in the data directory.
    """
    from gateway.bootstrap import add_pepper  # here, so that other commands do not wait for it
    from gateway.bootstrap import bootstrap as run_bootstrap
    from gateway.store.errors import StoreError

    try:
        pepper = read_pepper_variable(os.environ)
        if new_pepper and pepper is not None:
            raise UsageError("EVENFLOW_PEPPER is set: add a line VERSION:SECRET to it, and restart the gateways")
        installation = asyncio.run(run_bootstrap(DataDir.at(data_dir).path, database_url, pepper))
    except StoreError as error:
        raise CliError(str(error)) from error
    if new_pepper:
        version = add_pepper(DataDir.at(data_dir).path)
        stderr().print(f"the pepper has version {version}: keys are hashed anew as they are used after a restart")
    made = "made" if installation.has_new_admin_key else "found"
    stderr().print(f"the database is ready; administrator's key {made} in {installation.admin_key_file}")
