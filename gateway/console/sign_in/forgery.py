"""That a form was sent from a page of ours, by the visitor it was made for (OWASP: cross-site request forgery).

Three things have to hold: the browser says that the request comes from this origin, the cookie came along (which
browsers do not send from other sites), and the form has the token that is bound to that cookie.
"""

import hashlib
import hmac
from urllib.parse import urlsplit

from starlette.requests import Request

from gateway.console.sign_in.signing import DerivedKeys
from gateway.errors_auth import PermissionDeniedError
from gateway.pepper import PepperSource

FIELD = "csrf"


class ForgedRequestError(PermissionDeniedError):
    """A form that was not sent from a page of this console, or from one of an earlier session."""

    reason = "REQUEST_FORGED"

    def __init__(self) -> None:
        super().__init__(
            "this form was not sent from a page of this console, or your session began anew since: load the page again"
        )


class FormTokens:
    """Tokens of forms, each bound to a session's id, or to the id that a visitor has before."""

    def __init__(self, peppers: PepperSource) -> None:
        self._peppers = peppers
        self._keys = DerivedKeys(peppers, "forms")

    def issue(self, bound_to: str) -> str:
        return self._token(self._peppers.current.version, bound_to)

    def require(self, request: Request, bound_to: str, sent: str) -> None:
        """Raises ForgedRequestError."""
        require_own_origin(request)
        versions = self._peppers.current.by_version
        known = (self._token(version, bound_to).encode() for version in versions)
        if not bound_to or not any(hmac.compare_digest(token, sent.encode()) for token in known):
            raise ForgedRequestError

    def _token(self, version: int, bound_to: str) -> str:
        return hmac.new(self._keys.of(version), bound_to.encode(), hashlib.sha256).hexdigest()


def require_own_origin(request: Request) -> None:
    """The browser says that a page of this origin sends this. Raises ForgedRequestError, also where it says nothing."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    host = request.headers.get("host", "").lower()
    if site is not None and site != "same-origin":
        raise ForgedRequestError
    # The scheme may be another one in front of a proxy that ends TLS.
    if origin is not None and _netloc(origin) != host:
        raise ForgedRequestError
    if not host or (site is None and origin is None):
        raise ForgedRequestError


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
