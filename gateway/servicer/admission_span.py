"""What the span of an admission says: what is held, and which limit is the nearest to its end, or refused."""

from opentelemetry import trace

from gateway import semconv
from gateway.admission_terms import Admitted
from gateway.errors import GatewayError
from gateway.quota_terms import Limit, Remaining

ADMITTED, BEST_EFFORT, DENIED = "admitted", "best_effort", "denied"


def note_admitted(span: trace.Span, admitted: Admitted) -> None:
    """The quota is held. The binding limit is the one of which the smallest part is left."""
    if not span.is_recording():
        return
    span.set_attributes(
        {
            semconv.ADMISSION_OUTCOME: BEST_EFFORT if admitted.is_best_effort else ADMITTED,
            semconv.RESERVED_TOKENS: admitted.reserved_tokens,
            semconv.NUM_LIMITS: len(admitted.limits_left),
            semconv.LEASE_MISS: admitted.reserved.is_lease_miss,
        }
    )
    if admitted.limits_left:
        limit, left = min(admitted.limits_left, key=_part_left)
        model = f" of {limit.model}" if limit.model else ""
        span.set_attribute(semconv.BINDING_LIMIT, f"{limit.node} {limit.dimension.value.lower()}{model}")
        span.set_attribute(semconv.BINDING_LIMIT_LEFT, left.amount)


def note_refused(span: trace.Span, error: GatewayError) -> None:
    """Nothing is held. Where limits refused, the first of them is the binding one."""
    if not span.is_recording():
        return
    span.set_attribute(semconv.ADMISSION_OUTCOME, DENIED)
    if error.quota_violations:
        violation = error.quota_violations[0]
        span.set_attribute(semconv.BINDING_LIMIT, f"{violation.subject} {violation.dimension}")
    if error.retry_after_s is not None:
        span.set_attribute(semconv.RETRY_AFTER_S, error.retry_after_s)


def _part_left(known: tuple[Limit, Remaining]) -> float:
    limit, left = known
    return left.amount / (limit.burst or limit.limit)
