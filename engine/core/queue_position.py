"""Who would be served next, and why a request stands where it stands. Asks; changes nothing that lasts.

The order is the one in which the policy would admit those that wait if each took its whole prompt in a step of its own,
with what it is charged for that, and nobody came or went. The policy is asked through a copy of itself that knows the
same sequences. One that cannot be copied is asked for the keys of this moment; one that knows better may offer
`queue_order`, see docs/policies.md. Costs O(waiting) for the copy and O(limit log waiting) for the order.
"""

import io
import pickle
from collections import abc
from dataclasses import dataclass
from typing import Any

from engine.core.config import SchedulerConfig
from engine.core.flow import Flow, Node
from engine.core.guard import CAUGHT
from engine.core.lifecycle import Lifecycle
from engine.core.policy import Demand, LeaveReason, PlanStart, SchedulingPolicy, SequenceView, Service
from engine.core.sequence import Sequence
from engine.core.types import Nanos, PathNode, SequenceStatus

MAX_EXACT = 100  # positions beyond it are told as a lower bound
_RECALL = "_recall"
_QUEUED = (SequenceStatus.WAITING, SequenceStatus.SWAPPED)
_IN_COPY = (SequenceStatus.SWAPPING_OUT, SequenceStatus.SWAPPING_IN)


