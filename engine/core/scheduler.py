"""The scheduler: a pure state machine between the requests and the runner. It owns no thread, clock or tensor.

    add, abort, expire, grant, set_*, update_*, calibrate   at any time
    plan             -> StepPlan   at most one plan is open
    commit           -> events     closes it, with what the runner made of it
    requeue          -> events     closes it, as nothing could be made of it
    complete_copies  -> events     copies that ended while no plan was open

There is no prefill or decode phase: the computed tokens of each sequence catch up with its known tokens, and when they
have, the step samples one more. Events come out of `abort`, `expire`, `commit`, `requeue`, `complete_copies` and
`fail_all` in the order in which they happened, those of other calls with the next of these. The states of a sequence
are described in `lifecycle`, the rules of a plan in `planner` and `memory`.
"""

from collections import abc

from engine.core import controls, queue_position
from engine.core.beam_rounds import BeamRounds
from engine.core.committer import Committer
from engine.core.config import SchedulerConfig
from engine.core.costs import Prices
from engine.core.errors import DuplicateRequestError, StaleOutputError
from engine.core.events import Event
from engine.core.flow import Path
from engine.core.guard import GuardedPolicy, GuardedPreemption
from engine.core.lifecycle import Lifecycle
from engine.core.plan import CopyDirection, StepOutput, StepPlan
from engine.core.planner import Planner
from engine.core.policy import FlowView, PreemptionPolicy, SchedulingPolicy
from engine.core.request_size import check_size
from engine.core.requeues import Requeues
from engine.core.sequence import Sequence
from engine.core.stats import SchedulerStats
from engine.core.step import Step
from engine.core.types import CopyId, FinishReason, Nanos, PriorityClass, Request, check_weight


