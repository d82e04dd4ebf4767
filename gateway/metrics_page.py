"""The metrics of one process, from its report to its page; one scrape at a time."""

import asyncio
from collections import abc

from prometheus_client.core import Metric

from gateway.meters import Meters
from gateway.metrics import Metrics
from gateway.metrics_endpoint import MetricsEndpoint
from gateway.status import SystemReport
from gateway.store.cache import TenancyCache


class MetricsPage:
    """Use as: made (the address is taken), `start`, `close`. Without an address there is no page."""

    def __init__(
        self,
        address: tuple[str, int] | None,
        meters: Meters,
        cache: TenancyCache,
        report: abc.Callable[[], abc.Awaitable[SystemReport]],
    ) -> None:
        """Raises SettingsError if the address cannot be listened on."""
        self._metrics = Metrics(meters)
        self._cache = cache
        self._report = report
        self._scraping = asyncio.Lock()
        self._endpoint = None if address is None else MetricsEndpoint(address, self._collect)

    @property
    def address(self) -> str:
        """HOST:PORT; empty where there is no page."""
        return "" if self._endpoint is None else self._endpoint.address

    async def start(self) -> None:
        """The page can be read."""
        if self._endpoint is not None:
            await self._endpoint.start()

    async def close(self) -> None:
        """The address is free again."""
        if self._endpoint is not None:
            await self._endpoint.close()

    async def _collect(self) -> list[Metric]:
        async with self._scraping:
            report = await self._report()
            return await asyncio.to_thread(self._metrics.families, report, self._cache.current)
