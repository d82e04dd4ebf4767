"""A whole engine process: from settings to an exit code. Signals, the parent's end and the traces are handled here."""

import asyncio
import os
import signal
import threading
from collections import abc
from dataclasses import asdict

import structlog

from engine import machine
from engine.errors import SettingsError
from engine.plugins import PolicyError, load_preemption_policy, load_scheduling_policy
from engine.server.backend import Backend
from engine.server.engine_server import EngineServer, Policies
from engine.settings import EngineSettings, policy_options
from engine.telemetry import Tracing, start_tracing

log = structlog.get_logger(__name__)

EXIT_STOPPED = 0
EXIT_FAILED = 1
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
FLUSH_S = 3.0


async def serve(settings: EngineSettings, load: abc.Callable[[], Backend]) -> int:
    """Serve what `load` loads until a signal, or the engine's failure; returns the process's exit code.

    The first SIGTERM or SIGINT drains, the second ends the process at once. Raises StartError and what `load` raises.
    """
    stop = _stop_requested(settings.parent_pid)
    server = EngineServer(settings, load_policies(settings), tracing := start_tracing())
    address = await server.listen()
    log.info("listening", address=address, metrics=server.metrics_address)
    try:
        return await _serve(server, load, stop, settings.grace_s)
    finally:
        await server.close()
        _flush(tracing)
        log.info("stopped")


def load_policies(settings: EngineSettings) -> Policies:
    """The plug-ins that the settings name, before the model is loaded: a misspelt name must not cost a minute.

    Raises SettingsError.
    """
    scheduling_options = policy_options("scheduling_option", settings.scheduling_option)
    preemption_options = policy_options("preemption_option", settings.preemption_option)
    try:
        setting = "scheduling_policy"
        scheduling = load_scheduling_policy(settings.scheduling_policy, scheduling_options)
        setting = "preemption_policy"
        preemption = load_preemption_policy(settings.preemption_policy, preemption_options)
    except PolicyError as error:
        raise SettingsError(setting, f"cannot be loaded: {error}") from error
    return Policies(scheduling, preemption)


async def _serve(server: EngineServer, load: abc.Callable[[], Backend], stop: asyncio.Event, grace_s: float) -> int:
    stopping = asyncio.create_task(stop.wait())
    opening = asyncio.create_task(server.open(load))
    await asyncio.wait((opening, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not opening.done():
        await server.close()
        log.info("stopped while loading")
        os._exit(EXIT_STOPPED)  # the engine's thread is in native code that nothing interrupts
    backend = await opening
    config = {key: getattr(value, "value", value) for key, value in asdict(backend.config).items()}
    log.info("serving", model=backend.model.name, **config)
    failing = asyncio.create_task(server.failure())
    await asyncio.wait((failing, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not failing.done():
        log.info("draining", grace_s=grace_s)
        await server.drain(grace_s)
    if failing.done():
        log.error("engine failed", exc_info=failing.result())
        return EXIT_FAILED
    failing.cancel()
    return EXIT_STOPPED


def _stop_requested(parent_pid: int | None) -> asyncio.Event:
    """Set by the first signal, or by the parent's end. A second signal ends the process."""
    stop = asyncio.Event()

    def on_signal(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    if parent_pid is not None:
        watch = asyncio.create_task(machine.parent_exit(parent_pid))
        watch.add_done_callback(lambda _: stop.set())
    return stop


def _flush(tracing: Tracing | None) -> None:
    """Export what is left, in bounded time: a collector that is away must not hold the process."""
    if tracing is not None:
        thread = threading.Thread(target=tracing.shutdown, daemon=True)
        thread.start()
        thread.join(FLUSH_S)
