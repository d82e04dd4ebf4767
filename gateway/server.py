"""The composition root: every part of a gateway process is made, connected, started and stopped here, and only here.

It comes up whether or not the engines and the database are there, and says so through `grpc.health.v1`. A stop is a
drain: nothing new is admitted, what runs may finish within the grace time, and the ledger is written before the end.
"""

import asyncio
import time
from collections import abc
from contextlib import AsyncExitStack
from functools import partial

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
from gateway.interceptors import RpcInterceptor
from gateway.leases import LeasedQuota
from gateway.ledger import Ledger
from gateway.listening import listen, new_server
from gateway.metrics import Metrics
from gateway.metrics_endpoint import MetricsEndpoint
from gateway.private_files import LEDGER_DIR
from gateway.propagation import Propagation, Revocations
from gateway.quota_denials import DenialLog
from gateway.quota_idle import IdleTokens
from gateway.servicer.generation import SERVICE as GENERATION_SERVICE
from gateway.servicer.generation import GenerationServicer
from gateway.servicer.health import SERVICE as HEALTH_SERVICE
from gateway.servicer.health import HealthServicer
from gateway.servicer.journal import JournalSizes
from gateway.servicer.launch import Launcher
from gateway.servicer.live import LiveGenerations
from gateway.servicer.lookup import Lookup
from gateway.servicer.model import SERVICE as MODEL_SERVICE
from gateway.servicer.model import ModelServicer
from gateway.servicer.quota import SERVICE as QUOTA_SERVICE
from gateway.servicer.quota import QuotaServicer
from gateway.servicer.record import Recorder
from gateway.servicer.request_ids import RequestIds
from gateway.servicer.served_models import ServedModels
from gateway.settings import GatewaySettings, pepper_source, read_pepper
from gateway.spool import Spool
from gateway.status import EngineReport, EngineStats, SystemReport
from gateway.store.cache import STORE_LOST_AFTER_S, TenancyCache
from gateway.store.db import Database
from gateway.store.deletion import Purger
from gateway.store.errors import (
    DatabaseUnavailableError,
    DatabaseUrlError,
    SchemaVersionError,
    UnsupportedServerError,
)
from gateway.store.migrate import require_head
from gateway.store.quota_buckets import PostgresQuotaStore
from gateway.telemetry import Telemetry
from gateway.witness import Witness

