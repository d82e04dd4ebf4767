"""A decision log, told to a new scheduler: the same calls at the same times must give the same plans.

Tokens are made up, as the log has none: each is 0, and 1 where the log says that a token ended its output. Where it
says which blocks of tokens are the same, the last token of a block tells them apart, see also `made_prompts`. A plan
that differs is reported, not raised; lines that make no sense raise ReplayError with their number.
"""

from collections import abc
from dataclasses import dataclass, field
from typing import Any, cast

from engine.core.config import AdmissionReserve, PreemptionChoice, SchedulerConfig
from engine.core.costs import Prices, StepCosts
from engine.core.errors import SchedulerError
from engine.core.plan import Candidate, StepOutput, StepPlan
from engine.core.scheduler import Scheduler
from engine.core.types import (
    BeamSearchParams,
    CopyId,
    FinishReason,
    Nanos,
    PathNode,
    PriorityClass,
    Request,
    SamplingParams,
)
from engine.decision_log import VERSION, Json, plan_digest
from engine.plugins import PolicyError, load_preemption_policy, load_scheduling_policy
from engine.sim.errors import ReplayError
from engine.sim.limits import LARGEST_SETTINGS
from engine.sim.log_lines import check_header, check_line, parse_line
from engine.sim.made_prompts import FIRST_BLOCK_TOKEN, STOP_TOKEN, TOKEN, MadePrompts

START = Nanos(0)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first plan that is not the log's: which line, and what was planned instead."""

    line_number: int
    step: int | None
    expected_digest: str | None
    plan: StepPlan | None


@dataclass(slots=True)
class ReplayReport:
    """How far the decisions are the same. Written by `replay`."""

    num_plans: int = 0
    num_equal: int = 0
    difference: Difference | None = None

    @property
    def is_identical(self) -> bool:
        return self.difference is None


def replay(lines: abc.Iterable[str]) -> ReplayReport:
    """Compare plan by plan, up to the first that differs. Raises ReplayError."""
    numbered = enumerate(lines, start=1)
    scheduler = _scheduler(next(numbered, (1, ""))[1])
    replayer = _Replayer(scheduler)
    for number, text in numbered:
        if not replayer.take(number, text):
            break
    return replayer.report


def _scheduler(text: str) -> Scheduler:
    header = _parse(1, text)
    if header.get("version") != VERSION:
        raise ReplayError(1, f"version is {header.get('version')!r}, this program reads {VERSION}")
    try:
        check_header(header)
        config = dict(header["config"])
        for name, largest in LARGEST_SETTINGS.items():
            if not 0 <= config[name] <= largest:
                raise ValueError(f"{name} lies within 0 and {largest:,}, not at {config[name]}")
        config["admission_reserve"] = AdmissionReserve(config["admission_reserve"])
        config["preemption_mode"] = PreemptionChoice(config["preemption_mode"])
        scheduling, preemption = header["scheduling_policy"], header["preemption_policy"]
        return Scheduler(
            SchedulerConfig(**config),
            load_scheduling_policy(scheduling["name"], scheduling["options"]),
            load_preemption_policy(preemption["name"], preemption["options"]),
        )
    except KeyError as error:
        raise ReplayError(1, f"the header cannot be used: {error} is missing") from error
    except (TypeError, ValueError, PolicyError) as error:
        raise ReplayError(1, f"the header cannot be used: {error}") from error


def _parse(number: int, text: str) -> Json:
    try:
        return parse_line(text)
    except ValueError as error:
        raise ReplayError(number, str(error)) from error


