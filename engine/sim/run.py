"""One run of the simulator: from what was asked for, through a world of new schedulers, to its measurements."""

import contextlib
from collections import abc
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from engine.core.config import SchedulerConfig
from engine.core.leap import Leap
from engine.core.scheduler import Scheduler
from engine.core.types import Nanos
from engine.decision_log import DecisionLog, LogHeader, PolicyChoice, RecordedScheduler
from engine.plugins import load_preemption_policy, load_scheduling_policy
from engine.sim.cost_lines import CostLine
from engine.sim.errors import PolicyChoiceError, ScenarioError
from engine.sim.observer import Records
from engine.sim.requests import Tenancy
from engine.sim.service_meter import LeapingMeter, ServiceMeter, meter
from engine.sim.traffic.row import Traffic
from engine.sim.world import Outage, Replica, World

Progress = abc.Callable[[int, int], object]


def _silent(num_arrivals: int, now: int) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything but the traffic. Each of `num_engines` engines has its own scheduler with these settings.

    `leaps` False computes every single step: slower, and the same decisions.
    """

    config: SchedulerConfig
    line: CostLine
    scheduling: PolicyChoice
    preemption: PolicyChoice
    num_engines: int = 1
    tenancy: Tenancy = field(default_factory=Tenancy)
    leaps: bool = True


@dataclass(frozen=True, slots=True)
class Run:
    """How a run ended. `policy_faults` says which policies were replaced by the order of arrival, and why."""

    ended_at: Nanos
    num_steps: int
    num_finished: int
    policy_faults: tuple[str, ...]


def simulate(
    setup: Setup,
    traffic: Traffic,
    records: Records,
    *,
    until: Nanos | None = None,
    on_progress: Progress = _silent,
    decision_log: Path | None = None,
    outages: abc.Iterable[Outage] = (),
) -> Run:
    """`traffic` has been served by new schedulers, up to its end or until that moment.

    `decision_log` gets what the first engine was told. Raises PolicyError where a policy cannot be loaded, StalledError
    where requests are left that nothing will ever move on, ScenarioError where the log cannot be written.
    """
    with contextlib.ExitStack() as stack:
        log_file = None if decision_log is None else stack.enter_context(_opened(decision_log))
        replicas = [make_replica(setup, log_file if index == 0 else None) for index in range(setup.num_engines)]
        world = World(replicas, setup.line, records, setup.tenancy)
        for outage in outages:
            world.plan_outage(outage)
        ended_at = world.run(traffic, until=until, on_progress=on_progress)
    faults = [_named(fault, setup) for each in replicas if (fault := each.scheduler.policy_fault) is not None]
    return Run(ended_at, sum(engine.num_steps for engine in world.engines), world.num_finished, tuple(faults))


def make_replica(setup: Setup, log_file: TextIO | None = None) -> Replica:
    """A new scheduler, recorded if there is a file for it. Raises PolicyError."""
    metered = meter(load_scheduling_policy(setup.scheduling.name, setup.scheduling.options))
    preemption = load_preemption_policy(setup.preemption.name, setup.preemption.options)
    scheduler = Scheduler(setup.config, metered, preemption)
    scheduler.tell_first_tokens_only()
    if log_file is None:
        return Replica(scheduler, metered, Leap(scheduler) if setup.leaps else None)
    log = DecisionLog(log_file, LogHeader(setup.config, setup.scheduling, setup.preemption))
    return Replica(RecordedScheduler(scheduler, log), metered)


def parse_policy(text: str) -> PolicyChoice:
    """`NAME`, or `NAME:OPTION=VALUE,OPTION=VALUE`. Raises PolicyChoiceError."""
    name, _, rest = text.partition(":")
    options: dict[str, str] = {}
    for pair in filter(None, rest.split(",")):
        option, separator, value = pair.partition("=")
        if not (option and separator) or option in options:
            raise PolicyChoiceError(f"{text}: {pair!r} is not one OPTION=VALUE")
        options[option] = value
    if not name:
        raise PolicyChoiceError(f"{text!r} names no policy")
    return PolicyChoice(name, options)


def policy_label(choice: PolicyChoice) -> str:
    """The inverse of `parse_policy`."""
    options = ",".join(f"{name}={value}" for name, value in choice.options.items())
    return f"{choice.name}:{options}" if options else choice.name


def _opened(path: Path) -> TextIO:
    try:
        return path.open("w")
    except OSError as error:
        raise ScenarioError(f"{path} cannot be written: {error.strerror}") from error


def _named(fault: str, setup: Setup) -> str:
    """The fault of a scheduling policy, which the core knows as its meter, under the policy's own name."""
    for each in (ServiceMeter, LeapingMeter):
        fault = fault.replace(f"{each.__module__}.{each.__qualname__}", setup.scheduling.name)
    return fault
