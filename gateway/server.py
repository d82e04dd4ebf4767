"""The composition root: every part of a gateway process is made, connected, started and stopped here, and only here.

It comes up whether or not the engines and the database are there, and says so through `grpc.health.v1`. A stop is a
drain: nothing new is admitted, what runs may finish within the grace time, and the ledger is written before the end.
"""

import asyncio
import errno
import os
import signal
import socket
import time
from collections import abc

import grpc
import structlog
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client.core import Metric

from gateway.admin.servicer import SERVICE as ADMIN_SERVICE
from gateway.admin.servicer import AdminServicer
from gateway.admission import Admission
from gateway.auth import Authenticator, LastUsed
from gateway.engine_client import EngineClient
from gateway.errors import NoEngineError, SettingsError
from gateway.interceptors import MAX_MESSAGE_BYTES, RpcInterceptor
from gateway.ledger import Ledger
from gateway.metrics import Metrics
from gateway.metrics_endpoint import MetricsEndpoint
from gateway.propagation import Propagation
from gateway.quota import QuotaBook
from gateway.servicer.generation import SERVICE as GENERATION_SERVICE
from gateway.servicer.generation import GenerationServicer
from gateway.servicer.health import SERVICE as HEALTH_SERVICE
from gateway.servicer.health import HealthServicer
from gateway.servicer.launch import Launcher
from gateway.servicer.live import LiveGenerations
from gateway.servicer.model import SERVICE as MODEL_SERVICE
from gateway.servicer.model import ModelServicer
from gateway.servicer.record import Recorder
from gateway.servicer.served_models import ServedModels
from gateway.settings import GatewaySettings, read_pepper
from gateway.status import EngineReport, SystemReport
from gateway.store.cache import STORE_LOST_AFTER_S, TenancyCache
from gateway.store.db import Database
from gateway.store.errors import (
    DatabaseUnavailableError,
    DatabaseUrlError,
    SchemaVersionError,
    UnsupportedServerError,
)
from gateway.store.migrate import require_head
from gateway.telemetry import Telemetry, configure_logging, start_telemetry

# Messages a little over the limit arrive, so that they can be refused with a reason; larger ones end in the transport.
TRANSPORT_SLACK_BYTES = 4 * 2**20
LEDGER_FLUSH_TIMEOUT_S = 5.0
# For the last messages of streams whose generations have ended.
LAST_WRITES_S = 1.0

log = structlog.get_logger()


