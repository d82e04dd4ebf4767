"""Errors that come after the first byte, when a status can no longer tell them."""

from gateway.errors import GatewayError
from gateway.http.event_stream import event
from gateway.http.refusals import ErrorBody, error_object


def failure_event(error: GatewayError, request_id: str) -> bytes:
    """An `error` event. No `[DONE]` follows: the output is not whole."""
    return event(ErrorBody(error=error_object(error, request_id, str)).model_dump_json().encode(), "error")