@dataclass(slots=True)
class _Replayer:
    """One scheduler on its way through a log. `plan` is the open one, `now` the time of the last line."""

    scheduler: Scheduler
    plan: StepPlan | None = None
    now: Nanos = START
    report: ReplayReport = field(default_factory=ReplayReport)
    _prompts: MadePrompts = field(init=False)

    def __post_init__(self) -> None:
        self._prompts = MadePrompts(self.scheduler.config.block_size)

    def take(self, number: int, text: str) -> bool:
        """The line's call has been made. False if it was a plan, and a different one."""
        line = _parse(number, text)
        try:
            check_line(line)
            now = Nanos(line["t"])
            if now < self.now:
                raise ValueError(f"the time goes back from {self.now} to {now}")
            self.now = now
            if line["e"] == "plan":
                return self._compare(number, line, now)
            self._call(line, now)
        except KeyError as error:
            raise ReplayError(number, f"{error} is missing or unknown") from error
        except (TypeError, ValueError, AttributeError, IndexError, OverflowError, SchedulerError, PolicyError) as error:
            raise ReplayError(number, str(error)) from error
        return True

    def _call(self, line: Json, now: Nanos) -> None:
        """The line's call ended as the log says: it returned, or raised the same error."""
        method, expected = line["e"], line.get("raised")
        call = _CALLS[method]
        try:
            call(self, line, now)
        except Exception as error:
            if type(error).__name__ != expected:
                raise
            return
        if expected is not None:
            raise ValueError(f"{method} raised {expected} when it was recorded, and does not now")

    def _compare(self, number: int, line: Json, now: Nanos) -> bool:
        if self.plan is not None:
            raise ValueError(f"plans again although step {self.plan.step_id} was not committed")
        plan = self.plan = self.scheduler.plan(now)
        self.report.num_plans += 1
        digest = None if plan is None else plan_digest(plan)
        if digest != line["digest"]:
            self.report.difference = Difference(number, line["step"], line["digest"], plan)
            return False
        self.report.num_equal += 1
        return True

    def add(self, line: Json, now: Nanos) -> None:
        tokens, text = self._prompts.make(line["request"])
        request, prefixes = request_from_json(line["request"], tokens), self.scheduler.lifecycle.blocks.prefixes
        if prefixes is not None:
            prefixes.compared = lambda _: text
        self.scheduler.add(request, now)

    def commit(self, line: Json, now: Nanos) -> None:
        if self.plan is None or self.plan.step_id != line["step"]:
            raise ValueError(f"commits step {line['step']}, which is not the last plan's")
        lengths, ended, errors = (_by_row(line, name) for name in ("lengths", "ended", "errors"))
        blocks, proposed, certain = (_by_row(line, name) for name in ("blocks", "proposed", "certain"))
        candidates = {row: _candidates(each) for row, each in _by_row(line, "candidates").items()}
        accepted = {
            row: _token_ids(lengths.get(row, 1), ended.get(row))
            for row, samples in zip(self.plan.rows, self.plan.samples, strict=True)
            if samples and row not in errors and row not in candidates
        }
        num_tokens = {seq.row: seq.num_tokens for seq in self.scheduler.open_sequences} if blocks else {}
        for row, numbers in blocks.items():
            accepted[row] = self._marked(accepted[row], num_tokens[row], numbers)
        copies = tuple(map(CopyId, line.get("copies", ())))
        output = StepOutput(
            self.plan.step_id,
            accepted,
            errors=errors,
            completed_copies=copies,
            proposed=proposed,
            candidates=candidates,
            certain=certain,
        )
        self.plan = None
        self.scheduler.commit(output, now)

    def _marked(self, token_ids: tuple[int, ...], num_before: int, numbers: abc.Sequence[int]) -> tuple[int, ...]:
        """The tokens, which come after `num_before` others, with the last one of each block that they fill told."""
        size, marked = self.scheduler.config.block_size, list(token_ids)
        for index, number in zip(range(-(num_before + 1) % size, len(marked), size), numbers, strict=False):
            if marked[index] != STOP_TOKEN:
                marked[index] = FIRST_BLOCK_TOKEN + number
        return tuple(marked)


def _by_row(line: Json, name: str) -> dict[int, Any]:  # the values are those of the log
    return {int(row): value for row, value in line.get(name, {}).items()}


def _token_ids(num_tokens: int, num_until_stop: int | None) -> tuple[int, ...]:
    if num_until_stop is None:
        return (TOKEN,) * num_tokens
    return (*(TOKEN,) * (num_until_stop - 1), STOP_TOKEN, *(TOKEN,) * (num_tokens - num_until_stop))


