"""The engine's metrics, from its thread to a page: figures are asked for on the event loop, families made here."""

import asyncio
import threading
from collections import abc

import structlog
from prometheus_client.core import Metric

from engine.errors import NotReadyError
from engine.server.figures import Figures
from engine.server.listener import TcpAddress
from engine.server.metrics import EngineMetrics
from engine.server.metrics_endpoint import MetricsEndpoint

ANSWER_TIMEOUT_S = 8.0
"""How long a scrape waits for the step in progress. Less than Prometheus, which gives up after ten seconds."""

log = structlog.get_logger(__name__)


class EnginePage:
    """Made on the event loop that `figures` are asked for on. Use as: made (the address is taken), `start`, `close`."""

    def __init__(self, address: tuple[str, int], figures: abc.Callable[[], abc.Coroutine[None, None, Figures]]) -> None:
        """Raises ListenError."""
        self._aio = asyncio.get_running_loop()
        self._figures = figures
        self._metrics = EngineMetrics()
        self._making = threading.Lock()
        self._endpoint = MetricsEndpoint(TcpAddress(*address), self._collect)
        self.address = self._endpoint.address

    def start(self) -> None:
        """The page can be read."""
        self._endpoint.start()

    async def close(self) -> None:
        """The address is free again. A scrape that is under way gets its answer, or none."""
        await asyncio.to_thread(self._endpoint.close)

    def _collect(self) -> list[Metric]:
        """On a thread of the endpoint's."""
        figures = self._ask()
        with self._making:
            return self._metrics.families(figures)

    def _ask(self) -> Figures | None:
        asked = asyncio.run_coroutine_threadsafe(self._figures(), self._aio)
        try:
            return asked.result(ANSWER_TIMEOUT_S)
        except NotReadyError:
            return None
        except TimeoutError:
            asked.cancel()
            log.warning("the engine has no figures", waited_s=ANSWER_TIMEOUT_S)
            return None
