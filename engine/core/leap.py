"""Several decode steps at once, where each is like the one before: for the simulator, which makes up the tokens.

While nobody arrives, ends, pauses or is copied, a step of decodes only is planned again and again. A leap leaves the
scheduler as if the open plan had been committed and planned again so often: tokens, blocks, clocks and counters are the
same, to the last bit. It is cut off where anything could be decided otherwise: before the first end, before the pool
is empty, and where the policy says that its terms, or its next head, would be others. A policy that cannot tell has no
`leap`, and is stepped. What a leap leaves out are the `TokensEmitted` events.
"""

from collections import abc
from typing import Protocol, runtime_checkable

from engine.core.admission import MAX_CLAIMANTS
from engine.core.config import AdmissionReserve
from engine.core.plan import StepPlan
from engine.core.policy import SchedulingPolicy, Service
from engine.core.scheduler import Scheduler
from engine.core.sequence import Sequence
from engine.core.step import Step
from engine.core.types import Nanos, Request

TOKEN = 0  # what every sequence samples


@runtime_checkable
class LeapingPolicy(Protocol):
    """What a scheduling policy may offer beside its other methods."""

    def leap(self, services: abc.Sequence[Service], times: abc.Sequence[Nanos]) -> int:
        """Be charged with `services` once for each of `times`, and a plan begins at that moment, with no demand
        changed; or less often, where after one time more `begin` would give other terms than last, or, if anybody
        waits, `concede` any other answer than NOTHING, or `select` another one, which matters while a row is free.

        Returns how often. Counters are then exactly what single steps would have made them. O(services · times).
        """


