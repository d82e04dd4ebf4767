"""From the words of the command line to a setup and its traffic. What makes no sense raises SimulationError."""

import os
from collections import abc
from dataclasses import dataclass, replace
from pathlib import Path

from engine.core.config import PreemptionChoice, SchedulerConfig
from engine.core.types import PriorityClass, check_weight
from engine.decision_log import PolicyChoice
from engine.plugins import load_preemption_policy, load_scheduling_policy
from engine.sim.capacity import capacity
from engine.sim.cost_lines import CostLine
from engine.sim.errors import ScenarioError
from engine.sim.json_text import is_text
from engine.sim.limits import LARGEST_SETTINGS
from engine.sim.requests import Tenancy
from engine.sim.run import Setup
from engine.sim.traffic.reshape import Shape, load_of, reshape, stretch_for_load
from engine.sim.traffic.row import MAX_SPAN_S, Arrival
from engine.sim.traffic.trace import Trace

TRACES_VARIABLE = "EVENFLOW_TRACES"
LOADS = (0.01, 1000)
ENGINES = (1, 10_000)
SEEDS = (0, 2**63 - 1)
SECONDS = (0, MAX_SPAN_S)


@dataclass(frozen=True, slots=True)
class EngineSize:
    """The limits of each simulated engine, as flags have them."""

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_device_blocks: int
    num_host_blocks: int
    max_model_len: int
    preemption_mode: str
    enable_prefix_caching: bool = False

    def config(self) -> SchedulerConfig:
        """Raises ScenarioError, naming the setting that is out of range."""
        for name, largest in LARGEST_SETTINGS.items():
            if (value := getattr(self, name)) > largest:
                raise ScenarioError(f"--{name.replace('_', '-')} is at most {largest:,}, not {value:,}")
        try:
            return SchedulerConfig(
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                block_size=self.block_size,
                num_device_blocks=self.num_device_blocks,
                num_host_blocks=self.num_host_blocks,
                max_model_len=self.max_model_len,
                preemption_mode=PreemptionChoice(self.preemption_mode),
                enable_prefix_caching=self.enable_prefix_caching,
            )
        except ValueError as error:
            raise ScenarioError(str(error)) from None


def check_numbers(limits: tuple[float, float], **numbers: float | None) -> None:
    """Each number, by its flag's name, lies within the limits. Raises ScenarioError, also for NaN."""
    smallest, largest = limits
    for name, value in numbers.items():
        if value is not None and not smallest <= value <= largest:
            flag = name.replace("_", "-")
            raise ScenarioError(f"--{flag} is a number from {smallest:g} to {largest:,}, not {value:g}")


def unused_records(tenancy: Tenancy, traffic: abc.Iterable[Arrival]) -> list[str]:
    """A sentence for each weight and class that nobody in the traffic has. Reads the traffic to its end."""
    paths, classes = set(tenancy.weights), set(tenancy.classes)
    for arrival in traffic:
        classes.discard(arrival.priority_class)
        paths = {path for path in paths if path != arrival.tenant and not arrival.tenant.startswith(f"{path}/")}
        if not paths and not classes:
            break
    return [f"nobody in the traffic is {path}, so its weight changes nothing" for path in sorted(paths)] + [
        f"no request is of class {name}" for name in sorted(classes)
    ]


def parse_tenancy(weights: abc.Iterable[str], classes: abc.Iterable[str]) -> Tenancy:
    """`PATH=WEIGHT` and `NAME=RANK[:MIN_SHARE]`. Raises ScenarioError."""
    weight_by_path: dict[str, float] = {}
    class_by_name: dict[str, PriorityClass] = {}
    for text in weights:
        path, _, value = text.rpartition("=")
        weight = _number(text, value)
        if not path or not 0 < weight < float("inf"):
            raise ScenarioError(f"a weight is PATH=NUMBER, finite and above 0, not {text!r}")
        try:
            check_weight(path, weight)
        except ValueError as error:
            raise ScenarioError(str(error)) from None
        weight_by_path[path] = weight
    for text in classes:
        name, _, value = text.partition("=")
        rank, _, min_share = value.partition(":")
        share = _number(text, min_share or "0")
        if not name or not 0 <= share <= 1:
            raise ScenarioError(f"a class is NAME=RANK or NAME=RANK:MIN_SHARE, not {text!r}")
        class_by_name[name] = PriorityClass(name, _rank(text, rank), share)
    return Tenancy(weight_by_path, class_by_name)


def check_policies(scheduling: abc.Iterable[PolicyChoice], preemption: PolicyChoice) -> None:
    """Each can be made. Raises PolicyError: before anything is loaded that takes long."""
    for choice in scheduling:
        load_scheduling_policy(choice.name, choice.options)
    load_preemption_policy(preemption.name, preemption.options)


def at_load(trace: Trace, share: float, setup: Setup) -> Trace:
    """The trace, stretched so that it asks for `share` of the capacity of all engines, which a note tells."""
    load = load_of(trace)
    if not load.num_requests:
        raise ScenarioError("the traffic is empty")
    totals = (load.num_prompt_tokens, load.num_output_tokens)
    lengths = [max(1, round(total / load.num_requests)) for total in totals]
    work_per_s = capacity(setup, lengths[0], lengths[1]) * setup.num_engines
    stretch = stretch_for_load(load, share, work_per_s)
    if load.span_s * stretch > MAX_SPAN_S:
        raise ScenarioError(f"at --load {share:g} the traffic would go on for more than ten years")
    note = (
        f"load {share:g} of C = {work_per_s:,.0f} work/s, which is 16 requests of {lengths[0]}/{lengths[1]} tokens at a"
        f" time on each of {setup.num_engines} engines; mean lengths of the traffic"
    )
    stretched = reshape(trace, Shape(time_stretch=stretch))
    return replace(stretched, notes=(*stretched.notes, note))


def describe(setup: Setup) -> dict[str, object]:
    """What a run was made with, for its JSON."""
    config = {name: getattr(setup.config, name) for name in SchedulerConfig.__slots__}
    return {
        "engine": {name: getattr(value, "value", value) for name, value in config.items()},
        "num_engines": setup.num_engines,
        "costs": {"name": setup.line.name, **setup.line.coefficients()},
        "preemption_policy": setup.preemption.as_json(),
        "weights": dict(setup.tenancy.weights),
    }


def line_note(line: CostLine) -> str:
    """The cost line in words."""
    coefficients = ", ".join(f"{name} {value:g}" for name, value in line.coefficients().items() if value)
    return f"cost line {line.name}: {coefficients}"


def traces_folder(given: Path | None) -> Path | None:
    """The folder that traces are looked for in: the flag's, else the environment's."""
    named = os.environ.get(TRACES_VARIABLE)
    return given or (Path(named) if named else None)


def _rank(text: str, value: str) -> int:
    rank = _number(text, value)
    if not rank.is_integer():  # neither NaN nor infinite is one
        raise ScenarioError(f"a class is NAME=RANK or NAME=RANK:MIN_SHARE, RANK a whole number, not {text!r}")
    return int(rank)


def _number(text: str, value: str) -> float:
    if not is_text(text):
        raise ScenarioError(f"{text!r} is not text")
    try:
        return float(value)
    except ValueError:
        raise ScenarioError(f"{value!r} in {text!r} is no number") from None
