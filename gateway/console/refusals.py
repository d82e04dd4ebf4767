"""Refusals as pages: a status, what went wrong in a sentence, and what can be done next."""

from dataclasses import dataclass

import grpc

from gateway.errors import GatewayError, http_status

TITLE_BY_STATUS = {
    400: "This request cannot be understood",
    401: "You are not signed in",
    403: "You may not do this",
    404: "There is no such page",
    405: "This page is asked for in another way",
    409: "This does not fit what is there now",
    429: "Too many requests",
    500: "Something went wrong here",
    503: "This cannot be told now",
    504: "This took too long",
}
ADVICE_BY_REASON = {
    "ETAG_MISMATCH": "Somebody changed it since you loaded the page. Go back, load it again, and repeat your change.",
    "STORE_UNAVAILABLE": "Requests of tenants are served all the same. Load this page again in a moment.",
    "STORE_TIMEOUT": "The database is busy. Load this page again in a moment.",
    "AUTH_STORE_UNAVAILABLE": "The database does not answer, so that nobody's rights can be checked.",
    "REQUEST_FORGED": "Go back, load the page again, and repeat what you did.",
    "RESOURCE_NOT_FOUND": "It was purged, or never existed, or you may not know of it.",
    "INTERNAL": "The gateway's log has the details, under the request's id.",
}


class WrongMethodError(GatewayError):
    """The page exists and is asked for in another way."""

    code = grpc.StatusCode.UNIMPLEMENTED
    reason = "METHOD_NOT_ALLOWED"

    def __init__(self) -> None:
        super().__init__("a browser does not ask for this page like that")


@dataclass(frozen=True, slots=True)
class Trouble:
    """What an error page says."""

    status: int
    title: str
    message: str
    advice: str
    reason: str
    request_id: str

    @classmethod
    def of(cls, error: GatewayError, request_id: str) -> "Trouble":
        status = http_status(error)
        return cls(
            status=status,
            title=TITLE_BY_STATUS[status],
            message=error.message,
            advice=ADVICE_BY_REASON.get(error.reason, ""),
            reason=error.reason,
            request_id=request_id,
        )