def _candidates(line: Json) -> tuple[Candidate, ...]:
    stops, blocks = frozenset(line.get("stops", ())), line.get("blocks")
    token_ids = [TOKEN] * len(line["logprobs"]) if blocks is None else [FIRST_BLOCK_TOKEN + number for number in blocks]
    if len(token_ids) != len(line["logprobs"]):
        raise ValueError(f"{len(token_ids)} blocks for {len(line['logprobs'])} candidates")
    token_ids = [STOP_TOKEN if nth in stops else token_id for nth, token_id in enumerate(token_ids)]
    return tuple(map(Candidate, token_ids, line["logprobs"]))


def request_from_json(line: Json, prompt_token_ids: abc.Sequence[int]) -> Request:
    """The request of a line, with made-up tokens."""
    salt = line.get("salt", "")
    return Request(
        generation_id=line["id"],
        path=tuple(PathNode(node_id, weight) for node_id, weight in line["path"]),
        prompt_token_ids=cast("tuple[int, ...]", prompt_token_ids),
        max_output_tokens=line["output"],
        arrived_at=Nanos(line["arrived_at"]),
        stop_token_ids=frozenset({STOP_TOKEN} if line.get("stops") else ()),
        priority_class=PriorityClass(**line["priority_class"]),
        deadline=line.get("deadline"),
        queue_deadline=line.get("queue_deadline"),
        granted_output_tokens=line.get("granted_output_tokens"),
        cache_salt=bytes.fromhex(salt),
        policy_revision=line.get("policy_revision", 0),
        speculates=line.get("speculates", True),
        beam_search=BeamSearchParams(**line["beam_search"]) if line.get("beam_search") else None,
        sampling=SamplingParams(num_prompt_logprobs=0) if line.get("scored") else SamplingParams(),
    )


def _prices(line: Json) -> Prices:
    return Prices(**{**line, "step": StepCosts(**line["step"])})


def _set_scheduling_policy(replayer: _Replayer, line: Json, now: Nanos) -> None:
    replayer.scheduler.set_scheduling_policy(load_scheduling_policy(line["name"], line["options"]), now)


def _set_preemption_policy(replayer: _Replayer, line: Json, now: Nanos) -> None:
    replayer.scheduler.set_preemption_policy(load_preemption_policy(line["name"], line["options"]), now)


def _requeue(replayer: _Replayer, line: Json, now: Nanos) -> None:
    if replayer.plan is None:
        raise ValueError("requeues although no plan is open")
    replayer.plan = None
    replayer.scheduler.requeue(now)


def _fail_all(replayer: _Replayer, line: Json, now: Nanos) -> None:
    replayer.plan = None
    replayer.scheduler.fail_all("", now)


_CALLS: dict[str, abc.Callable[[_Replayer, Json, Nanos], object]] = {
    "add": _Replayer.add,
    "commit": _Replayer.commit,
    "abort": lambda r, line, now: r.scheduler.abort(line["id"], FinishReason(line["reason"]), now),
    "expire": lambda r, line, now: r.scheduler.expire(now),
    "complete_copies": lambda r, line, now: r.scheduler.complete_copies(map(CopyId, line["copies"]), now),
    "requeue": _requeue,
    "fail_all": _fail_all,
    "grant": lambda r, line, now: r.scheduler.grant(line["id"], line["output"], now),
    "set_reader_blocked": lambda r, line, now: r.scheduler.set_reader_blocked(line["id"], line["blocked"], now),
    "set_class": lambda r, line, now: r.scheduler.set_class(line["id"], PriorityClass(**line["priority_class"]), now),
    "calibrate": lambda r, line, now: r.scheduler.calibrate(_prices(line["prices"]), now),
    "set_scheduling_policy": _set_scheduling_policy,
    "set_preemption_policy": _set_preemption_policy,
    "update_nodes": lambda r, line, now: r.scheduler.update_nodes(
        [(tuple(path), weight, revision) for path, weight, revision in line["nodes"]], now
    ),
    "update_classes": lambda r, line, now: r.scheduler.update_classes(
        [PriorityClass(**each) for each in line["classes"]], line["revision"], now
    ),
}
