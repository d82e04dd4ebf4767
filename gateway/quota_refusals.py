"""What a caller is told about limits that refuse: which ones, in words, and for how long."""

import math
from datetime import datetime

from gateway.errors import GatewayError, QuotaViolation
from gateway.errors_quota import BudgetExhaustedError, RateLimitedError, RequestExceedsLimitError
from gateway.quota_limits import unix_ns
from gateway.quota_terms import Charge, Denied, Violation, ViolationKind

NS_PER_S = 1_000_000_000
# When a running request ends is not known: what a client does about a full concurrency limit is to ask again soon.
CONCURRENCY_RETRY_S = 1.0
# A client that is told to wait for longer would rather be told that waiting does not help.
MAX_BUDGET_RETRY_S = 3600.0


def refusal(denied: Denied, charge: Charge, now: datetime, num_beams: int = 1) -> GatewayError:
    """The error that names every limit that refuses. A limit that no waiting cures stands alone.

    Of a beam search all is reserved that `num_beams` may use, whatever is of others: its caller is told how much.
    """
    too_large = [v for v in denied.violations if v.kind is ViolationKind.EXCEEDS_BURST]
    if too_large:
        return RequestExceedsLimitError(tuple(_described(violation, charge, num_beams) for violation in too_large))
    described = tuple(_described(violation, charge, num_beams) for violation in denied.violations)
    wait_s = max(wait_s_of(violation, now) for violation in denied.violations)
    if any(violation.kind is ViolationKind.BUDGET for violation in denied.violations):
        return BudgetExhaustedError(described, wait_s if wait_s < MAX_BUDGET_RETRY_S else None)
    return RateLimitedError(described, retry_after_s=wait_s)


def wait_s_of(violation: Violation, now: datetime) -> float:
    """How long until the limit would take the charge, if nobody else comes; infinite where it never will."""
    match violation.kind:
        case ViolationKind.RATE:
            assert violation.retry_after_ns is not None, "the wait for a rate is exact"
            return violation.retry_after_ns / NS_PER_S
        case ViolationKind.CONCURRENCY:
            return CONCURRENCY_RETRY_S
        case ViolationKind.BUDGET:
            assert violation.limit.window is not None, "a budget has a window"
            if violation.retry_after_ns is not None:
                return violation.retry_after_ns / NS_PER_S
            return max(0, violation.limit.window.end_ns - unix_ns(now)) / NS_PER_S
        case ViolationKind.EXCEEDS_BURST:
            return math.inf


def _described(violation: Violation, charge: Charge, num_beams: int) -> QuotaViolation:
    limit = violation.limit
    dimension = limit.dimension.value.lower()
    return QuotaViolation(subject=limit.node, dimension=dimension, description=_text(violation, charge, num_beams))


def _text(violation: Violation, charge: Charge, num_beams: int) -> str:
    limit = violation.limit
    unit = limit.dimension.value.lower().replace("_", " ")
    model = f" of {limit.model}" if limit.model else ""
    if limit.is_concurrency:
        return f"{limit.node} may run {limit.limit} requests{model} at a time"
    is_search = num_beams > 1 and limit.amount(Charge(0, output_tokens=1)) > 0
    whose = f"the request and its {num_beams} beams" if is_search else "the request"
    needed = f"{whose} may use {limit.amount(charge)} {'cost units' if limit.is_budget else unit}"
    if limit.window is not None:
        allowed = f"{limit.node} may spend {limit.limit} cost units{model} per {limit.window.calendar.lower()}"
    elif violation.kind is ViolationKind.EXCEEDS_BURST:
        allowed = f"{limit.node} may use {limit.burst}{model} at once"
    else:
        rate = f"{limit.limit} {unit}{model} per {limit.period_ns / NS_PER_S:g} s"
        allowed = f"{limit.node} may use {rate}, at most {limit.burst} at once"
    if violation.kind is ViolationKind.EXCEEDS_BURST:
        return f"{needed}, {allowed}"
    return f"{allowed}; {needed}" if is_search else allowed
