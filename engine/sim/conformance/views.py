"""Sequences and flows as a policy sees them, without a scheduler behind them. Written by the suite and by tests."""

from dataclasses import dataclass, field

from engine.core.policy import Demand
from engine.core.types import Nanos, PriorityClass, SequenceKey, SequenceStatus, TenantId

START = Nanos(0)
DEFAULT_CLASS = PriorityClass("default")


@dataclass(slots=True, eq=False)
class PlainNode:
    """A node of the tenancy tree."""

    key: tuple[str, ...]
    weight: float = 1.0
    num_planned_prefill_tokens: int = 0
    num_planned_output_tokens: int = 0


@dataclass(slots=True, eq=False)
class PlainFlow:
    """One tenant in one class."""

    tenant_id: TenantId
    priority_class: PriorityClass
    nodes: tuple[PlainNode, ...]
    demand: Demand = Demand.NONE
    is_flagged: bool = False
    num_device_blocks: int = 0
    num_rows: int = 0


@dataclass(slots=True, eq=False)
class PlainSequence:
    """One sequence, every number of it as its owner says."""

    arrival_index: int
    flow: PlainFlow
    num_prompt_tokens: int = 12
    max_output_tokens: int = 8
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    num_cached_prompt_tokens: int = 0
    num_device_blocks: int = 0
    num_preemptions: int = 0
    status: SequenceStatus = SequenceStatus.WAITING
    arrived_at: Nanos = START
    deadline: Nanos | None = None

    @property
    def key(self) -> SequenceKey:
        return SequenceKey(f"g{self.arrival_index}", 0)

    @property
    def tenant_id(self) -> TenantId:
        return self.flow.tenant_id

    @property
    def priority_class(self) -> PriorityClass:
        return self.flow.priority_class

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def max_num_tokens(self) -> int:
        return self.num_prompt_tokens + self.max_output_tokens


@dataclass(slots=True)
class Tenancy:
    """Flows by organization, team and class; flows of one organization in one class share its node."""

    nodes: dict[tuple[str, ...], PlainNode] = field(default_factory=dict)
    flows: dict[tuple[str, str], PlainFlow] = field(default_factory=dict)

    def flow(
        self,
        team: str,
        *,
        organization: str | None = None,
        weight: float = 1.0,
        organization_weight: float = 1.0,
        priority_class: PriorityClass = DEFAULT_CLASS,
    ) -> PlainFlow:
        """The flow, made when it is asked for first; an organization of its own for each team unless it is named."""
        organization = f"org-{team}" if organization is None else organization
        tenant_id = TenantId(f"{organization}/{team}")
        flow = self.flows.get((tenant_id, priority_class.name))
        if flow is None:
            parent = self._node((priority_class.name, organization), organization_weight)
            child = self._node((priority_class.name, organization, team), weight)
            flow = self.flows[tenant_id, priority_class.name] = PlainFlow(tenant_id, priority_class, (parent, child))
        return flow

    def _node(self, key: tuple[str, ...], weight: float) -> PlainNode:
        return self.nodes.setdefault(key, PlainNode(key, weight))
