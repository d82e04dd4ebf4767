"""Live engines without a model, on a clock that only their steps and sleeps move."""

from dataclasses import dataclass
from types import SimpleNamespace

from engine.commands.simulation.live import Clock, LiveEngine
from engine.core.config import SchedulerConfig
from engine.core.plan import StepOutput, StepPlan
from engine.sim.cost_lines import CostLine, StepTimes
from engine.sim.reference_runner import VOCABULARY_SIZE, ConstantRunner
from engine.sim.traffic.row import NANOS_PER_S


@dataclass
class VirtualTime:
    now: int = 1_000  # a monotonic clock begins anywhere

    def read(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * NANOS_PER_S)


class PacedRunner:
    """Its steps take what the cost line says. Only for pools without a host: it has no copies."""

    def __init__(self, line: CostLine, time: VirtualTime) -> None:
        self._runner = ConstantRunner()
        self._times = StepTimes(line)
        self._time = time

    def execute(self, plan: StepPlan) -> StepOutput:
        self._time.now += self._times.step_ns(plan)
        return self._runner.execute(plan)

    def take_completed(self) -> tuple:
        return ()


def make_live_engine(config: SchedulerConfig, line: CostLine) -> LiveEngine:
    time = VirtualTime()
    model = SimpleNamespace(vocabulary_size=VOCABULARY_SIZE)
    backend = SimpleNamespace(runner=PacedRunner(line, time), model=model, config=config)
    return LiveEngine(backend, clock=Clock(time.read, time.sleep))
