"""Everything that enters a scheduler, with its time, one JSON object a line: the log from which its decisions follow.

The first line has the version, the settings and the policies; each further one a call, in order: `t` is its time in
nanoseconds, `e` the method, the rest its arguments, `raised` the error that it ended with, if it did. A `plan` line has
the plan's step and digest, so that a replay can be compared step by step. Of tokens the log has only how many there
were, whether one of them ended its sequence, which blocks of them are the same, and where two prompts part; of the
candidates of a beam also how likely they were. No prompt and no output can be read from it. `RecordedScheduler` writes
it, `replay` reads it. Knows no tensors, no clock.

    {"version": 1, "config": {...}, "scheduling_policy": {"name": "fair", "options": {}}, "preemption_policy": {...}}
    {"t": 0, "e": "add", "request": {"id": "r0", "path": [["o", 1.0], ["t", 1.0]], "prompt": 12, "output": 4, ...}}
    {"t": 0, "e": "plan", "step": 1, "digest": "9f86d081884c7d65"}
    {"t": 9, "e": "commit", "step": 1, "ended": {"0": 1}, "copies": [3], "blocks": {"2": [9]}, "proposed": {"1": 4}}
    {"t": 9, "e": "add", "request": {"id": "r1", ...}, "raised": "RequestTooLargeError"}
"""

import contextlib
import hashlib
import json
from collections import abc
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TextIO, cast

from engine.core.config import SchedulerConfig
from engine.core.costs import Prices
from engine.core.events import Event, Finished
from engine.core.plan import StepOutput, StepPlan
from engine.core.policy import PreemptionPolicy, SchedulingPolicy
from engine.core.scheduler import Scheduler
from engine.core.stats import SchedulerStats
from engine.core.types import CopyId, FinishReason, Nanos, PriorityClass, Request
from engine.logged_blocks import LoggedBlocks
from engine.logged_requests import DIGEST_BYTES, candidates_to_json, request_to_json

VERSION = 1

