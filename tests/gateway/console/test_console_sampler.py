"""The sampler: one question a second at most, rates over windows, and a history that does not grow."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest
from structlog.testing import capture_logs

from gateway.console.overview import sampler
from gateway.console.overview.sampler import HISTORY_S, INTERVAL_S, SHARE_WINDOW_S, Sampler
from gateway.store.snapshot import EMPTY_SNAPSHOT
from tests.admin.service import tenant_stats
from tests.gateway.console.test_readings import ACME, GLOBEX, report
from tests.gateway.world import eventually

BEGIN = datetime(2026, 11, 30, 10, tzinfo=UTC)


class Clock:
    """Engines whose tenants are served at a pace, and the time, which moves when it is told to."""

    def __init__(self, **tokens_per_s: int) -> None:
        self.now_s = 0.0
        self.num_questions = 0
        self.pace = {
            ("acme", "search"): tokens_per_s.get("acme", 0),
            ("globex", "search"): tokens_per_s.get("globex", 0),
        }
        self.is_away = False
        self.failures: list[Exception] = []
        self.sampler = Sampler(
            self.report,
            lambda: EMPTY_SNAPSHOT,
            clock=lambda: self.now_s,
            now=lambda: BEGIN + timedelta(seconds=self.now_s),
        )

    async def report(self):
        """Fails with the next of `failures`, if there is one."""
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        self.num_questions += 1
        tenants = tuple(
            tenant_stats(
                path, num_prefill_tokens=int(pace * self.now_s), served_work=pace * self.now_s, num_output_tokens=0
            )
            for path, pace in self.pace.items()
        )
        return report(("e", None if self.is_away else tenants))

    async def after(self, length_s: float):
        self.now_s += length_s
        return await self.sampler.latest()


async def test_however_many_look_the_engines_are_asked_once_a_second():
    clock = Clock()
    readings = await asyncio.gather(*(clock.sampler.latest() for _ in range(50)))
    await clock.after(0.9)

    assert clock.num_questions == 1
    assert len(set(map(id, readings))) == 1
    await clock.after(0.1)
    assert clock.num_questions == 2


async def test_rates_are_the_counters_rise_over_a_few_seconds():
    clock = Clock(acme=40, globex=10)
    first = await clock.sampler.latest()
    assert (first.now, first.now_s) == ({}, 0.0)
    for _ in range(30):
        reading = await clock.after(1.0)

    assert reading.now_s == 5.0
    assert reading.now[ACME].per_second(reading.now_s).tokens == pytest.approx(40)
    assert reading.lately_s == 30.0
    assert reading.lately[GLOBEX].work == pytest.approx(300)
    assert reading.jain == pytest.approx((0.5 * (40 + 10)) ** 2 * 2 / (40**2 + 10**2))


async def test_tenant_that_has_just_come_is_not_taken_for_badly_served():
    clock = Clock(acme=40)
    late = clock.pace.pop(GLOBEX)
    for _ in range(60):
        await clock.after(1.0)
    clock.pace[GLOBEX] = late

    assert (await clock.after(1.0)).jain is None
    for _ in range(60):
        reading = await clock.after(1.0)
    assert reading.jain == pytest.approx(0.5)


async def test_the_history_has_a_point_each_few_seconds_and_ends_after_ten_minutes():
    clock = Clock(acme=40)
    for _ in range(int(HISTORY_S / INTERVAL_S) + 30):
        reading = await clock.after(INTERVAL_S)

    assert len(reading.history) == HISTORY_S / INTERVAL_S
    assert reading.history[-1].at - reading.history[-2].at == timedelta(seconds=INTERVAL_S)
    assert reading.history[-1].total.prompt_tokens == pytest.approx(40)
    assert reading.lately_s == SHARE_WINDOW_S


async def test_what_was_served_while_the_engine_was_away_is_spread_over_that_time():
    clock = Clock(acme=40)
    for _ in range(10):
        await clock.after(1.0)
    clock.is_away = True
    away = await clock.after(10.0)
    clock.is_away = False
    back = await clock.after(1.0)

    assert (away.now, away.gap, away.jain) == ({}, 0.0, None)
    assert back.now_s == 11.0
    assert back.now[ACME].per_second(back.now_s).tokens == pytest.approx(40)


async def test_it_goes_on_by_itself_until_it_is_cancelled():
    clock = Clock()
    running = asyncio.create_task(clock.sampler.run())
    await eventually(lambda: clock.num_questions)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_it_goes_on_when_a_report_fails(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sampler, "INTERVAL_S", 0.001)
    clock = Clock()
    clock.failures = [OSError("disk")]
    with capture_logs() as logs:
        running = asyncio.create_task(clock.sampler.run())
        await eventually(lambda: clock.num_questions)
        running.cancel()
        await asyncio.wait([running])

    assert [each["event"] for each in logs] == ["the console has no figures"]


async def test_whoever_is_served_least_is_remembered_too():
    clock = Clock()
    clock.pace = {("acme", f"t{number:02}"): 100 - number for number in range(80)}
    for _ in range(3):
        reading = await clock.after(INTERVAL_S)

    assert len(reading.history[-1].served) == 80
    assert reading.history[-1].served[("acme", "t79")].prompt_tokens == pytest.approx(21)
    assert reading.history[-1].served.paths is reading.history[-2].served.paths


async def test_arithmetic_is_not_done_on_the_event_loop(monkeypatch: pytest.MonkeyPatch):
    threads = set()
    counted = sampler.counters_of

    def noting(*args):
        threads.add(threading.get_ident())
        return counted(*args)

    monkeypatch.setattr(sampler, "counters_of", noting)
    await Clock(acme=40).sampler.latest()

    assert threads
    assert threading.get_ident() not in threads
