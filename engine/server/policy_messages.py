"""What an administrator changes while the engine runs: policies, weights and classes, from the wire to commands.

Everything is checked here, before the engine thread sees it. Raises InvalidFieldError with the wire's field name.
"""

from collections import abc
from dataclasses import dataclass
from typing import TypeVar

from engine.core.policy import PreemptionPolicy, SchedulingPolicy
from engine.core.types import MAX_WEIGHT, MIN_WEIGHT, PriorityClass
from engine.decision_log import PolicyChoice
from engine.errors import InvalidFieldError
from engine.plugins import (
    InvalidOptionError,
    PolicyError,
    UnknownOptionError,
    check_pair,
    load_preemption_policy,
    load_scheduling_policy,
)
from engine.server.convert import MAX_ID_CHARACTERS, class_from_pb
from evenflow.engine.v1 import engine_pb2 as pb

Policy = TypeVar("Policy")

PolicyPair = tuple[PolicyChoice, PolicyChoice]
"""How the scheduling and the preemption policy were asked for."""

NodeUpdate = tuple[tuple[str, ...], float, int]
"""Ids from the organization on, weight, and the revision of the change that set it."""


@dataclass(frozen=True, slots=True)
class PolicySwitch:
    """New policies, and how they were asked for; None: that one stays."""

    scheduling: SchedulingPolicy | None
    preemption: PreemptionPolicy | None
    scheduling_choice: PolicyChoice | None
    preemption_choice: PolicyChoice | None


def load_switch(request: pb.SetSchedulingPolicyRequest, in_force: PolicyPair) -> PolicySwitch:
    """The policies that `request` names, which go together with what stays of those `in_force`.

    Imports what it is told to, so it belongs in a thread of its own.
    """
    if not request.name and not request.preemption_name:
        raise InvalidFieldError("name", "must not be empty where preemption_name is")
    for prefix in ("", "preemption_"):
        if getattr(request, f"{prefix}options") and not getattr(request, f"{prefix}name"):
            raise InvalidFieldError(f"{prefix}options", f"need {prefix}name: options belong to a new policy")
    scheduling = _named(request.name, request.options)
    preemption = _named(request.preemption_name, request.preemption_options)
    new_scheduling = _loaded(scheduling or in_force[0], load_scheduling_policy, "")
    new_preemption = _loaded(preemption or in_force[1], load_preemption_policy, "preemption_")
    try:
        check_pair(new_scheduling, new_preemption)
    except PolicyError as error:
        raise InvalidFieldError("preemption_name" if preemption else "name", f"cannot be taken: {error}") from error
    return PolicySwitch(
        new_scheduling if scheduling else None, new_preemption if preemption else None, scheduling, preemption
    )


def node_updates_from_pb(request: pb.UpdateNodesRequest) -> list[NodeUpdate]:
    """All of them, or none if one is wrong."""
    for index, node in enumerate(request.nodes):
        if not node.path or not all(0 < len(part) <= MAX_ID_CHARACTERS and "/" not in part for part in node.path):
            raise InvalidFieldError(f"nodes[{index}].path", "must be ids of 1 to 128 characters without a slash")
        if not MIN_WEIGHT <= node.weight <= MAX_WEIGHT:
            raise InvalidFieldError(f"nodes[{index}].weight", f"must be from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}")
    return [(tuple(node.path), node.weight, node.revision) for node in request.nodes]


def classes_from_pb(request: pb.UpdateClassesRequest) -> list[PriorityClass]:
    """Each class once."""
    classes = [class_from_pb(message) for message in request.classes]
    if len({named.name for named in classes}) < len(classes):
        raise InvalidFieldError("classes", "must hold each class once")
    return classes


def _named(name: str, options: abc.Mapping[str, str]) -> PolicyChoice | None:
    return PolicyChoice(name, dict(options)) if name else None


def _loaded(choice: PolicyChoice, load: abc.Callable[[str, abc.Mapping[str, str]], Policy], prefix: str) -> Policy:
    try:
        return load(choice.name, choice.options)
    except PolicyError as error:
        is_option = isinstance(error, UnknownOptionError | InvalidOptionError)
        raise InvalidFieldError(f"{prefix}{'options' if is_option else 'name'}", f"cannot be taken: {error}") from error
