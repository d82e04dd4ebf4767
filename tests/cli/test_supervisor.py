"""The rules of keeping parts running, on a clock that moves only when somebody waits for it."""

import asyncio

import pytest

from gateway.cli.parts import Change, Exit, PartError, Phase
from gateway.cli.supervisor import RestartPolicy, Supervisor

POLICY = RestartPolicy(first_delay_s=1.0, max_delay_s=8.0, healthy_after_s=60.0, max_failed_starts=3)


class VirtualClock:
    """Sleeping takes no time and moves the clock; the sleeps are kept."""

    def __init__(self) -> None:
        self.sleeps_s: list[float] = []
        self._now_s = 0.0

    def now_s(self) -> float:
        return self._now_s

    def pass_s(self, seconds: float) -> None:
        self._now_s += seconds

    async def sleep(self, delay_s: float) -> None:
        self.sleeps_s.append(delay_s)
        self._now_s += delay_s
        await asyncio.sleep(0)


class FakeRunning:
    """A started part: serves if it was made to, and ends when the test or its keeper says so."""

    def __init__(self, part: "FakePart", failure: PartError | None) -> None:
        self._part = part
        self._failure = failure
        self._ended = asyncio.Event()
        self.is_stopped = self.is_killed = False
        self.code = 0

    async def ready(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def wait(self) -> Exit:
        await self._ended.wait()
        return Exit(self.code)

    async def stop(self) -> None:
        self.is_stopped = True
        if not self._ended.is_set():
            self._part.log.append(f"stop {self._part.name}")
            self.end(0)

    def kill(self) -> None:
        self.is_killed = True
        self.end(-9)

    def end(self, code: int) -> None:
        self.code = code
        self._ended.set()


class FakePart:
    """Each start takes the next of `outcomes`: None serves, an error fails; after the last it serves."""

    def __init__(self, name: str, *outcomes: PartError | None, log: list[str] | None = None) -> None:
        self.name = name
        self.log: list[str] = [] if log is None else log
        self.starts: list[FakeRunning] = []
        self.started = asyncio.Condition()
        self._outcomes = list(outcomes)

    async def start(self) -> FakeRunning:
        running = FakeRunning(self, self._outcomes.pop(0) if self._outcomes else None)
        async with self.started:
            self.starts.append(running)
            self.started.notify_all()
        return running

    async def until_started(self, num_starts: int) -> None:
        async with asyncio.timeout(5), self.started:
            await self.started.wait_for(lambda: len(self.starts) >= num_starts)


class Harness:
    """A supervisor, its clock, and what it reported."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.changes: list[Change] = []
        self.supervisor = Supervisor(POLICY, self.clock, self.changes.append)

    def phases(self, part: str) -> list[Phase]:
        return [change.phase for change in self.changes if change.part == part]


@pytest.fixture
async def harness() -> Harness:
    return Harness()


async def test_part_that_serves_is_ready(harness: Harness):
    part = FakePart("engine")

    async with harness.supervisor as supervisor:
        await supervisor.until_ready(supervisor.keep(part))

        assert harness.phases("engine") == [Phase.STARTING, Phase.READY]


async def test_part_that_dies_is_started_again_at_growing_distances(harness: Harness):
    part = FakePart("engine")

    async with harness.supervisor as supervisor:
        keeper = supervisor.keep(part)
        for num_starts in range(1, 7):
            await part.until_started(num_starts)
            await supervisor.until_ready(keeper)
            part.starts[-1].end(-9)
            keeper.is_ready.clear()
        await part.until_started(7)

        assert harness.clock.sleeps_s == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


async def test_distances_start_over_after_a_healthy_time(harness: Harness):
    part = FakePart("engine")

    async with harness.supervisor as supervisor:
        keeper = supervisor.keep(part)
        for num_starts, served_s in ((1, 0.0), (2, 0.0), (3, 60.0), (4, 59.0)):
            await part.until_started(num_starts)
            await supervisor.until_ready(keeper)
            harness.clock.pass_s(served_s)
            part.starts[-1].end(1)
            keeper.is_ready.clear()
        await part.until_started(5)

        assert harness.clock.sleeps_s == [1.0, 2.0, 1.0, 2.0]


async def test_part_that_never_serves_is_given_up(harness: Harness):
    part = FakePart("engine", *(PartError("engine", "ended") for _ in range(9)))

    with pytest.raises(PartError, match="engine ended"):
        async with harness.supervisor as supervisor:
            await supervisor.until_ready(supervisor.keep(part))

    assert len(part.starts) == POLICY.max_failed_starts
    assert harness.phases("engine")[-1] is Phase.FAILED


async def test_fatal_failure_is_not_tried_again(harness: Harness):
    part = FakePart("engine", PartError("engine", "refused its settings", fatal=True))

    with pytest.raises(PartError, match="refused its settings"):
        async with harness.supervisor as supervisor:
            await supervisor.until_ready(supervisor.keep(part))

    assert len(part.starts) == 1
    assert harness.clock.sleeps_s == []


async def test_serving_once_forgives_earlier_failed_starts(harness: Harness):
    failure = PartError("engine", "ended")
    part = FakePart("engine", failure, failure, None, failure, failure, None)

    async with harness.supervisor as supervisor:
        keeper = supervisor.keep(part)
        await supervisor.until_ready(keeper)
        part.starts[-1].end(1)
        keeper.is_ready.clear()
        await supervisor.until_ready(keeper)

        assert len(part.starts) == 6


async def test_failed_start_is_cleaned_up_before_the_next(harness: Harness):
    part = FakePart("engine", PartError("engine", "did not serve in time"))

    async with harness.supervisor as supervisor:
        await supervisor.until_ready(supervisor.keep(part))

        assert [running.is_stopped for running in part.starts] == [True, False]


async def test_parts_are_stopped_newest_first(harness: Harness):
    log: list[str] = []

    async with harness.supervisor as supervisor:
        keepers = [supervisor.keep(FakePart(name, log=log)) for name in ("postgres", "engine", "gateway")]
        await supervisor.until_ready(*keepers)

    assert log == ["stop gateway", "stop engine", "stop postgres"]
    assert harness.phases("gateway")[-2:] == [Phase.STOPPING, Phase.STOPPED]


async def test_stopped_part_is_not_started_again(harness: Harness):
    part = FakePart("engine")

    async with harness.supervisor as supervisor:
        keeper = supervisor.keep(part)
        await supervisor.until_ready(keeper)
        await supervisor.drop(keeper)

        assert len(part.starts) == 1


async def test_part_is_stopped_while_it_waits_to_restart(harness: Harness):
    part = FakePart("engine")
    is_waiting = asyncio.Event()

    async def sleep(_delay_s: float) -> None:
        is_waiting.set()
        await asyncio.Event().wait()

    harness.clock.sleep = sleep  # type: ignore[method-assign]
    async with harness.supervisor as supervisor:
        keeper = supervisor.keep(part)
        await supervisor.until_ready(keeper)
        part.starts[0].end(1)
        await is_waiting.wait()
        await asyncio.wait_for(supervisor.drop(keeper), 5)

    assert len(part.starts) == 1


async def test_waiting_for_one_part_ends_when_another_is_given_up(harness: Harness):
    class NeverReady(FakeRunning):
        async def ready(self) -> None:
            raise PartError("gateway", str(await self.wait()))

    class SlowPart(FakePart):
        async def start(self) -> FakeRunning:
            return NeverReady(self, None)

    broken = FakePart("engine", PartError("engine", "no model", fatal=True))

    async def bring_up(supervisor: Supervisor) -> None:
        slow = supervisor.keep(SlowPart("gateway"))
        supervisor.keep(broken)
        await supervisor.until_ready(slow)

    with pytest.raises(PartError, match="no model"):
        async with harness.supervisor as supervisor:
            await asyncio.wait_for(bring_up(supervisor), 5)


async def test_guarded_work_is_cancelled_when_a_part_is_given_up(harness: Harness):
    was_cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_cancelled.set()
            raise

    async with harness.supervisor as supervisor:
        supervisor.keep(FakePart("engine", PartError("engine", "no model", fatal=True)))
        with pytest.raises(PartError):
            await supervisor.guard(work())

    assert was_cancelled.is_set()


async def test_killing_ends_every_part_by_force(harness: Harness):
    parts = [FakePart("engine"), FakePart("gateway")]

    async with harness.supervisor as supervisor:
        await supervisor.until_ready(*[supervisor.keep(part) for part in parts])
        supervisor.kill()

    assert [part.starts[0].is_killed for part in parts] == [True, True]
    assert [len(part.starts) for part in parts] == [1, 1]


@pytest.mark.parametrize(("num_restarts", "delay_s"), [(1, 1.0), (2, 2.0), (4, 8.0), (5, 8.0), (10**6, 8.0)])
def test_delay_doubles_up_to_the_cap(num_restarts: int, delay_s: float):
    assert POLICY.delay_s(num_restarts) == delay_s
