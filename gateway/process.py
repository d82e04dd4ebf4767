"""The life of a gateway process: started, run until a signal or a bug, drained, closed."""

import asyncio
import gc
import os
import signal

import structlog

from gateway.server import Gateway
from gateway.settings import GatewaySettings
from gateway.telemetry import configure_logging, start_telemetry

# Objects that are new and not gone again, between two looks for cycles among them: some dozens of requests.
YOUNG_OBJECTS = 20_000

log = structlog.get_logger()


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
        _collect_less()
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


def _collect_less() -> None:
    """What a started process has, it keeps: hundreds of thousands of objects that are never looked through again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


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
