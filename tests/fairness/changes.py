"""The pitfalls' changed rules in the real code: edits of core and policy, or of the terms of each plan."""

from collections import abc
from dataclasses import dataclass, replace

from engine.core.admission import Admission
from engine.core.demand import Demands
from engine.core.lifecycle import Lifecycle
from engine.core.memory import Memory
from engine.core.policy import Demand, FlowView, PlanStart, Terms
from engine.core.types import SequenceStatus
from engine.core.victims import Victims
from policies.fair.tree import Tree
from tests.builders import STEP_NS
from tests.fairness.changed_code import Edit
from tests.fairness.model import MAX_AGE
from tests.fairness.scheduler_world import SchedulerWorld

Rewrite = abc.Callable[[SchedulerWorld], abc.Callable[[Terms], Terms]]
Forge = abc.Callable[[], abc.Callable[[PlanStart], PlanStart]]


@dataclass(frozen=True, slots=True)
class Change:
    """`rewrite` makes, for a world, what changes the terms that its policy gives, `forge` what the policy is told."""

    edits: tuple[Edit, ...] = ()
    rewrite: Rewrite | None = None
    forge: Forge | None = None


_LIFT_TO_OLD_FLOOR = Edit(
    Tree,
    "_lift",
    {
        "if node.counter < parent.floor:\n        node.counter = parent.floor": (
            "level = self.__dict__.get('old', {}).get(parent, 0.0)\n"
            "    if node.counter < level:\n        node.counter = level"
        )
    },
)
_REMEMBER_OLD_FLOOR = Edit(
    Tree,
    "_raise_floor",
    {
        "parent.floor = max(parent.floor, parent.peak if least is None else least)": (
            "parent.floor = parent.peak if least is None else least\n"
            "    if least is not None: self.__dict__.setdefault('old', {})[parent] = least"
        )
    },
)


def _protected_run(world: SchedulerWorld) -> abc.Callable[[Terms], Terms]:
    """Flows with a sequence that came in a short time ago do not yield."""

    def rewrite(terms: Terms) -> Terms:
        lifecycle = world.scheduler.lifecycle
        limit = world.machine.min_resident_steps
        residents = [*lifecycle.running, *lifecycle.paused]
        fresh = {seq.flow for seq in residents if lifecycle.num_plans - seq.resident_since < limit}
        return replace(terms, yielding=frozenset(flow for flow in terms.yielding if flow not in fresh))

    return rewrite


def _aged_overtakes(world: SchedulerWorld) -> abc.Callable[[Terms], Terms]:
    """While a request has waited for long, all flows without such a request yield."""

    def rewrite(terms: Terms) -> Terms:
        lifecycle = world.scheduler.lifecycle
        waiting = [seq for seq in lifecycle.by_generation.values() if seq.status is SequenceStatus.WAITING]
        aged = {seq.flow for seq in waiting if world.now - seq.request.arrived_at > MAX_AGE * STEP_NS}
        rest = frozenset(flow for flow in lifecycle.flows.all() if flow not in aged)
        return replace(terms, yielding=rest) if aged else terms

    return rewrite


def _pause_below_swap(world: SchedulerWorld) -> abc.Callable[[Terms], Terms]:
    """Flows get nothing from a quarter of the threshold on, but give way only above it."""

    def rewrite(terms: Terms) -> Terms:
        limit = world.machine.threshold / 4
        ahead = [flow for flow in world.scheduler.lifecycle.flows.all() if max(world.policy.standing(flow)) > limit]
        return replace(terms, yielding=frozenset(ahead) | terms.yielding)

    return rewrite


def _lift_on_activation() -> abc.Callable[[PlanStart], PlanStart]:
    """Flows are lifted when they had no request at all, and never again while they have one."""
    active: dict[FlowView, None] = {}

    def forge(start: PlanStart) -> PlanStart:
        fresh = [flow for flow in start.satisfied if flow not in active]
        active.update(dict.fromkeys(start.satisfied))
        for flow in start.changed:
            if flow.demand is Demand.NONE:
                active.pop(flow, None)
            else:
                active[flow] = None
        return replace(start, satisfied=fresh)

    return forge


