"""One engine behind one address: listen, load, serve, drain, close.

Two threads. asyncio's owns the socket and the calls; the engine's loads the model and then runs the loop, so that what
torch keeps per thread (its compute threads, the CUDA context) is made where it is used.
"""

import asyncio
from collections import abc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc
import structlog
from grpc_health.v1 import health_pb2_grpc

from engine.core.policy import PreemptionPolicy, SchedulingPolicy
from engine.core.scheduler import Scheduler
from engine.core.types import FinishReason
from engine.loop import Delivery, EngineLoop, Stop
from engine.server.backend import Backend
from engine.server.intake import Engine, Intake
from engine.server.listener import bind, parse_address
from engine.server.servicer import EngineServicer
from engine.settings import EngineSettings
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


@dataclass(frozen=True, slots=True)
class Policies:
    """The two plug-ins."""

    scheduling: SchedulingPolicy
    preemption: PreemptionPolicy


class EngineServer:
    """Its methods are called in the order listen, open, drain, close; close alone is fine at any time after listen."""

    def __init__(self, settings: EngineSettings, policies: Policies, tracing: Tracing | None) -> None:
        self._settings = settings
        self._policies = policies
        self._intake = Intake(tracing)
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._loop: EngineLoop | None = None
        self._loop_ended: asyncio.Future[None] | None = None

    async def listen(self) -> str:
        """Answers on the address of the settings, which is returned as clients use it; health says NOT_SERVING.

        Raises SettingsError, ListenError.
        """
        address = parse_address(self._settings.listen)
        await self._intake.begin()
        self._server.add_generic_rpc_handlers((EngineServicer(self._intake).handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._intake.health, self._server)
        client_address = bind(self._server, address)
        await self._server.start()
        return client_address

    async def open(self, load: abc.Callable[[], Backend]) -> Backend:
        """The backend is loaded and requests are served. Raises what `load` raises."""
        aio = asyncio.get_running_loop()
        backend = await aio.run_in_executor(self._thread, load)
        scheduler = Scheduler(backend.config, self._policies.scheduling, self._policies.preemption)
        self._loop = EngineLoop(scheduler, backend.runner, lambda batch: aio.call_soon_threadsafe(deliver, batch))
        self._loop_ended = aio.run_in_executor(self._thread, self._loop.run)
        names = self._settings.scheduling_policy, self._settings.preemption_policy
        await self._intake.open(Engine(self._loop, backend.model, backend.config, *names))
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
        await self._server.stop(STOP_S)
        if self._loop is not None and self._loop_ended is not None:
            self._loop.submit(Stop())
            await asyncio.wait((self._loop_ended,))
        self._thread.shutdown(wait=False)

    async def _cancel_all(self) -> None:
        self._intake.abort_all(FinishReason.CANCELLED)
        try:
            async with asyncio.timeout(ABORT_S):
                await self._intake.wait_idle()
        except TimeoutError:
            log.warning("requests cut off at the end of the grace time")


def deliver(deliveries: list[Delivery]) -> None:
    """Put each update into its outlet."""
    for outlet, update, at in deliveries:
        outlet.put(update, at)