class Scheduler:
    """Decides what each step computes. Two schedulers that are told the same do the same.

    open_plan  the open plan, and the step that it was made from; None if no plan is open
    """

    def __init__(self, config: SchedulerConfig, scheduling: SchedulingPolicy, preemption: PreemptionPolicy) -> None:
        self.config = config
        self._scheduling = GuardedPolicy(scheduling)
        self._preemption = GuardedPreemption(preemption)
        self.lifecycle = Lifecycle(config, self._scheduling)
        self.planner = Planner(config, self.lifecycle, self._preemption)
        self._committer = Committer(self.lifecycle, BeamRounds(self.lifecycle, lambda: self.planner.num_unclaimed))
        self._requeues = Requeues(self.lifecycle, self.planner.preemptions)
        self.open_plan: tuple[StepPlan, Step] | None = None
        self._num_open_plans = 0
        self._yielding: abc.Set[FlowView] = frozenset()

    @property
    def has_unfinished(self) -> bool:
        return bool(self.lifecycle.by_generation)

    @property
    def num_copies_in_flight(self) -> int:
        """Copies whose completion was not told yet."""
        return len(self.lifecycle.blocks.in_flight)

    @property
    def policy_fault(self) -> str | None:
        """Which policy failed and was replaced by the order of arrival, and how; None if none did."""
        return self._scheduling.fault or self._preemption.fault

    @property
    def open_sequences(self) -> tuple[Sequence, ...]:
        """The sequences of the open plan, those included that ended meanwhile; empty if no plan is open."""
        return () if self.open_plan is None else tuple(self.open_plan[1].granted)

    def add(self, request: Request, now: Nanos) -> None:
        """The request waits for its turn. Raises DuplicateRequestError, or RequestTooLargeError if it can never fit.

        One whose deadline would pass while its prompt is computed, even if nobody else were there, ends at once.
        """
        if request.generation_id in self.lifecycle.by_generation:
            raise DuplicateRequestError(request.generation_id)
        check_size(request, self.config)
        seq = self.lifecycle.arrive(request, now)
        prices = self.lifecycle.prices
        num_cached = seq.num_cached_prompt_tokens
        least_ns = prices.step.base_ns + prices.step.chunk_ns(num_cached, seq.num_prompt_tokens - num_cached)
        if request.deadline is not None and prices.are_measured and now + least_ns > request.deadline:
            self.lifecycle.finish(seq, FinishReason.DEADLINE, now)

    def abort(self, generation_id: str, reason: FinishReason, now: Nanos) -> list[Event]:
        """The request has ended, if it had not. Blocks that the open plan or a copy uses are free once that ends."""
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

    def tell_first_tokens_only(self) -> None:
        """From now on events tell only of the first token since a sequence came to run, for who reads no tokens."""
        self._committer.tells_tokens = False

    def plan(self, now: Nanos) -> StepPlan | None:
        """The next step, which is open until `commit`; None if there is nothing to compute and no copy to begin.

        Call `expire` with the same `now` first: a request that is late is then never computed.
        """
        assert self.open_plan is None, "the last plan was not committed"
        step = self.planner.plan(now)
        self.planner.demote(step)
        self._yielding = step.terms.yielding
        if not step.granted and not self.lifecycle.copies:
            return None
        self._num_open_plans += 1
        lifecycle = self.lifecycle
        copies, block_copies = lifecycle.take_copies(), lifecycle.take_block_copies()
        plan = step.to_plan(self._num_open_plans, lifecycle.rows, copies, block_copies, lifecycle.chosen)
        self.open_plan = plan, step
        return plan

    def leap_to(self, plan: StepPlan) -> None:
        """`plan` is open instead of the open one, whose step goes on in it. See Leap, which says when that is true."""
        assert self.open_plan is not None, "no plan is open"
        self.open_plan, self._num_open_plans = (plan, self.open_plan[1]), plan.step_id

    def commit(self, output: StepOutput, now: Nanos) -> list[Event]:
        """No plan is open; its sequences have got on by `output`. What it holds for ended sequences is discarded.

        Raises StaleOutputError, and changes nothing, if `output` does not answer the open plan.
        """
        if self.open_plan is None or self.open_plan[0].step_id != output.step_id:
            raise StaleOutputError(f"step {output.step_id} is not the open plan's")
        plan, step = self.open_plan
        accepted, errors, candidates = output.accepted, output.errors, output.candidates
        if not all(map(accepted.get, plan.rows)):  # most steps have a token for every row
            for row, samples in zip(plan.rows, plan.samples, strict=True):
                if samples and not accepted.get(row) and row not in errors and row not in candidates:
                    raise StaleOutputError(f"step {output.step_id} has no result for row {row}, which samples")
        if any(len(accepted.get(row, ())) > 1 + count for row, count in zip(plan.rows, plan.num_drafts, strict=False)):
            raise StaleOutputError(f"step {output.step_id} has more tokens than were drafted for it")
        self._check_copies(output.completed_copies)
        self.open_plan = None
        self._committer.commit(step, plan.samples, output, now)
        return self._complete(output.completed_copies, now)

    def complete_copies(self, copy_ids: abc.Iterable[CopyId], now: Nanos) -> list[Event]:
        """These copies have ended. Raises StaleOutputError, and changes nothing, if one was not under way."""
        copy_ids = tuple(copy_ids)
        self._check_copies(copy_ids)
        return self._complete(copy_ids, now)

    def requeue(self, now: Nanos) -> list[Event]:
        """The open plan came to nothing for want of memory, and is open no more: its sequences wait, to be computed
        again, and those that this happens to twice in a row have ended with an error. Nothing else is lost."""
        assert self.open_plan is not None, "no plan is open"
        (_, step), self.open_plan = self.open_plan, None
        self._requeues.take_back(step, now)
        return self.lifecycle.take_events()

    def fail_all(self, error: str, now: Nanos) -> list[Event]:
        """Every request has ended with `error`, and no plan is open: the runner lost its state.

        Copies that are under way still end one by one, and keep their blocks until then.
        """
        self.open_plan = None
        self.lifecycle.take_block_copies()  # what they would have copied is gone
        for seq in tuple(self.lifecycle.by_generation.values()):
            for each in seq.of_request:
                self.lifecycle.blocks.distrust(each)
            self.lifecycle.finish(seq, FinishReason.ERROR, now, error)
        self.lifecycle.release_ended()
        self.lifecycle.blocks.forget_cached()
        return self.lifecycle.take_events()

    def grant(self, generation_id: str, max_output_tokens: int, now: Nanos) -> None:
        """The request may emit `max_output_tokens` in all, and pauses there. Nothing happens if it has ended."""
        seq = self.lifecycle.by_generation.get(generation_id)
        if seq is not None:
            controls.grant(self.lifecycle, seq, max_output_tokens, now)

    def set_reader_blocked(self, generation_id: str, blocked: bool, now: Nanos) -> None:
        """The request pauses while its reader is blocked. Nothing happens if it has ended."""
        seq = self.lifecycle.by_generation.get(generation_id)
        if seq is not None:
            controls.set_reader_blocked(self.lifecycle, seq, blocked, now)

    def set_class(self, generation_id: str, priority_class: PriorityClass, now: Nanos) -> None:
        """The request belongs to another class from `now` on. Nothing happens if it has ended."""
        seq = self.lifecycle.by_generation.get(generation_id)
        if seq is not None:
            controls.set_class(self.lifecycle, seq, priority_class, now)

    def update_nodes(self, updates: abc.Iterable[tuple[Path, float, int]], now: Nanos) -> None:
        """Path of ids, weight and policy revision of nodes: govern queued and running work from the next plan on.

        Older revisions than the one known change nothing. Raises ValueError, and nothing has changed, for a weight that
        `check_weight` refuses.
        """
        updates = tuple(updates)
        for path, weight, _ in updates:
            check_weight("/".join(path), weight)
        self.lifecycle.flows.update_weights(updates)

    def update_classes(self, classes: abc.Iterable[PriorityClass], revision: int, now: Nanos) -> None:
        """Settings of classes, likewise."""
        self.lifecycle.flows.update_classes(classes, revision)

    def calibrate(self, prices: Prices, now: Nanos) -> None:
        """What steps and copies take was measured anew."""
        self.lifecycle.prices = prices
        self.planner.tiers.price(prices)

    def set_scheduling_policy(self, policy: SchedulingPolicy, now: Nanos) -> None:
        """`policy`, which is new, orders queued and running work from the next plan on.

        It takes over the newest counters that it understands, of the last policy or, where that one did not count, of
        one before it; if there are none it begins without. Raises PolicyTakeoverError, and the old one stays, if it
        fails to take over what waits.
        """
        self._scheduling.replace(policy, now)
        self.lifecycle.demands.touch_all(self.lifecycle.flows.all())

    def set_preemption_policy(self, policy: PreemptionPolicy, now: Nanos) -> None:
        """`policy` ranks victims from the next plan on."""
        self._preemption.replace(policy)

    def stats(self) -> SchedulerStats:
        """The state of this moment. Costs O(tenants)."""
        lifecycle = self.lifecycle
        tenants = lifecycle.flows.stats(self._scheduling.standing, lifecycle.blocks.num_kept_of)
        return SchedulerStats(
            num_running=sum(tenant.num_running for tenant in tenants),
            num_waiting=sum(tenant.num_waiting for tenant in tenants),
            num_paused=sum(tenant.num_paused for tenant in tenants),
            num_swapped=sum(tenant.num_swapped for tenant in tenants),
            num_swapping=sum(tenant.num_swapping for tenant in tenants),
            num_free_blocks=lifecycle.blocks.num_free,
            num_fenced_blocks=lifecycle.blocks.num_fenced,
            num_free_host_blocks=lifecycle.blocks.host_pool.num_free,
            num_preemptions=lifecycle.num_preemptions,
            num_pauses=lifecycle.num_pauses,
            num_swaps=lifecycle.num_swaps,
            num_lost_steps=self._requeues.num_lost_steps,
            num_requeues=self._requeues.num_requeues,
            prices=lifecycle.prices,
            policy_fault=self.policy_fault,
            tenants=tenants,
            totals=lifecycle.flows.totals(),
            num_copied_out=lifecycle.blocks.num_copied[CopyDirection.OUT],
            num_copied_in=lifecycle.blocks.num_copied[CopyDirection.IN],
            gap_bound=self._scheduling.gap_bound(),
            cache=lifecycle.blocks.cache_counts,
        )

    def queue_order(self, now: Nanos, limit: int = queue_position.MAX_EXACT + 1) -> queue_position.QueueOrder:
        """Who of those that wait would be served next. No plan is open. O(waiting)."""
        assert self.open_plan is None, "a plan is open"
        return queue_position.order_of(self.lifecycle, self.config, now, limit)

    def explain(self, seq: Sequence, order: queue_position.QueueOrder, now: Nanos) -> queue_position.Explanation:
        """Why an unfinished sequence is where it is, by an order that was asked for lately."""
        return queue_position.explain(self.lifecycle, order, self._yielding, seq, now)

    def _check_copies(self, copy_ids: tuple[CopyId, ...]) -> None:
        in_flight = self.lifecycle.blocks.in_flight
        if len(set(copy_ids)) != len(copy_ids) or any(copy_id not in in_flight for copy_id in copy_ids):
            raise StaleOutputError(f"copies {copy_ids} are not all under way")

    def _complete(self, copy_ids: abc.Iterable[CopyId], now: Nanos) -> list[Event]:
        for copy_id in copy_ids:
            self.planner.preemptions.complete_copy(copy_id, now)
        return self.lifecycle.take_events()
