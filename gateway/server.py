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
from starlette.types import ASGIApp

from gateway.admin.servicer import SERVICE as ADMIN_SERVICE
from gateway.admin.servicer import AdminServicer
from gateway.admission import Admission
from gateway.auth import Authenticator, LastUsed
from gateway.auth.forwarding import TrustedProxies
from gateway.console import LoginLimits, Parts, Sampler, SessionEnds, console_app
from gateway.database_start import check_database, open_database
from gateway.engine_client import EngineClient
from gateway.errors import SettingsError
from gateway.http import http_door
from gateway.interceptors import Gatekeeper, RpcInterceptor
from gateway.leases import LeasedQuota
from gateway.ledger import Ledger
from gateway.listening import listen, new_server
from gateway.meters import Meters
from gateway.metrics_page import MetricsPage
from gateway.private_files import LEDGER_DIR
from gateway.propagation import Propagation, Revocations
from gateway.quota_denials import DenialLog
from gateway.quota_idle import IdleTokens
from gateway.quota_report import quota_report
from gateway.servicer.generation import SERVICE as GENERATION_SERVICE
from gateway.servicer.generation import GenerationServicer
from gateway.servicer.generation_trace import TraceOptions
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
from gateway.status import SystemReport
from gateway.store.cache import STORE_LOST_AFTER_S, TenancyCache
from gateway.store.deletion import Purger
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
        self._telemetry, self._meters = telemetry, Meters()
        self._cache = TenancyCache(self._database, on_change=self._meters.propagated)
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
        self._peppers = pepper_source(settings)
        self._authenticator = Authenticator(self._cache, self._peppers, self._last_used, settings.auth_stale_max_s)
        self._open_doors(pepper)

    def _open_doors(self, pepper: bytes) -> None:
        """Both doors have their ports and what stands behind them; neither answers before `start`."""
        settings, telemetry = self._settings, self._telemetry
        proxies = TrustedProxies.of(settings.trusted_proxies, settings.forwarded_header)
        self._gatekeeper = Gatekeeper(self._authenticator, telemetry.tracer, self._meters, proxies)
        self._server = new_server(settings, RpcInterceptor(self._gatekeeper))
        self.address = listen(self._server, settings)
        self._request_ids = RequestIds(self._database, self._cache, self._live, self._models.engines, self.address)
        launcher = self._launcher(telemetry)
        admin = self._admin_servicer(pepper)
        self._register(launcher, admin)
        self._sampler = Sampler(self.report, lambda: self._cache.current)
        self._http = http_door(
            settings,
            self._gatekeeper,
            launcher,
            is_ready=lambda: self._health.is_serving(GENERATION_SERVICE),
            console=self._console(admin),
        )
        self._page = MetricsPage(settings.metrics_address, self._meters, self._cache, self.report)

    @property
    def http_address(self) -> str:
        """HOST:PORT of the HTTP door; empty where there is none."""
        return "" if self._http is None else self._http.address

    @property
    def num_live_requests(self) -> int:
        return len(self._live)

    async def start(self) -> None:
        """The port answers. GenerationService is NOT_SERVING until an engine does.

        Raises SettingsError if the database answers and is not one that this release works with.
        """
        await check_database(self._database)
        await self._open_ledger()
        for service in (MODEL_SERVICE, QUOTA_SERVICE, ADMIN_SERVICE):
            self._health.set(service, is_serving=True)
        await self._server.start()
        log.info("gateway listening", address=self.address)
        if self._http is not None:
            await self._http.start()
        await self._page.start()

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
            if self._has_console:
                group.create_task(self._sampler.run())

    async def drain(self) -> None:
        """Nothing is admitted any more, nothing runs any more, and all usage is written if the database is there."""
        log.info("gateway draining", num_live_requests=len(self._live))
        self._admission.drain()
        self._health.stop()
        steps: tuple[abc.Callable[[], abc.Awaitable[None]], ...] = (
            partial(self._live.drained, self._settings.drain_grace_s),
            partial(self._stop_doors, LAST_WRITES_S),
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
        await self._stop_doors(0)
        await self._page.close()
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
            engines=await self._models.reports(),
            num_live_requests=len(self._live),
            metrics_address=self._page.address,
            http_url="" if self._http is None else self._http.url,
            ledger=await self._ledger.report(),
            quota=quota_report(self._denials.counts, self._quota),
            leases=self._quota.report(),
            staleness_s=self._cache.staleness_s(),
            pool=self._database.pool(),
            num_dropped_spans=self._telemetry.dropped_spans(),
        )

    async def _stop_doors(self, grace_s: float) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._server.stop(grace_s))
            if self._http is not None:
                group.create_task(self._http.stop(grace_s))

    async def _open_ledger(self) -> None:
        try:
            await self._ledger.open()
        except OSError as error:
            raise SettingsError(f"data_dir: cannot keep the ledger's spool: {error}") from error

    def _launcher(self, telemetry: Telemetry) -> Launcher:
        recorder = Recorder(
            self._admission,
            self._ledger,
            self._witness,
            self._live,
            self._request_ids,
            telemetry.tracer,
            self._meters,
            TraceOptions(self._settings.telemetry_semconv, self._settings.telemetry_content),
        )
        return Launcher(
            models=self._models,
            admission=self._admission,
            live=self._live,
            request_ids=self._request_ids,
            recorder=recorder,
            tracer=telemetry.tracer,
            sizes=JournalSizes(self._settings.reader_buffer_tokens, self._settings.replay_buffer_tokens),
            meters=self._meters,
        )

    def _register(self, launcher: Launcher, admin: AdminServicer) -> None:
        GenerationServicer(launcher, Lookup(self._live, self._database, self._models.engines)).add_to(self._server)
        ModelServicer(self._models).add_to(self._server)
        QuotaServicer(self._admission, self._models.stats).add_to(self._server)
        admin.add_to(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        services = (
            *(GENERATION_SERVICE, MODEL_SERVICE, QUOTA_SERVICE, ADMIN_SERVICE),
            *(HEALTH_SERVICE, reflection.SERVICE_NAME),
        )
        reflection.enable_server_reflection(services, self._server)

    @property
    def _has_console(self) -> bool:
        return self._settings.http_address is not None and self._settings.console != "off"

    def _console(self, admin: AdminServicer) -> ASGIApp | None:
        if not self._has_console:
            return None
        parts = Parts(
            self._settings,
            self._peppers,
            self._authenticator,
            admin,
            self._admission,
            self._sampler,
            SessionEnds(self._database),
            LoginLimits(self._database, self._peppers),
        )
        return console_app(parts)

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
