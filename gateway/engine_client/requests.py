"""An engine's unfinished requests: what it says of them, how that comes out of protocol messages, and which are meant.

Plain values. Pure.
"""

from dataclasses import dataclass

from evenflow.engine.v1 import engine_pb2 as pb


@dataclass(frozen=True, slots=True)
class RequestSelection:
    """An engine's requests with these ids, of this tenant and of this sender; what is empty chooses nothing.

    Not all of them are empty.
    """

    generation_ids: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    sender_id: str = ""


@dataclass(frozen=True, slots=True)
class RequestSummary:
    """One of them at one moment; each field means what it does in `engine.proto`. `path` is (organization, team)."""

    generation_id: str
    path: tuple[str, ...]
    priority_class: str
    state: str
    num_prompt_tokens: int
    num_output_tokens: int
    max_output_tokens: int
    num_computed_tokens: int
    num_device_blocks: int
    num_preemptions: int
    waited_ns: int
    age_ns: int


@dataclass(frozen=True, slots=True)
class RequestExplanation:
    """Why it stands where it stands; `position` is a lower bound where `is_lower_bound`, the wait an estimate."""

    request: RequestSummary
    position: int
    is_lower_bound: bool
    estimated_wait_ns: int | None
    ahead: tuple[RequestSummary, ...]
    standing: tuple[float, ...]
    num_tenant_prefill_tokens: int
    num_tenant_output_tokens: int
    blocked_by: str
    scheduling_policy: str


def summary_from_pb(message: pb.RequestSummary) -> RequestSummary:
    return RequestSummary(
        generation_id=message.generation_id,
        path=tuple(node.id for node in message.path),
        priority_class=message.priority_class,
        state=message.state,
        num_prompt_tokens=message.prompt_tokens,
        num_output_tokens=message.output_tokens,
        max_output_tokens=message.max_output_tokens,
        num_computed_tokens=message.computed_tokens,
        num_device_blocks=message.device_blocks,
        num_preemptions=message.num_preemptions,
        waited_ns=message.waited_ns,
        age_ns=message.age_ns,
    )


def explanation_from_pb(message: pb.ExplainRequestResponse) -> RequestExplanation:
    return RequestExplanation(
        request=summary_from_pb(message.request),
        position=message.position,
        is_lower_bound=message.position_is_lower_bound,
        estimated_wait_ns=message.estimated_wait_ns if message.HasField("estimated_wait_ns") else None,
        ahead=tuple(summary_from_pb(each) for each in message.ahead),
        standing=tuple(message.standing),
        num_tenant_prefill_tokens=message.tenant_prefill_tokens,
        num_tenant_output_tokens=message.tenant_output_tokens,
        blocked_by=message.blocked_by,
        scheduling_policy=message.scheduling_policy,
    )
