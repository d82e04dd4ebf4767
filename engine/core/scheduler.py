"""The scheduler: a pure state machine between the requests and the runner. It owns no thread, clock or tensor.

    add, abort, expire, grant, set_*   at any time
    plan    -> StepPlan                at most one plan is open
    commit  -> events                  closes it, with what the runner made of it

There is no prefill or decode phase: the computed tokens of each sequence catch up with its known tokens, and when they
have, the step samples one more. Events come out of `abort`, `expire`, `commit` and `fail_all` in the order in which
they happened, those of `plan`, `grant` and `set_reader_blocked` with the next of these. The states of a sequence are
described in `lifecycle`, the rules of a plan in `planner`.
"""

from dataclasses import dataclass

from engine.core.committer import Committer
from engine.core.config import SchedulerConfig
from engine.core.errors import DuplicateRequestError, RequestTooLargeError, StaleOutputError
from engine.core.events import Event
from engine.core.lifecycle import Lifecycle
from engine.core.plan import StepOutput, StepPlan
from engine.core.planner import Planner
from engine.core.policy import PreemptionPolicy, SchedulingPolicy
from engine.core.sequence import Sequence
from engine.core.stats import SchedulerStats
from engine.core.types import FinishReason, Nanos, PriorityClass, Request


@dataclass(frozen=True, slots=True)
class OpenPlan:
    """A plan that the runner has, with the sequences of its columns."""

    plan: StepPlan
    granted: list[Sequence]


class Scheduler:
    """Decides what each step computes. Two schedulers that are told the same do the same."""

    def __init__(self, config: SchedulerConfig, scheduling: SchedulingPolicy, preemption: PreemptionPolicy) -> None:
        self.config = config
        self.lifecycle = Lifecycle(config, scheduling)
        self._planner = Planner(config, self.lifecycle, preemption)
        self._committer = Committer(self.lifecycle)
        self._open: OpenPlan | None = None
        self._num_plans = 0

    @property
    def has_unfinished(self) -> bool:
        return bool(self.lifecycle.by_generation)

    @property
    def open_sequences(self) -> tuple[Sequence, ...]:
        """The sequences of the open plan, those included that ended meanwhile; empty if no plan is open."""
        return () if self._open is None else tuple(self._open.granted)

    def add(self, request: Request, now: Nanos) -> None:
        """The request waits for its turn. Raises DuplicateRequestError, or RequestTooLargeError if it can never fit."""
        if request.generation_id in self.lifecycle.by_generation:
            raise DuplicateRequestError(request.generation_id)
        num_tokens = len(request.prompt_token_ids) + request.max_output_tokens
        if num_tokens > self.config.max_request_tokens:
            raise RequestTooLargeError(num_tokens, self.config.max_request_tokens)
        self.lifecycle.arrive(request, now)

    def abort(self, generation_id: str, reason: FinishReason, now: Nanos) -> list[Event]:
        """The request has ended, if it had not. Blocks that the open plan uses are free once it is committed."""
        seq = self.lifecycle.by_generation.get(generation_id)
        if seq is not None:
            self.lifecycle.finish(seq, reason, now)
        return self.lifecycle.take_events()

    def expire(self, now: Nanos) -> list[Event]:
        """Requests whose deadline has passed, or that waited beyond their queue deadline, have ended."""
        expiring = self.lifecycle.expiring
        while (seq := expiring.first()) is not None and expiring.rank_of(seq)[0] <= now:
            self.lifecycle.finish(seq, seq.expiry_reason, now)
        return self.lifecycle.take_events()

    def next_expiry(self) -> Nanos | None:
        """When `expire` will have something to do; None if no request has a deadline."""
        seq = self.lifecycle.expiring.first()
        return None if seq is None else seq.expires_at

    def plan(self, now: Nanos) -> StepPlan | None:
        """The next step, which is open until `commit`; None if no sequence may get tokens.

        Call `expire` with the same `now` first: a request that is late is then never computed.
        """
        assert self._open is None, "the last plan was not committed"
        step = self._planner.plan(now)
        if not step.granted:
            return None
        self._num_plans += 1
        plan = step.to_plan(self._num_plans, self.lifecycle.rows.take_stopped())
        self._open = OpenPlan(plan, step.granted)
        return plan

    def commit(self, output: StepOutput, now: Nanos) -> list[Event]:
        """No plan is open; its sequences have got on by `output`. What it holds for ended sequences is discarded.

        Raises StaleOutputError, and changes nothing, if `output` does not answer the open plan.
        """
        open_plan = self._open
        if open_plan is None or open_plan.plan.step_id != output.step_id:
            raise StaleOutputError(f"step {output.step_id} is not the open plan's")
        plan = open_plan.plan
        for row, samples in zip(plan.rows, plan.samples, strict=True):
            if samples and not output.accepted.get(row) and row not in output.errors:
                raise StaleOutputError(f"step {output.step_id} has no result for row {row}, which samples")
        self._open = None
        self._committer.commit(zip(open_plan.granted, plan.samples, strict=True), output, now)
        return self.lifecycle.take_events()

    def fail_all(self, error: str, now: Nanos) -> list[Event]:
        """Every request has ended with `error`, and no plan is open: the runner lost its state."""
        self._open = None
        for seq in tuple(self.lifecycle.by_generation.values()):
            self.lifecycle.finish(seq, FinishReason.ERROR, now, error)
        self.lifecycle.release_ended()
        return self.lifecycle.take_events()

    def grant(self, generation_id: str, max_output_tokens: int, now: Nanos) -> None:
        """The request may emit `max_output_tokens` in all, and pauses there. Nothing happens if it has ended."""
        seq = self.lifecycle.by_generation.get(generation_id)
        if seq is not None:
            self.lifecycle.grant(seq, max_output_tokens, now)

    def set_reader_blocked(self, generation_id: str, blocked: bool, now: Nanos) -> None:
        """The request pauses while its reader is blocked. Nothing happens if it has ended."""
        seq = self.lifecycle.by_generation.get(generation_id)
        if seq is not None:
            self.lifecycle.set_reader_blocked(seq, blocked, now)

    def set_class(self, generation_id: str, priority_class: PriorityClass, now: Nanos) -> None:
        """The request belongs to another class from `now` on. Nothing happens if it has ended."""
        seq = self.lifecycle.by_generation.get(generation_id)
        if seq is not None:
            seq.priority_class = priority_class

    def stats(self) -> SchedulerStats:
        """The state of this moment. Costs O(tenants)."""
        tenants = self.lifecycle.tenants.stats(self.lifecycle.policy.standing())
        return SchedulerStats(
            num_running=sum(tenant.num_running for tenant in tenants),
            num_waiting=sum(tenant.num_waiting for tenant in tenants),
            num_paused=sum(tenant.num_paused for tenant in tenants),
            num_free_blocks=self.lifecycle.blocks.num_free,
            num_preemptions=self.lifecycle.num_preemptions,
            tenants=tenants,
        )
