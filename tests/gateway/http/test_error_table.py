"""Every refusal that this gateway can make has its place in OpenAI's words: status, type, code, whether to retry."""

import re
from pathlib import Path

import grpc
import pytest

from gateway import errors_auth, errors_quota, errors_requests  # noqa: F401
from gateway.errors import GatewayError, QuotaViolation, http_status
from gateway.http import refusals

# Reason, status, type; the code is the reason in small letters where it is not in CODES.
TABLE = """
ADDRESS_NOT_ALLOWED         403 permission_error
AUTH_STORE_UNAVAILABLE      503 server_error
BUDGET_EXHAUSTED            429 insufficient_quota
CONTEXT_LENGTH              400 invalid_request_error
CREDENTIAL_INVALID          401 invalid_request_error
DEADLINE_EXCEEDED           504 server_error
DEADLINE_UNATTAINABLE       429 rate_limit_error
DRAINING                    503 server_error
ENGINE_LOST                 503 server_error
ETAG_MISMATCH               409 invalid_request_error
EXCEEDS_KV_POOL             400 invalid_request_error
GENERATION_CANCELLED        409 invalid_request_error
GENERATION_ELSEWHERE        503 server_error
GENERATION_NOT_FOUND        404 invalid_request_error
INTERNAL                    500 server_error
INVALID_FIELD               400 invalid_request_error
KEY_EXPIRED                 401 invalid_request_error
KEY_HAS_NO_TENANT           403 permission_error
KEY_REVOKED                 401 invalid_request_error
LEDGER_UNAVAILABLE          503 server_error
METHOD_NOT_ALLOWED          405 invalid_request_error
METHOD_NOT_FOUND            404 invalid_request_error
MODEL_NOT_FOUND             404 invalid_request_error
NO_ENGINE                   503 server_error
OUTPUT_CANNOT_GO_ON         400 invalid_request_error
OUTPUT_NOT_KEPT             409 invalid_request_error
OVERLOADED                  503 server_error
PERMISSION_DENIED           403 permission_error
PRECONDITION_FAILED         409 invalid_request_error
PRIORITY_CLASS_NOT_GRANTED  403 permission_error
PROMPT_TOO_LARGE            413 invalid_request_error
QUEUE_TIMEOUT               429 rate_limit_error
RATE_LIMITED                429 requests
REPLAY_EXPIRED              409 invalid_request_error
REQUEST_EXCEEDS_LIMIT       400 invalid_request_error
REQUEST_ID_REUSED           409 invalid_request_error
REQUEST_TOO_SLOW            408 invalid_request_error
RESOURCE_EXISTS             409 invalid_request_error
RESOURCE_NOT_FOUND          404 invalid_request_error
ROLE_NOT_GRANTED            403 permission_error
SCOPE_NOT_GRANTED           403 permission_error
STORE_TIMEOUT               503 server_error
STORE_UNAVAILABLE           503 server_error
TENANT_SUSPENDED            403 permission_error
UNAVAILABLE                 503 server_error
UNKNOWN_PARAMETER           400 invalid_request_error
UNSUPPORTED_MEDIA_TYPE      415 invalid_request_error
UNSUPPORTED_PARAMETER       400 invalid_request_error
"""
CODES = {
    "BUDGET_EXHAUSTED": "insufficient_quota",
    "CONTEXT_LENGTH": "context_length_exceeded",
    "CREDENTIAL_INVALID": "invalid_api_key",
    "EXCEEDS_KV_POOL": "context_length_exceeded",
    "INVALID_FIELD": "invalid_value",
    "METHOD_NOT_FOUND": "unknown_url",
    "RATE_LIMITED": "rate_limit_exceeded",
}
ROWS = [line.split() for line in TABLE.strip().splitlines()]


def kinds(root: type[GatewayError] = GatewayError) -> list[type[GatewayError]]:
    """Every class of the tree that this door can meet: those of the console are its pages' own."""
    is_ours = root.__module__.startswith("gateway.") and not root.__module__.startswith("gateway.console")
    return [root] * is_ours + [kind for child in root.__subclasses__() for kind in kinds(child)]


def made(kind: type[GatewayError], retry_after_s: float | None) -> GatewayError:
    """One of the kind, whatever its own arguments are."""
    error = kind.__new__(kind)
    violation = QuotaViolation("organizations/acme", "requests", "no more")
    GatewayError.__init__(error, "no", retry_after_s=retry_after_s, quota_violations=(violation,))
    return error


def test_the_error_budget_counts_over_http_what_it_counts_over_grpc() -> None:
    rules = (Path(__file__).parents[3] / "deploy/prometheus/rules.yml").read_text()
    counted = set(re.findall('error_type=~"([^"]+)"', rules))
    ours = {kind.reason for kind in kinds() if kind.code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE)}

    assert len(counted) == 1
    assert {reason for reason, _, _ in ROWS if re.fullmatch(*counted, reason)} == ours


def test_every_refusal_is_in_the_table() -> None:
    assert {kind.reason for kind in kinds()} == {reason for reason, _, _ in ROWS}


@pytest.mark.parametrize(("reason", "status", "type_"), ROWS, ids=[row[0] for row in ROWS])
def test_a_refusal_is_worded_as_the_table_says(reason: str, status: str, type_: str) -> None:
    for kind in [kind for kind in kinds() if kind.reason == reason]:
        error = made(kind, None)
        told = refusals.error_object(error, "r", str)

        assert (http_status(error), told.type, told.code) == (
            int(status),
            type_,
            CODES.get(reason, reason.lower()),
        )
        # What OpenAI's clients would send again although waiting does not help.
        without_wait = dict(refusals.error_headers(error))
        assert ("x-should-retry" in without_wait) == (status in ("409", "429"))
        with_wait = dict(refusals.error_headers(made(kind, 1.2345)))
        assert (with_wait["retry-after"], with_wait["retry-after-ms"]) == ("2", "1235")
        assert "x-should-retry" not in with_wait
