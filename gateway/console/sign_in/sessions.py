"""Who is signed in: a signed cookie that says which key or token was proved.

There is no table of sessions, only of those that were ended before they expired (`session_ends`). Each request looks up
anew what the key or the token's subject may do, so that a session ends with its key. The cookie holds no secret; script
cannot read it, and other sites cannot make a browser send it.
"""

import secrets
from collections import abc
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from gateway.auth.claims import TokenIdentity
from gateway.auth.remembered import Remembered, RememberedKey, RememberedToken
from gateway.console.sign_in.signing import Claims, Signer
from gateway.pepper import PepperSource
from gateway.store.enums import KeyScope, Role

LIFETIME = timedelta(hours=8)
COOKIE = "evenflow_session"
ID_BYTES = 16
Clock = abc.Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class Session:
    """`id` is random: what forms of this session are bound to."""

    id: str
    remembered: Remembered
    expires_at: datetime


class Sessions:
    """Writes and reads the cookie."""

    def __init__(self, peppers: PepperSource) -> None:
        self._signer = Signer(peppers, "session")

    def begin(self, remembered: Remembered) -> Session:
        """It ends after LIFETIME, and not later than what was remembered."""
        longest = datetime.now(UTC).replace(microsecond=0) + LIFETIME
        ends = remembered.expires_at
        return Session(secrets.token_urlsafe(ID_BYTES), remembered, longest if ends is None else min(ends, longest))

    def read(self, request: Request) -> Session | None:
        """None where nobody is signed in."""
        claims = self._signer.read(request.cookies.get(cookie_name(request, COOKIE), ""))
        try:
            return None if claims is None else _session(claims)
        except (KeyError, TypeError, ValueError):  # signed by a release with other contents
            return None

    def set(self, response: Response, session: Session, request: Request) -> None:
        """The browser sends the session from now on."""
        set_cookie(response, request, COOKIE, self._signer.sign(_claims(session)))

    def end(self, response: Response, request: Request) -> None:
        """The browser does not have the session any more."""
        drop_cookie(response, request, COOKIE)


def is_encrypted(request: Request) -> bool:
    return bool(request.scope["scheme"] == "https")


def cookie_name(request: Request, name: str) -> str:
    """With TLS the prefix `__Host-`: no other host can have set it."""
    return f"__Host-{name}" if is_encrypted(request) else name


def set_cookie(response: Response, request: Request, name: str, value: str, max_age_s: int | None = None) -> None:
    """Until the browser is closed, unless `max_age_s` says how long."""
    response.set_cookie(
        cookie_name(request, name),
        value,
        max_age=max_age_s,
        path="/",  # as the prefix `__Host-` wants it
        secure=is_encrypted(request),
        httponly=True,
        samesite="strict",
    )


def drop_cookie(response: Response, request: Request, name: str) -> None:
    set_cookie(response, request, name, "", max_age_s=0)


def _claims(session: Session) -> Claims:
    claims: dict[str, object] = {"sid": session.id, "exp": int(session.expires_at.timestamp())}
    match session.remembered:
        case RememberedKey(public_id, secret_created_at, expires_at):
            ends = None if expires_at is None else expires_at.isoformat()
            return claims | {"key": [public_id, secret_created_at.isoformat(), ends]}
        case RememberedToken(issuer, issuer_id, issuer_revision, identity, expires_at):
            said = [identity.subject, identity.organization, identity.team]
            roles, scopes = sorted(identity.roles), sorted(identity.scopes)
            where = [issuer, str(issuer_id), issuer_revision, expires_at.isoformat()]
            return claims | {"token": [where, said, roles, scopes]}


def _session(claims: Claims) -> Session:
    """Raises KeyError, TypeError or ValueError for claims of another form."""
    expires_s = claims["exp"]
    if not isinstance(expires_s, int) or not isinstance(claims["sid"], str):
        raise TypeError
    remembered = _remembered_key(claims["key"]) if "key" in claims else _remembered_token(claims["token"])
    return Session(claims["sid"], remembered, datetime.fromtimestamp(expires_s, UTC))


def _remembered_key(claim: object) -> RememberedKey:
    public_id, secret_created_at, ends = _parts(claim)
    expires_at = None if ends is None else datetime.fromisoformat(str(ends))
    return RememberedKey(str(public_id), datetime.fromisoformat(str(secret_created_at)), expires_at)


def _remembered_token(claim: object) -> RememberedToken:
    where, said, roles, scopes = _parts(claim)
    issuer, issuer_id, issuer_revision, expires_at = _parts(where)
    subject, organization, team = _parts(said)
    identity = TokenIdentity(
        subject=str(subject),
        organization=None if organization is None else str(organization),
        team=None if team is None else str(team),
        roles=frozenset(Role(str(role)) for role in _parts(roles)),
        scopes=frozenset(KeyScope(str(scope)) for scope in _parts(scopes)),
    )
    revision = int(str(issuer_revision))
    return RememberedToken(
        str(issuer), UUID(str(issuer_id)), revision, identity, datetime.fromisoformat(str(expires_at))
    )


def _parts(claim: object) -> list[object]:
    if not isinstance(claim, list):
        raise TypeError
    return claim
