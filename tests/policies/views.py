"""Sequences and calls for tests that call a policy themselves, without a scheduler."""

from engine.core.costs import Prices
from engine.core.policy import LeaveReason, PlanStart, SchedulingPolicy, Service, Terms
from engine.core.types import Nanos, PriorityClass, SequenceStatus, TenantId
from engine.sim.conformance.book import CONFIG
from engine.sim.conformance.views import DEFAULT_CLASS, PlainFlow, PlainSequence, Tenancy

NOW = Nanos(0)
MS = 1_000_000


def make_flow(
    tenant: str = "a",
    *,
    weight: float = 1.0,
    organization_weight: float = 1.0,
    priority_class: PriorityClass = DEFAULT_CLASS,
) -> PlainFlow:
    """A team that is alone in its organization."""
    return Tenancy().flow(tenant, weight=weight, organization_weight=organization_weight, priority_class=priority_class)


def make_view(
    arrival_index: int = 0,
    *,
    tenant: str = "a",
    weight: float = 1.0,
    priority_class: PriorityClass = DEFAULT_CLASS,
    prompt: int = 12,
    output: int = 8,
    **fields: object,
) -> PlainSequence:
    """A sequence that has just arrived; `fields` are those of PlainSequence."""
    flow = make_flow(tenant, weight=weight, priority_class=priority_class)
    return PlainSequence(arrival_index, flow, num_prompt_tokens=prompt, max_output_tokens=output, **fields)


def tenant_id(name: str) -> TenantId:
    return TenantId(f"org-{name}/{name}")


def begin(policy: SchedulingPolicy, now: int = 0, prices: Prices | None = None) -> Terms:
    """A plan begins in which nothing has changed."""
    return policy.begin(PlanStart(Nanos(now), CONFIG, prices or Prices(), (), ()))


def output(tenant: str, num_tokens: int, weight: float = 1.0, priority_class: PriorityClass = DEFAULT_CLASS) -> Service:
    """What one flow emitted in a step."""
    return Service(make_flow(tenant, weight=weight, priority_class=priority_class), 0, num_tokens, 0)


def standing(policy: SchedulingPolicy, tenant: str) -> float:
    """The last number of the tenant's standing."""
    return policy.standing(make_flow(tenant))[-1]


def admit(policy: SchedulingPolicy, seq: PlainSequence, now: int = 0) -> None:
    """`seq`, which waits, runs."""
    policy.on_leave(seq, LeaveReason.ADMITTED, Nanos(now))
    seq.status = SequenceStatus.RUNNING


def finish(policy: SchedulingPolicy, seq: PlainSequence, now: int = 0) -> None:
    """`seq` has ended, whatever it did."""
    seq.status = SequenceStatus.FINISHED
    policy.on_leave(seq, LeaveReason.FINISHED, Nanos(now))


def preempt(policy: SchedulingPolicy, seq: PlainSequence, now: int = 0, *, swap: bool = False) -> None:
    """`seq`, which ran, waits again."""
    seq.status = SequenceStatus.SWAPPED if swap else SequenceStatus.WAITING
    seq.num_preemptions += 0 if swap else 1
    policy.on_arrive(seq, Nanos(now))


def drain(policy: SchedulingPolicy, now: int = 0) -> list[int]:
    """Admit one after the other; the arrival indexes in the order of admission."""
    order = []
    while (seq := policy.select(())) is not None:
        admit(policy, seq, now)
        order.append(seq.arrival_index)
    return order