Json = dict[str, Any]  # any JSON object


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy as it was asked for: its name, and its options as text."""

    name: str
    options: abc.Mapping[str, str]

    def as_json(self) -> Json:
        return {"name": self.name, "options": dict(self.options)}


@dataclass(frozen=True, slots=True)
class LogHeader:
    """What a scheduler is built from."""

    config: SchedulerConfig
    scheduling: PolicyChoice
    preemption: PolicyChoice

    def as_json(self) -> Json:
        return {
            "version": VERSION,
            "config": {name: getattr(value, "value", value) for name, value in asdict(self.config).items()},
            "scheduling_policy": self.scheduling.as_json(),
            "preemption_policy": self.preemption.as_json(),
        }


class DecisionLog:
    """Appends lines to an open text file. The file belongs to the caller."""

    def __init__(self, file: TextIO, header: LogHeader) -> None:
        self._file = file
        self._write(header.as_json())

    def call(self, method: str, now: Nanos, **arguments: Any) -> None:  # any JSON value
        """`method` was called."""
        self._write({"t": now, "e": method, **arguments})

    def _write(self, line: Json) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")


class Driven(Protocol):
    """What a loop does with a scheduler, whether it is recorded or not. `Scheduler` says what each call means."""

    @property
    def config(self) -> SchedulerConfig: ...
    @property
    def has_unfinished(self) -> bool: ...
    @property
    def num_copies_in_flight(self) -> int: ...
    @property
    def policy_fault(self) -> str | None: ...
    def add(self, request: Request, now: Nanos) -> None: ...
    def abort(self, generation_id: str, reason: FinishReason, now: Nanos) -> list[Event]: ...
    def expire(self, now: Nanos) -> list[Event]: ...
    def next_expiry(self) -> Nanos | None: ...
    def plan(self, now: Nanos) -> StepPlan | None: ...
    def commit(self, output: StepOutput, now: Nanos) -> list[Event]: ...
    def complete_copies(self, copy_ids: abc.Iterable[CopyId], now: Nanos) -> list[Event]: ...
    def requeue(self, now: Nanos) -> list[Event]: ...
    def fail_all(self, error: str, now: Nanos) -> list[Event]: ...
    def grant(self, generation_id: str, max_output_tokens: int, now: Nanos) -> None: ...
    def set_reader_blocked(self, generation_id: str, blocked: bool, now: Nanos) -> None: ...
    def set_class(self, generation_id: str, priority_class: PriorityClass, now: Nanos) -> None: ...
    def calibrate(self, prices: Prices, now: Nanos) -> None: ...
    def set_scheduling_policy(self, policy: SchedulingPolicy, now: Nanos) -> None: ...
    def set_preemption_policy(self, policy: PreemptionPolicy, now: Nanos) -> None: ...
    def update_nodes(self, nodes: abc.Sequence[tuple[tuple[str, ...], float, int]], now: Nanos) -> None: ...
    def update_classes(self, classes: abc.Sequence[PriorityClass], revision: int, now: Nanos) -> None: ...
    def stats(self) -> SchedulerStats: ...


class RecordedScheduler:
    """A scheduler that writes down what it is told. `name_policies` comes before policies are switched.

    A call is written when it has returned or raised; all but `plan`, which has no line if it raises.
    """

    def __init__(self, scheduler: Scheduler, log: DecisionLog) -> None:
        self.scheduler = scheduler
        self._log = log
        self._named: tuple[tuple[SchedulingPolicy | PreemptionPolicy, PolicyChoice], ...] = ()
        self._stops: dict[str, frozenset[int]] = {}  # of requests that have not ended
        self._generations: dict[int, str] = {}
        self._blocks = LoggedBlocks(scheduler)

    @property
    def config(self) -> SchedulerConfig:
        return self.scheduler.config

    @property
    def has_unfinished(self) -> bool:
        return self.scheduler.has_unfinished

    @property
    def num_copies_in_flight(self) -> int:
        return self.scheduler.num_copies_in_flight

    @property
    def policy_fault(self) -> str | None:
        return self.scheduler.policy_fault

    def stats(self) -> SchedulerStats:
        return self.scheduler.stats()

    def next_expiry(self) -> Nanos | None:
        return self.scheduler.next_expiry()

    def name_policies(self, *named: tuple[SchedulingPolicy | PreemptionPolicy, PolicyChoice]) -> None:
        """What the log calls each of these policies, if it is switched to next. Earlier names are forgotten."""
        self._named = named

    def add(self, request: Request, now: Nanos) -> None:
        with self._recording("add", now, request=request_to_json(request)) as line:
            self.scheduler.add(request, now)
            self._blocks.add_prompt(line["request"])
        if request.stop_token_ids:
            self._stops[request.generation_id] = request.stop_token_ids

    def abort(self, generation_id: str, reason: FinishReason, now: Nanos) -> list[Event]:
        with self._recording("abort", now, id=generation_id, reason=reason.value):
            return self._told(self.scheduler.abort(generation_id, reason, now))

    def expire(self, now: Nanos) -> list[Event]:
        events = self.scheduler.expire(now)
        if events:  # otherwise it changed nothing
            self._log.call("expire", now)
        return self._told(events)

    def plan(self, now: Nanos) -> StepPlan | None:
        plan = self.scheduler.plan(now)
        step, digest = (None, None) if plan is None else (plan.step_id, plan_digest(plan))
        self._log.call("plan", now, step=step, digest=digest)
        started = () if plan is None else plan.started
        self._generations |= {start.row: start.key.generation_id for start in started}
        return plan

    def commit(self, output: StepOutput, now: Nanos) -> list[Event]:
        arguments: Json = {"step": output.step_id}
        optional = {
            "lengths": {row: len(token_ids) for row, token_ids in output.accepted.items() if len(token_ids) != 1},
            "ended": self._ended(output),
            "errors": dict(output.errors),
            "copies": list(output.completed_copies),
            "proposed": {row: count for row, count in output.proposed.items() if count},
            "candidates": candidates_to_json(output, self._blocks.offered(output), self._stops_of)
            if output.candidates
            else {},
            "certain": {row: count for row, count in output.certain.items() if count},
        }
        arguments |= {name: value for name, value in optional.items() if value}
        emitting = self._blocks.emitting(output)
        with self._recording("commit", now, **arguments) as line:
            events = self._told(self.scheduler.commit(output, now))
            self._blocks.add_filled(line, emitting)
            return events

    def complete_copies(self, copy_ids: abc.Iterable[CopyId], now: Nanos) -> list[Event]:
        ids = tuple(copy_ids)
        with self._recording("complete_copies", now, copies=list(ids)):
            return self._told(self.scheduler.complete_copies(ids, now))

    def requeue(self, now: Nanos) -> list[Event]:
        with self._recording("requeue", now):
            return self._told(self.scheduler.requeue(now))

    def fail_all(self, error: str, now: Nanos) -> list[Event]:
        with self._recording("fail_all", now):
            return self._told(self.scheduler.fail_all(error, now))

    def grant(self, generation_id: str, max_output_tokens: int, now: Nanos) -> None:
        with self._recording("grant", now, id=generation_id, output=max_output_tokens):
            self.scheduler.grant(generation_id, max_output_tokens, now)

    def set_reader_blocked(self, generation_id: str, blocked: bool, now: Nanos) -> None:
        with self._recording("set_reader_blocked", now, id=generation_id, blocked=blocked):
            self.scheduler.set_reader_blocked(generation_id, blocked, now)

    def set_class(self, generation_id: str, priority_class: PriorityClass, now: Nanos) -> None:
        with self._recording("set_class", now, id=generation_id, priority_class=asdict(priority_class)):
            self.scheduler.set_class(generation_id, priority_class, now)

    def calibrate(self, prices: Prices, now: Nanos) -> None:
        with self._recording("calibrate", now, prices=asdict(prices)):
            self.scheduler.calibrate(prices, now)

    def set_scheduling_policy(self, policy: SchedulingPolicy, now: Nanos) -> None:
        with self._recording("set_scheduling_policy", now, **self._choice_of(policy).as_json()):
            self.scheduler.set_scheduling_policy(policy, now)

    def set_preemption_policy(self, policy: PreemptionPolicy, now: Nanos) -> None:
        with self._recording("set_preemption_policy", now, **self._choice_of(policy).as_json()):
            self.scheduler.set_preemption_policy(policy, now)

    def update_nodes(self, nodes: abc.Sequence[tuple[tuple[str, ...], float, int]], now: Nanos) -> None:
        lines = [[list(path), weight, revision] for path, weight, revision in nodes]
        with self._recording("update_nodes", now, nodes=lines):
            self.scheduler.update_nodes(nodes, now)

    def update_classes(self, classes: abc.Sequence[PriorityClass], revision: int, now: Nanos) -> None:
        with self._recording("update_classes", now, classes=[asdict(each) for each in classes], revision=revision):
            self.scheduler.update_classes(classes, revision, now)

    @contextlib.contextmanager
    def _recording(self, method: str, now: Nanos, **arguments: Any) -> abc.Iterator[Json]:  # any JSON value
        """The call inside is written with how it ended, and with what it adds to the arguments."""
        try:
            yield arguments
        except Exception as error:
            self._log.call(method, now, **arguments, raised=type(error).__name__)
            raise
        self._log.call(method, now, **arguments)

    def _told(self, events: list[Event]) -> list[Event]:
        """The events; what has ended needs no stops any more."""
        if self._stops:
            for event in events:
                if isinstance(event, Finished):
                    self._stops.pop(event.key.generation_id, None)
        return events

    def _choice_of(self, policy: SchedulingPolicy | PreemptionPolicy) -> PolicyChoice:
        for named, choice in self._named:
            if named is policy:
                return choice
        raise LookupError(f"{type(policy).__name__} was not named")

    def _ended(self, output: StepOutput) -> dict[int, int]:
        """By row, how many tokens there were up to the one that ends the output, where there is one."""
        ended = {}
        for row, token_ids in output.accepted.items():
            if row in output.ended:
                ended[row] = len(token_ids)
            stops = self._stops_of(row)
            if stops and not stops.isdisjoint(token_ids):
                ended[row] = next(n for n, token_id in enumerate(token_ids, start=1) if token_id in stops)
        return ended

    def _stops_of(self, row: int) -> frozenset[int]:
        return self._stops.get(self._generations.get(row, ""), frozenset())


def inner_scheduler(scheduler: Driven) -> Scheduler:
    """The one that decides, for questions that are not recorded."""
    return cast("Scheduler", scheduler.scheduler if isinstance(scheduler, RecordedScheduler) else scheduler)


def plan_digest(plan: StepPlan) -> str:
    """A short hash of every decision in `plan`: plans that differ in rows, tokens, blocks or copies differ in it."""
    starts = [(start.row, start.key, start.num_prompt_tokens, start.block_ids) for start in plan.started]
    copies = [(copy.copy_id, copy.direction.value, copy.device_block_ids, copy.host_block_ids) for copy in plan.copies]
    drafts = (plan.num_drafts, plan.draft_limits) if plan.num_drafts or plan.draft_limits else ()  # as in older logs
    columns = (plan.rows, plan.starts, plan.num_tokens, plan.samples, *drafts)
    on_device = (plan.block_copies,) if plan.block_copies else ()  # likewise
    chosen = (tuple(row for row, _ in plan.chosen),) if plan.chosen else ()  # the tokens are nobody's to guess
    decisions = repr((plan.step_id, plan.stopped, starts, plan.new_blocks, columns, copies, *on_device, *chosen))
    return hashlib.blake2b(decisions.encode(), digest_size=DIGEST_BYTES).hexdigest()