@dataclass(frozen=True, slots=True)
class QueueOrder:
    """The first ones in the order of service, and how many wait in all."""

    generation_ids: tuple[str, ...]
    num_waiting: int

    def position_of(self, generation_id: str) -> int | None:
        """How many of those that wait come before it; None where that is more than can be told.

        One that has come since the order was made stands behind all others until the next one is made.
        """
        if generation_id in self.generation_ids:
            return self.generation_ids.index(generation_id)
        return self.num_waiting if self.num_waiting == len(self.generation_ids) else None


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """One unfinished request at one moment. `waited_ns` ends with its first step, `age_ns` now."""

    generation_id: str
    arrival_index: int
    path: tuple[PathNode, ...]
    class_name: str
    status: SequenceStatus
    num_prompt_tokens: int
    num_output_tokens: int
    max_output_tokens: int
    num_computed_tokens: int
    num_device_blocks: int
    num_preemptions: int
    waited_ns: int
    age_ns: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a request is where it is.

    position    how many are served before it; None: more than `MAX_EXACT`, or it does not wait
    ahead       those that are, in order
    standing    the policy's counters on its path, from the organization on; empty where it does not count
    blocked_by  "order", "rows", "blocks", "fairness", "kv_pressure", "quota", "reader", "copy", or "" for nothing
    """

    request: RequestInfo
    is_queued: bool
    position: int | None
    ahead: tuple[RequestInfo, ...]
    standing: tuple[float, ...]
    blocked_by: str
    num_tenant_prefill_tokens: int
    num_tenant_output_tokens: int


def order_of(lifecycle: Lifecycle, config: SchedulerConfig, now: Nanos, limit: int = MAX_EXACT + 1) -> QueueOrder:
    """The first `limit` of those that wait, as the policy would serve them. No plan is open."""
    waiting = dict(lifecycle.policy.waiting)
    policy = lifecycle.policy.policy
    try:
        offered = getattr(policy, "queue_order", None)
        chosen = offered(limit) if callable(offered) else _Trial(lifecycle, config, now).first(limit)
        first = _checked(chosen, waiting, limit)
    except CAUGHT:  # whatever a stranger's policy does with a question, it goes on deciding
        first = []
    if len(first) < min(limit, len(waiting)):
        told = set(first)
        left = [seq for seq in waiting.values() if seq not in told]
        first += _by_key(policy, left)[: limit - len(first)]
    num_waiting = len({seq.key.generation_id for seq in waiting.values()})  # one request may wait with several beams
    return QueueOrder(tuple(dict.fromkeys(seq.key.generation_id for seq in first)), num_waiting)


def info_of(seq: Sequence, now: Nanos) -> RequestInfo:
    """What is told of an unfinished request. Of one that searches: the state of the beam that others wait for, the
    output tokens, blocks and preemptions of all beams together, and the computed tokens of `seq` alone."""
    group = None if seq.beam is None else seq.beam.group
    device = seq.block_table.device if group is None else {b for m in group.members for b in m.block_table.device}
    started_at = seq.timeline.started_at
    weights = {node.key[-1]: node.weight for node in seq.flow.nodes}
    return RequestInfo(
        generation_id=seq.request.generation_id,
        arrival_index=seq.of_request[0].arrival_index,
        path=tuple(PathNode(node.id, weights.get(node.id, node.weight)) for node in seq.request.path),
        class_name=seq.priority_class.name,
        status=seq.status if group is None else group.foremost.status,
        num_prompt_tokens=seq.num_prompt_tokens,
        num_output_tokens=seq.num_output_tokens if group is None else group.num_charged,
        max_output_tokens=seq.request.max_charged_tokens,
        num_computed_tokens=seq.num_computed_tokens,
        num_device_blocks=len(device),
        num_preemptions=seq.num_preemptions if group is None else group.num_preemptions,
        waited_ns=(now if started_at is None else started_at) - seq.arrived_at,
        age_ns=now - seq.arrived_at,
    )


def explain(
    lifecycle: Lifecycle, order: QueueOrder, yielding: abc.Set[object], seq: Sequence, now: Nanos
) -> Explanation:
    """Why the request of `seq` is where it is; `yielding` are the flows that yielded in the last plan."""
    seq = seq if seq.beam is None else seq.beam.group.foremost
    is_queued = seq.status in _QUEUED and seq.hold_reason is None
    position = order.position_of(seq.request.generation_id) if is_queued else None
    ahead = order.generation_ids[: len(order.generation_ids) if position is None else position] if is_queued else ()
    sequences = (lifecycle.by_generation.get(generation_id) for generation_id in ahead)
    account = seq.flow.account
    return Explanation(
        request=info_of(seq, now),
        is_queued=is_queued,
        position=position,
        ahead=tuple(info_of(each, now) for each in sequences if each is not None),
        standing=lifecycle.policy.standing(seq.flow),
        blocked_by=_blocked_by(lifecycle, position, yielding, seq),
        num_tenant_prefill_tokens=account.num_prefill_tokens,
        num_tenant_output_tokens=account.num_output_tokens,
    )


def _blocked_by(lifecycle: Lifecycle, position: int | None, yielding: abc.Set[object], seq: Sequence) -> str:
    if seq.hold_reason is not None:
        return seq.hold_reason.value
    if seq.status in _IN_COPY:
        return "copy"
    if seq.status is SequenceStatus.PAUSED:
        return "fairness" if seq.flow in yielding else "kv_pressure"
    if seq.status not in _QUEUED:
        return ""
    if position != 0:
        return "order"
    if not lifecycle.rows.num_free:
        return "rows"
    return "blocks" if lifecycle.blocks.num_missing(seq) > lifecycle.blocks.num_free else ""


class _Trial:
    """A copy of the policy that is told of one admission after the other. Flows and nodes are put back at the end."""

    def __init__(self, lifecycle: Lifecycle, config: SchedulerConfig, now: Nanos) -> None:
        self._policy = _copy_of(lifecycle.policy.policy)
        self._queued = lifecycle.queued
        self._config, self._prices, self._now = config, lifecycle.prices, now
        self._flows = tuple(lifecycle.flows.all())
        self._satisfied: dict[Flow, None] = {}
        self._num_waiting: dict[Flow, int] = {}
        for view in lifecycle.policy.waiting.values():
            flow = lifecycle.queued(view).flow
            self._num_waiting[flow] = self._num_waiting.get(flow, 0) + 1

    def first(self, limit: int) -> list[SequenceView]:
        demands = [(flow, flow.demand, flow.is_flagged) for flow in self._flows]
        nodes = {id(node): node for flow in self._flows for node in flow.nodes}.values()
        planned = [(node, node.num_planned_prefill_tokens, node.num_planned_output_tokens) for node in nodes]
        try:
            for node in nodes:  # what the last plan gave is charged by now
                node.num_planned_prefill_tokens = node.num_planned_output_tokens = 0
            return list(self._select(limit))
        finally:
            for flow, demand, is_flagged in demands:
                flow.demand, flow.is_flagged = demand, is_flagged
            for node, num_prefill_tokens, num_output_tokens in planned:
                node.num_planned_prefill_tokens, node.num_planned_output_tokens = num_prefill_tokens, num_output_tokens

    def _select(self, limit: int) -> abc.Iterator[SequenceView]:
        policy, num_left = self._policy, sum(self._num_waiting.values())
        changed = self._judge(self._flows)
        for number in range(min(limit, num_left)):
            policy.begin(PlanStart(self._now, self._config, self._prices, changed, tuple(self._satisfied)))
            view = policy.select(())
            if view is None:
                return
            yield view
            seq = self._queued(view)
            num_tokens = max(0, seq.num_tokens - max(seq.num_computed_tokens, seq.num_cached_prompt_tokens))
            policy.on_leave(seq, LeaveReason.ADMITTED, self._now)
            policy.charge(Service(seq.flow, num_tokens, 1, 0))
            self._num_waiting[seq.flow] -= 1
            changed = self._deny(self._flows if number == 0 else (seq.flow,))

    def _deny(self, flows: abc.Iterable[Flow]) -> list[Flow]:
        """Whoever of `flows` still waits was denied something by the admission of another."""
        for flow in flows:
            flow.is_flagged = self._num_waiting.get(flow, 0) > 0
        return self._judge(flows)

    def _judge(self, flows: abc.Iterable[Flow]) -> list[Flow]:
        """The demand of `flows` is as the next plan would find it; returns those that have changed."""
        changed = []
        for flow in flows:
            wants = Demand.BACKLOGGED if flow.is_flagged else Demand.SATISFIED
            demand = wants if flow.num_wanting else Demand.NONE
            if demand is Demand.SATISFIED:
                self._satisfied[flow] = None
            else:
                self._satisfied.pop(flow, None)
            if demand is not flow.demand:
                flow.demand = demand
                changed.append(flow)
        return changed


class _Pickler(pickle.Pickler):
    """Sequences, flows and nodes are kept, not copied: `kept` has them in the order in which they were met."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.kept: list[object] = []

    def reducer_override(self, obj: object) -> Any:  # what a reducer returns, or NotImplemented
        if not isinstance(obj, Sequence | Flow | Node):
            return NotImplemented
        self.kept.append(obj)
        return _recall, (len(self.kept) - 1,)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, kept: list[object]) -> None:
        super().__init__(file)
        self._kept = kept

    def find_class(self, module: str, name: str) -> object:
        if module == __name__ and name == _RECALL:
            return self._kept.__getitem__
        return super().find_class(module, name)


