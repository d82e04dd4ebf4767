"""The two seams of the scheduler. A policy ranks and vetoes; blocks, budgets and states stay with the core.

A policy keeps its own index of waiting sequences, so that asking for the next one costs O(log n) and takes no list.
It reads no clock, no environment and no global randomness: the same calls give the same answers.
"""

from collections import abc
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from engine.core.types import Nanos, PathNode, PriorityClass, SequenceKey, TenantId


class SequenceView(Protocol):
    """What a policy may read of a sequence. Nothing here can be written."""

    @property
    def key(self) -> SequenceKey: ...
    @property
    def tenant_id(self) -> TenantId: ...
    @property
    def priority_class(self) -> PriorityClass: ...
    @property
    def arrival_index(self) -> int: ...
    @property
    def path(self) -> tuple[PathNode, ...]: ...
    @property
    def arrived_at(self) -> Nanos: ...
    @property
    def deadline(self) -> Nanos | None: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_output_tokens(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_computed_tokens(self) -> int: ...
    @property
    def num_preemptions(self) -> int: ...


class LeaveReason(Enum):
    """Why a sequence waits no longer. FINISHED comes once for every sequence, also for one that was not waiting."""

    ADMITTED = "admitted"
    FINISHED = "finished"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class Service:
    """What one tenant got in one step. `weights` are those of its path, root to leaf."""

    tenant_id: TenantId
    path: tuple[PathNode, ...]
    num_prefill_tokens: int
    num_output_tokens: int
    num_recomputed_tokens: int


class SchedulingPolicy(Protocol):
    """Decides who is admitted next and in which order running prompts advance. Called by the scheduler only."""

    def on_arrive(self, seq: SequenceView, now: Nanos) -> None:
        """`seq` has begun to wait: it is new (`num_preemptions` 0), was preempted, or is no longer held. O(log n)."""

    def on_leave(self, seq: SequenceView, reason: LeaveReason, now: Nanos) -> None:
        """`seq` waits no longer. ADMITTED is the selection of the published policies. With FINISHED nothing follows,
        and what was committed before has been charged. O(log n)."""

    def select(self, now: Nanos) -> SequenceView | None:
        """The waiting sequence to admit next, or None if none waits. Changes nothing; asked again after each grant."""

    def key(self, seq: SequenceView) -> tuple[float, ...]:
        """Rank of any unfinished sequence at this moment, lower first. Ties are broken by `arrival_index`."""

    def charge(self, service: Service) -> None:
        """A step was committed. Once per tenant and step, in order of tenant id."""

    def standing(self) -> abc.Mapping[TenantId, float]:
        """How over-served each known tenant is, higher is more. For victims, statistics and tests."""

    def snapshot(self) -> bytes:
        """The counters, so that a restart or a change of policy can carry them over."""

    def restore(self, snapshot: bytes) -> None:
        """Take over counters, before the first sequence arrives. ValueError if they are not this policy's."""


class PreemptionPolicy(Protocol):
    """Decides whose blocks are taken when the pool is short."""

    def victims(
        self,
        resident: abc.Sequence[SequenceView],
        claimant: SequenceView,
        standing: abc.Mapping[TenantId, float],
        now: Nanos,
    ) -> abc.Iterator[SequenceView]:
        """Yield sequences of `resident` in the order in which they may be preempted for `claimant`.

        An empty iterator is a veto: the claimant waits. `claimant` itself may be yielded; it then loses its blocks.
        """