CHANGES: dict[str, Change] = {
    "empty_takes_last": Change((_LIFT_TO_OLD_FLOOR, _REMEMBER_OLD_FLOOR)),
    "empty_keeps_floor": Change((_LIFT_TO_OLD_FLOOR, _REMEMBER_OLD_FLOOR)),
    "lift_on_activation": Change(forge=_lift_on_activation),
    "own_blocks_excuse": Change(
        (
            Edit(
                Demands,
                "end",
                {
                    "for flow in served:\n        is_flagged = flow.num_satisfied < flow.num_wanting": (
                        "for flow in served:\n        is_flagged = flow.num_satisfied < flow.num_wanting"
                        " and flow.num_device_blocks <= 24"
                    )
                },
            ),
        )
    ),
    "flag_dies": Change(
        (
            Edit(
                Demands,
                "change",
                {
                    "flow.num_wanting += num_sequences": (
                        "flow.num_wanting += num_sequences\n"
                        "    flow.is_flagged = flow.is_flagged and flow.num_wanting > 0"
                    )
                },
            ),
        )
    ),
    "uncapped": Change((Edit(Tree, "charge", {"if is_borrowed:": "if False:"}),)),
    "step_bound_unweighted": Change(
        (
            Edit(
                Tree,
                "charge",
                {"self.quantities.step_bound(node)": "self.quantities.step_bound(node) * view.weight"},
            ),
        )
    ),
    "aged_overtakes": Change(rewrite=_aged_overtakes),
    "held_is_backlogged": Change(
        (
            Edit(Lifecycle, "_hold", {"self.want(seq, wants=False)": "self.want(seq, wants=True)"}),
            Edit(Lifecycle, "pause", {"wants=not is_held": "wants=True"}),
        )
    ),
    "protected_runs": Change(rewrite=_protected_run),
    "pause_below_swap": Change(rewrite=_pause_below_swap),
    "cap_guards_seizure": Change(
        (
            Edit(
                Victims,
                "_is_protected",
                {
                    "if is_yielding and not step.terms.protects_yielding:": "if False:",
                    "is_capped = concession is Concession.SWAP and victim.num_seizures": (
                        "is_capped = victim.num_preemptions"
                    ),
                },
            ),
        )
    ),
    "kept_claim": Change(
        (
            Edit(Memory, "end", {"self._claim.was_ready": "False"}),
            Edit(Memory, "begin", {"if not is_head or seq.flow in step.terms.yielding:": "if not is_head:"}),
        )
    ),
    "regaining_is_seized": Change(
        (
            Edit(
                Victims,
                "_is_protected",
                {"0 < victim.num_regained_tokens >= victim.num_computed_tokens and not is_yielding": "False"},
            ),
            Edit(Victims, "_seizure", {"if concession is Concession.SWAP:": "if False:"}),
        )
    ),
    "global_lift": Change(
        (
            Edit(
                Tree,
                "_raise_floor",
                {
                    "least = parent.least_backlogged()": (
                        "leaves = [node for node in self._nodes.values() if node.flow is not None]\n"
                        "    flagged = [node.counter for node in leaves if node.demand is Demand.BACKLOGGED]\n"
                        "    is_above_leaves = any(child.flow is not None for child in parent.children.values())\n"
                        "    least = parent.least_backlogged()\n"
                        "    least = min(flagged, default=least) if is_above_leaves else least"
                    ),
                    "parent.floor = max(parent.floor, parent.peak if least is None else least)": (
                        "parent.floor = parent.peak if least is None else least"
                    ),
                },
            ),
        )
    ),
    "first_head_claims": Change((Edit(Admission, "_heads", {"len(passed) < MAX_CLAIMANTS": "not passed"}),)),
    "reservations_count_against_claim": Change(
        (
            Edit(
                Memory,
                "can_admit",
                {"return self._blocks.num_free >= num_needed": "return self.num_spare >= 0"},
            ),
        )
    ),
    "growth_eats_claim": Change(
        (
            Edit(
                Memory,
                "num_unclaimed",
                {" - (0 if self._claim is None else self._claim.num_blocks)": ""},
            ),
        )
    ),
}
