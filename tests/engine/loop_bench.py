"""A loop whose turns a test takes by hand, on a clock that stands still."""

from engine.core.config import SchedulerConfig
from engine.core.events import Finished, TokensEmitted
from engine.core.plan import StepPlan
from engine.core.scheduler import Scheduler
from engine.core.types import PathNode, Request
from engine.loop import EngineLoop
from engine.loop_messages import Submit
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


def make_request(generation_id: str, arrived_at: int, **fields) -> Request:
    fields = {"max_output_tokens": 3, "prompt_token_ids": (5, 6, 7)} | fields
    return Request(generation_id, (PathNode("acme", 1.0),), arrived_at=arrived_at, **fields)


class ScriptedScheduler:
    """Plans what it was given, and remembers what it was told."""

    def __init__(self, *plans: StepPlan) -> None:
        self.plans = list(plans)
        self.told = []
        self.policy_fault = None

    def expire(self, _now):
        return []

    def next_expiry(self):
        return None

    def plan(self, _now):
        return self.plans.pop(0) if self.plans else None

    def commit(self, output, _now):
        self.told.append(("commit", output.completed_copies))
        return []

    def complete_copies(self, copy_ids, now):
        self.told.append(("complete_copies", copy_ids, now))
        return []

    def requeue(self, _now):
        self.told.append(("requeue",))
        return []

    def fail_all(self, _error, _now):
        self.told.append(("fail_all",))
        return []

    def calibrate(self, prices, now):
        self.told.append(("calibrate", prices, now))

    def set_scheduling_policy(self, policy, now):
        self.told.append(("set_scheduling_policy", policy, now))

    def set_preemption_policy(self, policy, now):
        self.told.append(("set_preemption_policy", policy, now))

    def update_nodes(self, nodes, now):
        self.told.append(("update_nodes", nodes, now))

    def update_classes(self, classes, revision, now):
        self.told.append(("update_classes", classes, revision, now))


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
        self.loop.submit(Submit(outlet, make_request(generation_id, self.loop.now(), **fields)))
        return outlet

    def turn(self) -> bool:
        self.loop.take_commands()
        return self.loop.step()

    def until_idle(self) -> int:
        num_turns = 0
        while self.turn():
            num_turns += 1
        return num_turns
