"""One engine behind one address: listen, load, serve, drain, close.

Two threads. asyncio's owns the socket and the calls; the engine's loads the model and then runs the loop, so that what
torch keeps per thread (its compute threads, the CUDA context) is made where it is used.
"""

import asyncio
import os
from collections import abc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import grpc
import structlog
from grpc_health.v1 import health_pb2_grpc

from engine.core.scheduler import Scheduler
from engine.core.types import FinishReason
from engine.decision_log import DecisionLog, Driven, LogHeader, PolicyChoice, RecordedScheduler
from engine.errors import SettingsError
from engine.loop import EngineLoop
from engine.loop_messages import Delivery, Policies, Stop
from engine.plugins import PolicyError, check_pair
from engine.server.backend import Backend
from engine.server.intake import Engine, Intake
from engine.server.listener import bind, parse_address
from engine.server.metrics_page import EnginePage
from engine.server.servicer import EngineServicer
from engine.server.step_watch import StepWatch
from engine.settings import EngineSettings, policy_options
from engine.telemetry import Tracing

log = structlog.get_logger(__name__)

MAX_MESSAGE_BYTES = 64 << 20
ABORT_S = 5.0  # what the step in progress may still take when the grace time is over
STOP_S = 1.0  # for the status of calls that have just ended
SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # a second engine on the port must fail, not share it
)


__all__ = ["EngineServer", "Policies", "deliver"]


class EngineServer:
    """Its methods are called in the order listen, open, drain, close; close alone is fine at any time after listen."""

    def __init__(self, settings: EngineSettings, policies: Policies, tracing: Tracing | None) -> None:
        """Raises SettingsError where the two policies do not go together."""
        try:
            check_pair(policies.scheduling, policies.preemption)
        except PolicyError as error:
            raise SettingsError("preemption_policy", f"cannot be taken: {error}") from error
        self._settings = settings
        self._policies = policies
        self._intake = Intake(tracing)
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._loop: EngineLoop | None = None
        self._loop_ended: asyncio.Future[None] | None = None
        self._log_file: TextIO | None = None
        self._page: EnginePage | None = None
        self._servicer: EngineServicer | None = None

    @property
    def metrics_address(self) -> str:
        """HOST:PORT of the page for Prometheus; empty: there is none."""
        return "" if self._page is None else self._page.address

    async def listen(self) -> str:
        """Answers on the address of the settings, which is returned as clients use it; health says NOT_SERVING.

        Raises SettingsError, ListenError.
        """
        address, metrics_address = parse_address(self._settings.listen), self._settings.metrics_address
        await self._intake.begin()
        client_address = bind(self._server, address)
        servicer = self._servicer = EngineServicer(self._intake, lambda: self.metrics_address)
        if metrics_address is not None:
            self._page = EnginePage(metrics_address, servicer.figures)
        self._server.add_generic_rpc_handlers((servicer.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._intake.health, self._server)
        await self._server.start()
        if self._page is not None:
            self._page.start()
        return client_address

    async def open(self, load: abc.Callable[[], Backend]) -> Backend:
        """The backend is loaded and requests are served. Raises what `load` raises, and SettingsError."""
        aio = asyncio.get_running_loop()
        self._log_file = _open_log(self._settings.decision_log)
        backend = await aio.run_in_executor(self._thread, load)
        choices = _choices(self._settings)
        scheduler = Scheduler(backend.config, self._policies.scheduling, self._policies.preemption)
        self._loop = EngineLoop(
            _recorded(scheduler, self._log_file, LogHeader(backend.config, *choices)),
            backend.runner,
            lambda batch: aio.call_soon_threadsafe(deliver, batch),
            policies=self._policies,
            calibrator=backend.calibrator,
            on_step=StepWatch(scheduler, lambda told: aio.call_soon_threadsafe(self._intake.tell_step, told)),
        )
        self._loop_ended = aio.run_in_executor(self._thread, self._loop.run)
        names, options = zip(*((choice.name, choice.options) for choice in choices), strict=True)
        drafts = (self._settings.speculation, backend.draft_model)
        engine = Engine(self._loop, backend.model, backend.config, *names, *options)
        await self._intake.open(replace(engine, drafts=drafts))
        return backend

    async def failure(self) -> BaseException:
        """Returns when the engine thread has ended by itself, with the reason; calls in progress have been ended."""
        assert self._loop_ended is not None, "the engine is not open"
        await asyncio.wait((self._loop_ended,))
        error = self._loop_ended.exception()
        assert error is not None, "only close stops the loop"
        await self._intake.fail("the engine has failed")
        return error

    async def drain(self, grace_s: float) -> None:
        """Nothing enters any more; what is inside has ended, by itself within `grace_s`, cancelled after it."""
        await self._intake.close()
        try:
            async with asyncio.timeout(grace_s):
                await self._intake.wait_idle()
        except TimeoutError:
            await self._cancel_all()

    async def close(self) -> None:
        """The address is free again and the engine thread idle, unless it is still loading."""
        if self._servicer is not None:
            self._servicer.close()
        if self._page is not None:
            await self._page.close()
        await self._server.stop(STOP_S)
        if self._loop is not None and self._loop_ended is not None:
            self._loop.submit(Stop())
            await asyncio.wait((self._loop_ended,))
        self._thread.shutdown(wait=False)
        if self._log_file is not None:
            self._log_file.close()

    async def _cancel_all(self) -> None:
        self._intake.abort_all(FinishReason.CANCELLED)
        try:
            async with asyncio.timeout(ABORT_S):
                await self._intake.wait_idle()
        except TimeoutError:
            log.warning("requests cut off at the end of the grace time")


def _choices(settings: EngineSettings) -> tuple[PolicyChoice, PolicyChoice]:
    return (
        PolicyChoice(settings.scheduling_policy, policy_options("scheduling_option", settings.scheduling_option)),
        PolicyChoice(settings.preemption_policy, policy_options("preemption_option", settings.preemption_option)),
    )


def _open_log(path: Path | None) -> TextIO | None:
    """A new file for its owner only: it names tenants. Raises SettingsError."""
    if path is None:
        return None
    try:
        return open(path, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, mode=0o600))
    except OSError as error:
        raise SettingsError("decision_log", f"cannot be written: {error.strerror}") from error


def _recorded(scheduler: Scheduler, file: TextIO | None, header: LogHeader) -> Driven:
    return scheduler if file is None else RecordedScheduler(scheduler, DecisionLog(file, header))


def deliver(deliveries: list[Delivery]) -> None:
    """Put each update into its outlet."""
    for outlet, update, at in deliveries:
        outlet.put(update, at)