LEDGER_FLUSH_TIMEOUT_S = 5.0
REQUEST_IDS_FLUSH_TIMEOUT_S = 1.0
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
        self._database = open_database(settings)
        self._cache = TenancyCache(self._database)
        spool = Spool(settings.data_dir / LEDGER_DIR)
        self._ledger = Ledger(self._database, spool, settings.ledger_capacity, settings.usage_retention_days)
        self._last_used = LastUsed(self._database)
        self._models = ServedModels([EngineClient(address) for address in settings.engine], self._report_health)
        self._denials = DenialLog(self._database)
        self._quota = LeasedQuota(PostgresQuotaStore(self._database))
        self._admission = Admission(self._cache, self._quota, self._ledger, self._denials, IdleTokens(self._models))
        self._propagation = Propagation(self._cache, self._models.engines)
        self._live = LiveGenerations()
        self._revocations = Revocations(self._cache, self._live.abort_key)
        self._purger = Purger(self._database)
        self._witness = Witness(self._models.engines, self._ledger, self._live.until_ended)
        self._health = HealthServicer(("", GENERATION_SERVICE, MODEL_SERVICE, QUOTA_SERVICE, ADMIN_SERVICE))
        self._authenticator = Authenticator(
            self._cache, pepper_source(settings), self._last_used, settings.auth_stale_max_s
        )
        self._server = new_server(settings, RpcInterceptor(self._authenticator, telemetry.tracer))
        self.address = listen(self._server, settings)
        self._request_ids = RequestIds(self._database, self._cache, self._live, self._models.engines, self.address)
        self._register(telemetry, pepper)
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
        await self._open_ledger()
        self._health.set(MODEL_SERVICE, is_serving=True)
        self._health.set(QUOTA_SERVICE, is_serving=True)
        self._health.set(ADMIN_SERVICE, is_serving=True)
        await self._server.start()
        log.info("gateway listening", address=self.address)
        if self._endpoint is not None:
            await self._endpoint.start()

    async def run(self) -> None:
        """What goes on in the background, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for part in (
                self._cache,
                self._models,
                self._propagation,
                self._revocations,
                self._purger,
                self._ledger,
                self._witness,
                self._last_used,
                self._request_ids,
                self._denials,
                self._quota,
                self._admission,
            ):
                group.create_task(part.run())

    async def drain(self) -> None:
        """Nothing is admitted any more, nothing runs any more, and all usage is written if the database is there."""
        log.info("gateway draining", num_live_requests=len(self._live))
        self._admission.drain()
        self._health.stop()
        steps: tuple[abc.Callable[[], abc.Awaitable[None]], ...] = (
            partial(self._live.drained, self._settings.drain_grace_s),
            partial(self._server.stop, LAST_WRITES_S),
            partial(self._live.launched, LAST_WRITES_S),  # what the stop has cut off gives back what it held
            self._quota.close,
            partial(self._ledger.flush, LEDGER_FLUSH_TIMEOUT_S),
            partial(self._request_ids.flush, REQUEST_IDS_FLUSH_TIMEOUT_S),
            self._denials.flush,
            self._last_used.flush,
        )
        async with AsyncExitStack() as last:  # which takes every step, whatever becomes of the others
            for step in reversed(steps):
                last.push_async_callback(step)

    async def close(self) -> None:
        """Every connection is closed."""
        await self._server.stop(0)
        if self._endpoint is not None:
            await self._endpoint.close()
        for engine in self._models.engines:
            await engine.close()
        await self._quota.close()
        await self._ledger.close()
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
            ledger=await self._ledger.report(),
            quota=self._denials.counts.report(),
            leases=self._quota.report(),
        )

    async def _open_ledger(self) -> None:
        try:
            await self._ledger.open()
        except OSError as error:
            raise SettingsError(f"data_dir: cannot keep the ledger's spool: {error}") from error

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

    async def _engine_stats(self) -> list[EngineStats]:
        reports = await asyncio.gather(*(self._engine_report(engine) for engine in self._models.engines))
        return [report.stats for report in reports if report.stats is not None]

    def _register(self, telemetry: Telemetry, pepper: bytes) -> None:
        recorder = Recorder(
            self._admission, self._ledger, self._witness, self._live, self._request_ids, telemetry.tracer
        )
        launcher = Launcher(
            models=self._models,
            admission=self._admission,
            live=self._live,
            request_ids=self._request_ids,
            recorder=recorder,
            tracer=telemetry.tracer,
            sizes=JournalSizes(self._settings.reader_buffer_tokens, self._settings.replay_buffer_tokens),
        )
        GenerationServicer(launcher, Lookup(self._live, self._database, self._models.engines)).add_to(self._server)
        ModelServicer(self._models).add_to(self._server)
        QuotaServicer(self._admission, self._engine_stats).add_to(self._server)
        self._admin_servicer(pepper).add_to(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        services = (
            *(GENERATION_SERVICE, MODEL_SERVICE, QUOTA_SERVICE, ADMIN_SERVICE),
            *(HEALTH_SERVICE, reflection.SERVICE_NAME),
        )
        reflection.enable_server_reflection(services, self._server)

    def _admin_servicer(self, pepper: bytes) -> AdminServicer:
        return AdminServicer(
            self._database,
            self._cache,
            pepper,
            status=self.report,
            abort_key=self._live.abort_key,
            engines=self._models.engines,
            select=self._live.select,
            cancel=self._live.cancel_selected,
        )

    def _report_health(self) -> None:
        for service in ("", GENERATION_SERVICE):
            self._health.set(service, is_serving=self._models.is_serving)


def open_database(settings: GatewaySettings) -> Database:
    """Not connected yet. Raises SettingsError."""
    try:
        return Database(settings.database_url.get_secret_value())
    except DatabaseUrlError as error:
        raise SettingsError(f"database_url: {error}") from error
