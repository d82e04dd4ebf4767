"""The one sampler of a gateway: it asks the engines at most once a second, however many pages look, and keeps a while.

What it hands out are immutable readings; whoever looks gets the newest one. While nobody does it asks every few
seconds, so that whoever opens the page finds the last minutes there. The arithmetic is done on a thread.
"""

import asyncio
import time
from collections import abc, deque
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import structlog

from gateway.console.overview.readings import Counters, counters_of, denied_throughout, fairness_of, gap_of
from gateway.console.overview.served_history import ServedByTenant
from gateway.fair_shares import Path, Weights
from gateway.served import Served, served_between
from gateway.status import SystemReport
from gateway.store.snapshot import TenancySnapshot

MIN_INTERVAL_S = 1.0
# While nobody looks, too.
INTERVAL_S = 5.0
# Of the figures that move: long enough that a step more or less does not show.
RATE_WINDOW_S = 5.0
# Of shares: long enough that two tenants who take turns are seen to share.
SHARE_WINDOW_S = 60.0
HISTORY_S = 600.0

log = structlog.get_logger()

Report = abc.Callable[[], abc.Awaitable[SystemReport]]
Snapshot = abc.Callable[[], TenancySnapshot]


@dataclass(frozen=True, slots=True)
class Moment:
    """A point of the history. `served` is by tenant and second, `total` that of all together.

    `gap` is in cost units by weight; `jain` None: there were no two tenants to compare.
    """

    at: datetime
    total: Served
    served: ServedByTenant
    num_running: int
    num_waiting: int
    gap: float
    jain: float | None


@dataclass(frozen=True, slots=True)
class Reading:
    """What was seen at one moment, and what led there.

    now, lately            what each tenant was served in the last `now_s` and `lately_s` seconds; 0: nothing is known
    jain                   over `lately`; None: there are no two tenants to compare
    """

    at: datetime
    report: SystemReport
    now: abc.Mapping[Path, Served]
    now_s: float
    lately: abc.Mapping[Path, Served]
    lately_s: float
    weights: Weights
    gap: float
    jain: float | None
    history: tuple[Moment, ...] = ()


class Sampler:
    """Use as: `run` in the background, `latest` for whoever looks.

    `snapshot` gives the tenancy that is in force; the clocks are time's own unless a test has others.
    """

    def __init__(
        self,
        report: Report,
        snapshot: Snapshot,
        *,
        clock: abc.Callable[[], float] = time.monotonic,
        now: abc.Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._report = report
        self._snapshot = snapshot
        self._clock = clock
        self._now = now
        self._reading: Reading | None = None
        self._counters: deque[Counters] = deque()
        self._history: deque[Moment] = deque(maxlen=round(HISTORY_S / INTERVAL_S))
        self._moment_s = float("-inf")
        self._taking = asyncio.Lock()

    async def run(self) -> None:
        """Take readings until cancelled."""
        while True:
            try:
                await self.latest()
            except Exception:
                # Figures for pages: whatever goes wrong with them, the gateway goes on.
                log.exception("the console has no figures")
            await asyncio.sleep(INTERVAL_S)

    async def latest(self) -> Reading:
        """A reading that is less than a second old."""
        async with self._taking:
            taken_s = self._counters[-1].taken_s if self._counters else float("-inf")
            if self._reading is None or self._clock() - taken_s >= MIN_INTERVAL_S:
                self._reading = await self._take()
            return self._reading

    async def _take(self) -> Reading:
        report = await self._report()
        taken_s, at = self._clock(), self._now()
        earlier, last = tuple(self._counters), self._history[-1] if self._history else None
        counters, reading = await asyncio.to_thread(_read, report, taken_s, at, earlier, self._snapshot())
        if taken_s - self._moment_s >= INTERVAL_S and reading.now_s:
            moment = await asyncio.to_thread(_moment, reading, last)
            self._moment_s = taken_s
            self._history.append(moment)
        self._keep(counters)
        return replace(reading, history=tuple(self._history))

    def _keep(self, counters: Counters) -> None:
        """The oldest that stays is the newest that is as old as the longer window."""
        self._counters.append(counters)
        while len(self._counters) > 1 and counters.taken_s - self._counters[1].taken_s >= SHARE_WINDOW_S:
            self._counters.popleft()


def weights_of(paths: abc.Iterable[Path], snapshot: TenancySnapshot) -> Weights:
    """Those of the teams at `paths` and of their organizations, by paths of ids; what is unknown here has none."""
    weights: dict[Path, float] = {}
    for path in paths:
        if (known := snapshot.weights_of(path)) is not None:
            weights[path[:1]], weights[path] = known
    return weights


def _paths(report: SystemReport) -> abc.Iterable[Path]:
    return (tenant.path for engine in report.engines if engine.stats is not None for tenant in engine.stats.tenants)


def _read(
    report: SystemReport, taken_s: float, at: datetime, earlier: abc.Sequence[Counters], snapshot: TenancySnapshot
) -> tuple[Counters, Reading]:
    """What the report shows after the `earlier` counters, oldest first; and its own counters."""
    counters = counters_of(report, taken_s)
    now, now_s = _since(earlier, counters, RATE_WINDOW_S)
    lately, lately_s = _since(earlier, counters, SHARE_WINDOW_S)
    weights = weights_of(_paths(report), snapshot)
    denied = denied_throughout(_begin(earlier, counters, SHARE_WINDOW_S), counters)
    jain = fairness_of(denied, lately, weights)
    return counters, Reading(at, report, now, now_s, lately, lately_s, weights, gap_of(report), jain)


def _since(earlier: abc.Sequence[Counters], counters: Counters, window_s: float) -> tuple[dict[Path, Served], float]:
    """What was served since `_begin`, and how long that is."""
    begin = _begin(earlier, counters, window_s)
    return served_between(begin.by_engine, counters.by_engine), counters.taken_s - begin.taken_s


def _begin(earlier: abc.Sequence[Counters], counters: Counters, window_s: float) -> Counters:
    """The newest that are at least `window_s` old, or the oldest."""
    begin = earlier[0] if earlier else counters
    for each in earlier:
        if counters.taken_s - each.taken_s < window_s:
            break
        begin = each
    return begin


def _moment(reading: Reading, last: Moment | None) -> Moment:
    rates = {path: served.per_second(reading.now_s) for path, served in reading.now.items()}
    stats = [engine.stats for engine in reading.report.engines if engine.stats is not None]
    return Moment(
        at=reading.at,
        total=sum(rates.values(), Served()),
        served=ServedByTenant(rates, None if last is None else last.served),
        num_running=sum(each.requests.num_running for each in stats),
        num_waiting=sum(each.requests.num_waiting for each in stats),
        gap=reading.gap,
        jain=reading.jain,
    )