class Leap:
    """Leaps of one scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._config = scheduler.config
        self._lifecycle = scheduler.lifecycle
        self._policy: SchedulingPolicy | None = None
        self._leaping: LeapingPolicy | None = None
        self._max_num_tokens = 0

    def expect(self, request: Request) -> None:
        """`request` is about to be added: told of each one."""
        num_tokens = len(request.prompt_token_ids) + request.max_output_tokens
        self._max_num_tokens = max(self._max_num_tokens, num_tokens)

    def max_steps(self) -> int:
        """How often the open plan may be repeated, as far as the core can tell; 0 if the next plan may be another."""
        opened = self._scheduler.open_plan
        if opened is None or self._leaping_policy() is None:
            return 0
        plan, step = opened
        is_other = plan.started or plan.num_drafts or plan.draft_limits or plan.block_copies
        if is_other or not (self._is_steady(step) and self._can_repeat(step)):
            return 0
        num_steps = min(
            min(seq.request.max_output_tokens, seq.granted_output_tokens) - seq.num_output_tokens
            for seq in step.granted
        )
        num_steps -= 1
        while num_steps and not self._fits(step, num_steps):
            num_steps //= 2
        return num_steps

    def take(self, times: abc.Sequence[Nanos]) -> StepPlan | None:
        """The open plan was committed at the first of `times`, the one after it at the second, and so on; the plan made
        at the last one is open. There are at most `max_steps` times, all before the next expiry, and no command comes
        between. Where the policy takes fewer steps, the later times do not count. Returns the open plan, or None if
        nothing has changed.
        """
        opened = self._scheduler.open_plan
        assert opened is not None, "max_steps allows none without an open plan"
        plan, step = opened
        num_steps = self._charge(step, times)
        if not num_steps:
            return None
        if self._config.mix_prefill:  # else prompts are paced before the decodes are granted
            self._scheduler.planner.pacing.repeat_decodes(step.num_decodes, step.num_context, num_steps)
        grown = self._get_on(step.granted, num_steps)
        step.now = times[num_steps - 1]
        step.num_context += num_steps * len(step.granted)
        step.num_old_blocks = grown
        self._lifecycle.num_plans += num_steps
        plan = self._next_plan(plan, step, num_steps)
        self._scheduler.leap_to(plan)
        return plan

    def _leaping_policy(self) -> LeapingPolicy | None:
        """The policy of this moment, if it leaps. Whether it does is found out once: to ask is slow."""
        policy = self._lifecycle.policy.policy
        if policy is not self._policy:
            self._policy = policy
            self._leaping = policy if isinstance(policy, LeapingPolicy) else None
        return self._leaping

    def _is_steady(self, step: Step) -> bool:
        """True if all that has blocks decodes, and nothing else is under way."""
        lifecycle = self._lifecycle
        if len(step.granted) != step.num_decodes or len(step.granted) != len(lifecycle.running) or step.terms.yielding:
            return False
        others = (lifecycle.paused, lifecycle.held, lifecycle.swapped, lifecycle.ended_in_plan)
        is_busy = any(others) or bool(lifecycle.events or lifecycle.blocks.in_flight or lifecycle.block_copies)
        if is_busy or self._scheduler.planner.claimant is not None:
            return False
        has_one_band = step.terms.class_order is None or len(lifecycle.flows.class_ranks()) < 2
        return has_one_band and lifecycle.demands.are_settled()

    def _can_repeat(self, step: Step) -> bool:
        """True if each token is new output, and those that wait are out for as long as the policy names the same heads.

        Who found neither row nor blocks finds none later: rows stay taken, nobody concedes one, and free blocks less
        the growth that is reserved only fall while sequences decode. While a row is free that is not so with a reserved
        peak, which falls, nor for prompts that are paced or wait for their plan.
        """
        for seq in step.granted:
            if seq.num_computed_tokens < seq.num_prompt_tokens or seq.num_computed_tokens < seq.num_regained_tokens:
                return False
        if not self._lifecycle.policy.waiting:
            return True
        if not self._lifecycle.rows.num_free:
            return self._scheduler.planner.are_rows_exhausted and self._is_ample(step)
        config = self._config
        can_change = config.admission_interval > 1 or step.terms.paces_prefill or config.target_step_ms > 0
        if can_change or not step.passed or config.admission_reserve is AdmissionReserve.PEAK:
            return False
        return self._is_ample(step) or self._is_short()

    def _is_ample(self, step: Step) -> bool:
        """True if any request would find blocks beside all that those in the plan can ever need: none has a claim."""
        num_blocks = self._lifecycle.blocks.num_blocks
        num_growth = sum([num_blocks(seq.max_num_tokens) - len(seq.block_table.device) for seq in step.granted])
        return num_blocks(self._max_num_tokens) + num_growth <= self._lifecycle.blocks.num_free

    def _is_short(self) -> bool:
        """True if no head that may have a claim would find blocks even if nothing was kept for the growth of others."""
        lifecycle, passed = self._lifecycle, list[Sequence]()
        while len(passed) < MAX_CLAIMANTS and (view := lifecycle.policy.select(passed)) is not None:
            seq = lifecycle.queued(view)
            if lifecycle.blocks.num_missing(seq) <= lifecycle.blocks.num_free:
                return False
            passed.append(seq)
        return True

    def _fits(self, step: Step, num_steps: int) -> bool:
        """True if the free blocks are enough for so many steps, and nothing that is cached moves meanwhile."""
        num_blocks = self._num_new_blocks(step.granted, num_steps)
        is_idle = self._scheduler.planner.tiers.stay_idle(num_blocks)
        return is_idle and num_blocks <= self._lifecycle.blocks.num_free

    def _num_new_blocks(self, seqs: abc.Iterable[Sequence], num_steps: int) -> int:
        size = self._config.block_size
        return sum([-(-(seq.num_tokens + num_steps) // size) - len(seq.block_table.device) for seq in seqs])

    def _charge(self, step: Step, times: abc.Sequence[Nanos]) -> int:
        num_decodes = dict.fromkeys((seq.flow for seq in step.granted), 0)
        for seq in step.granted:
            num_decodes[seq.flow] += 1
        services = [Service(flow, 0, count, 0) for flow, count in num_decodes.items()]
        policy = self._leaping_policy()
        assert policy is not None, "max_steps allows none for others"
        num_steps = self._lifecycle.policy.leap(policy.leap, services, times)
        for flow, count in num_decodes.items():
            flow.account.num_output_tokens += count * num_steps
        return num_steps

    def _get_on(self, seqs: abc.Sequence[Sequence], num_steps: int) -> dict[Sequence, int]:
        """Each of `seqs` has so many tokens more. Blocks are taken, and named, in the order of the steps. Returns who
        grew in the last one, with what it had before."""
        size = self._config.block_size
        growths: list[
            tuple[int, int]
        ] = []  # the step in which a sequence enters a new block, and its place in the plan
        for place, seq in enumerate(seqs):
            first = len(seq.block_table.device) * size - seq.num_tokens + 1
            growths += [(at, place) for at in range(first, num_steps + 1, size)]
        growths.sort()
        for seq in seqs:
            seq.num_tokens += num_steps
            seq.num_computed_tokens += num_steps
            seq.output_token_ids += (TOKEN,) * num_steps
            seq.timeline.num_decode_steps += num_steps
        self._lifecycle.blocks.grow_by_one([seqs[place] for _, place in growths])
        last = [seqs[place] for at, place in growths if at == num_steps]
        return {seq: len(seq.block_table.device) - 1 for seq in last}

    def _next_plan(self, plan: StepPlan, step: Step, num_steps: int) -> StepPlan:
        new_blocks = []
        for seq, num_old in step.num_old_blocks.items():
            assert seq.row is not None, "a sequence decodes without a row"
            new_blocks.append((seq.row, tuple(seq.block_table.device[num_old:])))
        return StepPlan(
            step_id=plan.step_id + num_steps,
            new_blocks=tuple(new_blocks),
            rows=plan.rows,
            starts=tuple([start + num_steps for start in plan.starts]),
            num_tokens=plan.num_tokens,
            samples=plan.samples,
        )
