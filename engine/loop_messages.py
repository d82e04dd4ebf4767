"""What enters the engine thread and what leaves it: commands, and updates that are addressed to an outlet each."""

from collections import abc
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple, Protocol

from engine.core.errors import DuplicateRequestError, RequestTooLargeError
from engine.core.events import Event
from engine.core.policy import PreemptionPolicy, SchedulingPolicy
from engine.core.queue_position import Explanation, QueueOrder, RequestInfo
from engine.core.stats import SchedulerStats
from engine.core.types import FinishReason, Nanos, PriorityClass, Request
from engine.decision_log import PolicyChoice
from engine.errors import RefusedError
from engine.step_figures import StepBuckets

Refusal = DuplicateRequestError | RequestTooLargeError | RefusedError


@dataclass(frozen=True, slots=True)
class Accepted:
    """The scheduler has the request, which came when `num_waiting` others waited; or decides by the policies."""

    num_waiting: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """The request is not served, or the change not made, and why."""

    error: Refusal


@dataclass(frozen=True, slots=True)
class LoopStats:
    """Figures of this moment; `mean_step_ms` of the last 256 steps, `steps` since the engine began."""

    scheduler: SchedulerStats
    num_steps: int
    mean_step_ms: float
    uptime_s: float
    steps: StepBuckets


@dataclass(frozen=True, slots=True)
class QueuedAt:
    """So many are served before a request that waits, or more where `is_lower_bound`.

    `estimated_wait_ns` is None while nothing was taken in lately.
    """

    position: int
    is_lower_bound: bool
    estimated_wait_ns: int | None


@dataclass(frozen=True, slots=True)
class RequestPage:
    """Unfinished requests in order of arrival."""

    requests: tuple[RequestInfo, ...]
    _: KW_ONLY
    is_last: bool


Answer = QueueOrder | RequestPage | Explanation
Update = Accepted | Refused | LoopStats | QueuedAt | Answer | Event


class Outlet(Protocol):
    """Where the updates of one command's request go; `put` is called in order, by whoever `deliver` leads to."""

    def put(self, update: Update, at: Nanos) -> None: ...


class Delivery(NamedTuple):
    """`update` happened `at` that moment and belongs to `outlet`."""

    outlet: Outlet
    update: Update
    at: Nanos


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue the request. `outlet` gets Accepted or Refused, then its events up to Finished."""

    outlet: Outlet
    request: Request


@dataclass(frozen=True, slots=True)
class Abort:
    """End the request that `outlet` belongs to; nothing happens if it has ended."""

    outlet: Outlet
    generation_id: str
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Grant:
    """Raise the output tokens allowed so far to `max_output_tokens`."""

    outlet: Outlet
    generation_id: str
    max_output_tokens: int


@dataclass(frozen=True, slots=True)
class SetReaderBlocked:
    """Pause the request while its reader cannot take more."""

    outlet: Outlet
    generation_id: str
    _: KW_ONLY
    blocked: bool


@dataclass(frozen=True, slots=True)
class SetClass:
    """Serve the request in another class from now on."""

    outlet: Outlet
    generation_id: str
    priority_class: PriorityClass


@dataclass(frozen=True, slots=True)
class ReadStats:
    """`outlet` gets a LoopStats."""

    outlet: Outlet


@dataclass(frozen=True, slots=True)
class ReadQueue:
    """`outlet` gets a QueueOrder."""

    outlet: Outlet


@dataclass(frozen=True, slots=True)
class ReadRequests:
    """`outlet` gets a RequestPage: at most `limit` of those that arrived after number `after`."""

    outlet: Outlet
    after: int
    limit: int


@dataclass(frozen=True, slots=True)
class Explain:
    """`outlet` gets an Explanation, or Refused."""

    outlet: Outlet
    generation_id: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End the loop after the commands before this one; unfinished requests hear nothing more."""


@dataclass(frozen=True, slots=True)
class Policies:
    """The two plug-ins."""

    scheduling: SchedulingPolicy
    preemption: PreemptionPolicy

    def switched(self, scheduling: SchedulingPolicy | None, preemption: PreemptionPolicy | None) -> "Policies":
        """With these instead, as far as they are given."""
        return Policies(scheduling or self.scheduling, preemption or self.preemption)


@dataclass(frozen=True, slots=True)
class SetPolicies:
    """Decide by these policies from the next step on; None: that one stays. `outlet` gets Accepted or Refused.

    The choices say how the policies were asked for, for the decision log.
    """

    outlet: Outlet
    scheduling: SchedulingPolicy | None
    preemption: PreemptionPolicy | None
    scheduling_choice: PolicyChoice | None = None
    preemption_choice: PolicyChoice | None = None


@dataclass(frozen=True, slots=True)
class UpdateNodes:
    """Weights that changed: (ids from the organization on, weight, revision). They govern queued and running work."""

    nodes: abc.Sequence[tuple[tuple[str, ...], float, int]]


@dataclass(frozen=True, slots=True)
class UpdateClasses:
    """Priority classes that changed. They govern queued and running work."""

    classes: abc.Sequence[PriorityClass]
    revision: int


@dataclass(frozen=True, slots=True)
class TakeCopies:
    """Copies between the pools have ended. The runner's own thread sends it."""


Control = Abort | Grant | SetReaderBlocked | SetClass
Query = ReadQueue | ReadRequests | Explain
Command = Submit | Control | ReadStats | Query | SetPolicies | UpdateNodes | UpdateClasses | TakeCopies | Stop
