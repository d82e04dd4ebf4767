"""Errors that come after the first byte, when a status can no longer tell them."""

from gateway.http.event_stream import event
from gateway.http.refusals import ErrorBody, ErrorObject


def failure_event(error: ErrorObject) -> bytes:
    """An `error` event. No `[DONE]` follows: the output is not whole."""
    return event(ErrorBody(error=error).model_dump_json().encode(), "error")