class Gateway:
    """One gateway process. Use as: `start`, then `run` until cancelled, then `drain`, then `close`."""

    def __init__(self, settings: GatewaySettings, telemetry: Telemetry) -> None:
        """Raises SettingsError."""
        pepper = read_pepper(settings)
        self._settings = settings
        self._started_s = time.monotonic()
        try:
            self._database = Database(settings.database_url.get_secret_value())
        except DatabaseUrlError as error:
            raise SettingsError(f"database_url: {error}") from error
        self._cache = TenancyCache(self._database)
        self._ledger = Ledger(self._database, settings.ledger_capacity)
        self._admission = Admission(self._cache, QuotaBook(), self._ledger)
        self._last_used = LastUsed(self._database)
        self._models = ServedModels([EngineClient(address) for address in settings.engine], self._report_health)
        self._propagation = Propagation(self._cache, self._models.engines)
        self._live = LiveGenerations()
        self._health = HealthServicer(("", GENERATION_SERVICE, MODEL_SERVICE, ADMIN_SERVICE))
        authenticator = Authenticator(self._cache, pepper, self._last_used, settings.auth_stale_max_s)
        self._server = grpc.aio.server(
            interceptors=[RpcInterceptor(authenticator, telemetry.tracer)],
            options=_server_options(settings),
            maximum_concurrent_rpcs=settings.max_concurrent_rpcs,
        )
        self._register(telemetry, pepper)
        self.address = self._listen(settings.listen)
        self._metrics = Metrics()
        self._scraping = asyncio.Lock()
        address = settings.metrics_address
        self._endpoint = None if address is None else MetricsEndpoint(address, self._collect_metrics)

    @property
    def num_live_requests(self) -> int:
        return len(self._live)

    async def start(self) -> None:
        """The port answers. GenerationService is NOT_SERVING until an engine does.

        Raises SettingsError if the database answers and is not one that this release works with.
        """
        await self._check_database()
        self._health.set(MODEL_SERVICE, is_serving=True)
        self._health.set(ADMIN_SERVICE, is_serving=True)
        await self._server.start()
        log.info("gateway listening", address=self.address)
        if self._endpoint is not None:
            await self._endpoint.start()

    async def run(self) -> None:
        """What goes on in the background, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for part in (self._cache, self._models, self._propagation, self._ledger, self._last_used):
                group.create_task(part.run())

    async def drain(self) -> None:
        """Nothing is admitted any more, nothing runs any more, and all usage is written if the database is there."""
        log.info("gateway draining", num_live_requests=len(self._live))
        self._admission.drain()
        self._health.stop()
        await self._live.drained(self._settings.drain_grace_s)
        await self._server.stop(LAST_WRITES_S)
        await self._ledger.flush(LEDGER_FLUSH_TIMEOUT_S)
        await self._last_used.flush()

    async def close(self) -> None:
        """Every connection is closed."""
        await self._server.stop(0)
        if self._endpoint is not None:
            await self._endpoint.close()
        for engine in self._models.engines:
            await engine.close()
        await self._database.close()

    async def report(self) -> SystemReport:
        """What `evenflow status` shows."""
        return SystemReport(
            uptime_s=time.monotonic() - self._started_s,
            is_store_reachable=self._cache.staleness_s() < STORE_LOST_AFTER_S,
            policy_revision=max(0, self._cache.current.revision),
            engines=tuple(await asyncio.gather(*(self._engine_report(engine) for engine in self._models.engines))),
            num_live_requests=len(self._live),
            metrics_address="" if self._endpoint is None else self._endpoint.address,
        )

    async def _collect_metrics(self) -> list[Metric]:
        async with self._scraping:
            report = await self.report()
            return await asyncio.to_thread(self._metrics.families, report, self._cache.current)

    async def _check_database(self) -> None:
        try:
            await self._database.ping()
            await require_head(self._database)
        except (SchemaVersionError, UnsupportedServerError) as error:
            raise SettingsError(f"database_url: {error}") from error
        except DatabaseUnavailableError:
            log.warning("the database does not answer yet")

    async def _engine_report(self, engine: EngineClient) -> EngineReport:
        try:
            stats = await engine.stats()
        except NoEngineError:
            stats = None
        return EngineReport(engine.address, self._models.model_name_at(engine.address), stats)

    def _register(self, telemetry: Telemetry, pepper: bytes) -> None:
        recorder = Recorder(self._admission, self._ledger, self._live, telemetry.tracer)
        launcher = Launcher(
            models=self._models,
            admission=self._admission,
            live=self._live,
            recorder=recorder,
            tracer=telemetry.tracer,
            buffer_tokens=self._settings.reader_buffer_tokens,
        )
        GenerationServicer(launcher).add_to(self._server)
        ModelServicer(self._models).add_to(self._server)
        admin = AdminServicer(
            self._database,
            self._cache,
            pepper,
            status=self.report,
            abort_key=self._live.abort_key,
            engines=self._models.engines,
        )
        admin.add_to(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        services = (GENERATION_SERVICE, MODEL_SERVICE, ADMIN_SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(services, self._server)

    def _listen(self, address: str) -> str:
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise SettingsError(f"listen: {_bind_problem(address)}") from error
        return f"{address.rpartition(':')[0]}:{port}"

    def _report_health(self) -> None:
        for service in ("", GENERATION_SERVICE):
            self._health.set(service, is_serving=self._models.is_serving)


async def serve(settings: GatewaySettings) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends the process at once.

    Raises SettingsError before anything has begun, and what ended the background work, after a drain.
    """
    configure_logging()
    telemetry = start_telemetry()
    gateway = Gateway(settings, telemetry)
    stop = _stop_requested()
    try:
        await gateway.start()
        await _run_until(stop, gateway)
    finally:
        await gateway.close()
        await asyncio.to_thread(telemetry.close)


async def _run_until(stop: asyncio.Event, gateway: Gateway) -> None:
    """Drained, because of `stop` or of a bug that ended the background work; the latter is raised afterwards."""
    background, stopping = asyncio.create_task(gateway.run()), asyncio.create_task(stop.wait())
    await asyncio.wait((background, stopping), return_when=asyncio.FIRST_COMPLETED)
    if background.done():
        log.error("gateway failed", exc_info=background.exception())
    try:
        await gateway.drain()
    finally:
        stopping.cancel()
        background.cancel()
        await asyncio.wait((background, stopping))
    if not background.cancelled():
        background.result()


def _stop_requested() -> asyncio.Event:
    """Set by the first SIGTERM or SIGINT. A second one ends the process."""
    stop = asyncio.Event()

    def on_signal(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    return stop


def _server_options(settings: GatewaySettings) -> abc.Sequence[tuple[str, int]]:
    return (
        ("grpc.so_reuseport", int(settings.reuse_port)),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES + TRANSPORT_SLACK_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_concurrent_streams", settings.max_concurrent_rpcs),
        # A client that has vanished without a word is noticed; one that pings every few seconds is welcome.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    )


def _bind_problem(address: str) -> str:
    """Why the address cannot be listened on, in the system's words: the transport does not say."""
    host, _, port = address.rpartition(":")
    try:
        infos = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, target in infos:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(target)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"port {port} of {host} is in use by another process"
        return f"cannot listen on {address}: {error.strerror or os.strerror(error.errno or 0)}"
    return f"cannot listen on {address}"
