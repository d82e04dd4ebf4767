"""What the limits refuse. A part of the tree in `errors`.

GatewayError
├── RequestExceedsLimitError   INVALID_ARGUMENT     REQUEST_EXCEEDS_LIMIT + QuotaFailure, never retryable
├── RateLimitedError           RESOURCE_EXHAUSTED   RATE_LIMITED + QuotaFailure + RetryInfo
└── BudgetExhaustedError       RESOURCE_EXHAUSTED   BUDGET_EXHAUSTED + QuotaFailure, RetryInfo if the window ends soon
"""

import grpc

from gateway.errors import GatewayError, QuotaViolation


class RequestExceedsLimitError(GatewayError):
    """This one request is larger than a limit's burst: it would be refused on an idle tenant too."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "REQUEST_EXCEEDS_LIMIT"

    def __init__(self, violations: tuple[QuotaViolation, ...]) -> None:
        super().__init__("; ".join(v.description for v in violations), quota_violations=violations)


class RateLimitedError(GatewayError):
    """Limits are used up. `retry_after_s` is the longest of the violated limits'."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "RATE_LIMITED"

    def __init__(self, violations: tuple[QuotaViolation, ...], retry_after_s: float) -> None:
        text = "; ".join(v.description for v in violations)
        super().__init__(text, quota_violations=violations, retry_after_s=retry_after_s)


class BudgetExhaustedError(GatewayError):
    """The calendar window of a budget is spent. `retry_after_s` None: it ends too late for a retry to wait for."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "BUDGET_EXHAUSTED"

    def __init__(self, violations: tuple[QuotaViolation, ...], retry_after_s: float | None) -> None:
        text = "; ".join(violation.description for violation in violations)
        super().__init__(text, quota_violations=violations, retry_after_s=retry_after_s)
