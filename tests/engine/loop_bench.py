"""A loop whose turns a test takes by hand, on a clock that stands still."""

from engine.core.config import SchedulerConfig
from engine.core.events import Finished, TokensEmitted
from engine.core.scheduler import Scheduler
from engine.core.types import PathNode, Request
from engine.loop import EngineLoop, Submit
from engine.plugins import load_preemption_policy, load_scheduling_policy
from tests.engine.fake_runner import FakeRunner

CONFIG = SchedulerConfig(
    max_num_seqs=4, max_num_batched_tokens=16, block_size=4, num_device_blocks=16, max_model_len=99
)


class Clock:
    """Stands still unless it is told otherwise."""

    def __init__(self) -> None:
        self.now_ns = 1_000

    def __call__(self) -> int:
        return self.now_ns


class Outlet:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.updates = []
        self.times = []

    def put(self, update, at) -> None:
        self.updates.append(update)
        self.times.append(at)

    @property
    def kinds(self):
        return [type(update) for update in self.updates]

    @property
    def token_ids(self):
        return [token for update in self.updates if isinstance(update, TokensEmitted) for token in update.token_ids]

    @property
    def finished(self):
        assert self.kinds.count(Finished) == 1
        assert self.kinds[-1] is Finished
        return self.updates[-1]


class Bench:
    """A loop whose turns the test takes by hand."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.runner = FakeRunner()
        self.num_deliveries = 0
        policies = load_scheduling_policy("fcfs", {}), load_preemption_policy("latest_arrival", {})
        self.loop = EngineLoop(Scheduler(CONFIG, *policies), self.runner, self.deliver, self.clock)

    def deliver(self, deliveries) -> None:
        self.num_deliveries += 1
        for outlet, update, at in deliveries:
            outlet.put(update, at)

    def submit(self, generation_id: str, **fields) -> Outlet:
        outlet = Outlet()
        fields = {"max_output_tokens": 3, "prompt_token_ids": (5, 6, 7)} | fields
        request = Request(generation_id, (PathNode("acme", 1.0),), arrived_at=self.loop.now(), **fields)
        self.loop.submit(Submit(outlet, request))
        return outlet

    def turn(self) -> bool:
        self.loop.take_commands()
        return self.loop.step()

    def until_idle(self) -> int:
        num_turns = 0
        while self.turn():
            num_turns += 1
        return num_turns