def _recall(index: int) -> object:
    """Stands in the pickle for something that was kept; `_Unpickler` puts the real one in its place."""
    raise AssertionError(f"{index} is recalled by the unpickler")


def _copy_of(policy: SchedulingPolicy) -> SchedulingPolicy:
    """Another policy in the same state, about the same sequences. Raises what a policy that cannot be copied raises."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(policy)
    file.seek(0)
    copy: SchedulingPolicy = _Unpickler(file, pickler.kept).load()  # of what this process has just written
    return copy


def _checked(
    chosen: abc.Iterable[SequenceView], waiting: abc.Mapping[int, SequenceView], limit: int
) -> list[SequenceView]:
    """The chosen ones, at most `limit`. Raises ValueError if one does not wait, or is named twice."""
    first: dict[SequenceView, None] = {}
    for seq in chosen:
        if waiting.get(seq.arrival_index) is not seq or seq in first:
            raise ValueError(f"{seq.key} does not wait, or was named before")
        first[seq] = None
        if len(first) == limit:
            break
    return list(first)


def _by_key(policy: SchedulingPolicy, waiting: list[SequenceView]) -> list[SequenceView]:
    """By the keys of this moment, or by arrival where a policy has none to tell."""
    try:
        return sorted(waiting, key=lambda seq: (*policy.key(seq), seq.arrival_index))
    except CAUGHT:
        return sorted(waiting, key=lambda seq: seq.arrival_index)
