"""What the engine says about its requests and their order, as wire messages. Pure."""

from collections import abc

from engine.core.queue_position import MAX_EXACT, Explanation, RequestInfo
from engine.core.types import Request
from engine.errors import InvalidFieldError
from engine.loop_messages import QueuedAt, RequestPage
from evenflow.engine.v1 import engine_pb2 as pb

MAX_PAGE_SIZE = 1000


def page_from_pb(request: pb.ListRequestsRequest) -> tuple[int, int]:
    """After which arrival, and how many. Raises InvalidFieldError."""
    if request.page_size < 0:
        raise InvalidFieldError("page_size", "must be at least 0")
    token = request.page_token
    if token and not (token.isascii() and token.isdigit() and len(token) < 20):
        raise InvalidFieldError("page_token", "is none of this engine's")
    return int(token) if token else -1, min(request.page_size or MAX_PAGE_SIZE, MAX_PAGE_SIZE)


def page_to_pb(page: RequestPage) -> pb.ListRequestsResponse:
    return pb.ListRequestsResponse(
        requests=[_info_to_pb(info) for info in page.requests],
        next_page_token="" if page.is_last else str(page.requests[-1].arrival_index),
    )


def explanation_to_pb(told: Explanation, queued: QueuedAt | None, policy: str) -> pb.ExplainRequestResponse:
    """`queued` is where the request waits, None if it does not."""
    return pb.ExplainRequestResponse(
        request=_info_to_pb(told.request),
        position=0 if queued is None else queued.position,
        position_is_lower_bound=queued is not None and queued.is_lower_bound,
        estimated_wait_ns=None if queued is None else queued.estimated_wait_ns,
        ahead=[_info_to_pb(info) for info in told.ahead[:MAX_EXACT]],
        attained_service=told.standing[-1] if told.standing else 0.0,
        standing=told.standing,
        blocked_by=told.blocked_by,
        scheduling_policy=policy,
        tenant_prefill_tokens=told.num_tenant_prefill_tokens,
        tenant_output_tokens=told.num_tenant_output_tokens,
    )


def selection_from_pb(request: pb.CancelRequestsRequest) -> abc.Callable[[Request, str], bool]:
    """Which requests are meant, by the request and its sender. Raises InvalidFieldError where that could be all."""
    ids, path, sender_id = frozenset(request.generation_ids), tuple(request.path), request.sender_id
    if not ids and not path and not sender_id:
        raise InvalidFieldError("generation_ids", "must not be empty where path and sender_id are")

    def is_meant(each: Request, sent_by: str) -> bool:
        is_tenants = not path or tuple(node.id for node in each.path) == path
        is_senders = not sender_id or sent_by == sender_id
        return is_tenants and is_senders and (not ids or each.generation_id in ids)

    return is_meant


def queued_to_pb(queued: QueuedAt) -> pb.QueuedAt:
    return pb.QueuedAt(
        position=queued.position,
        position_is_lower_bound=queued.is_lower_bound,
        estimated_wait_ns=queued.estimated_wait_ns,
    )


def _info_to_pb(info: RequestInfo) -> pb.RequestSummary:
    return pb.RequestSummary(
        generation_id=info.generation_id,
        path=[pb.WeightedNode(id=node.id, weight=node.weight) for node in info.path],
        priority_class=info.class_name,
        state=info.status.value,
        prompt_tokens=info.num_prompt_tokens,
        output_tokens=info.num_output_tokens,
        max_output_tokens=info.max_output_tokens,
        computed_tokens=info.num_computed_tokens,
        device_blocks=info.num_device_blocks,
        num_preemptions=info.num_preemptions,
        waited_ns=info.waited_ns,
        age_ns=info.age_ns,
    )
