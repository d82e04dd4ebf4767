"""The cookie: what it says, who can have written it, and until when it is worth something."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import jwt
import pytest
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth.claims import TokenIdentity
from gateway.auth.remembered import Remembered, RememberedKey, RememberedToken
from gateway.console.sign_in.forgery import FormTokens
from gateway.console.sign_in.sessions import LIFETIME, Session, Sessions
from gateway.console.sign_in.signing import Signer
from gateway.pepper import Peppers, PepperSource
from gateway.store.enums import KeyScope, Role

NOW = datetime.now(UTC)
MADE = datetime(2026, 11, 30, 10, 49, 55, 123456, tzinfo=UTC)
KEY = RememberedKey("0123456789Ab", MADE, None)
IDENTITY = TokenIdentity(
    "älice",
    "acme",
    "search",
    frozenset({Role.MEMBER, Role.TEAM_ADMIN}),
    frozenset({KeyScope.ADMIN, KeyScope.INFERENCE}),
)
TOKEN = RememberedToken("https://login.example.test/", UUID(int=9), 4, IDENTITY, NOW + timedelta(hours=4))


def peppers(text: bytes = b"a pepper that is long enough") -> PepperSource:
    return PepperSource(Peppers.parse(text))


def request(cookies: str = "", scheme: str = "http") -> Request:
    headers = [(b"cookie", cookies.encode())] if cookies else []
    return Request({"type": "http", "scheme": scheme, "method": "GET", "path": "/", "headers": headers})


def cookie_of(sessions: Sessions, session: Session, scheme: str = "http") -> str:
    response = Response()
    sessions.set(response, session, request(scheme=scheme))
    return response.headers["set-cookie"]


@pytest.mark.parametrize("remembered", [KEY, TOKEN, RememberedKey("0123456789Ab", MADE, NOW + timedelta(days=1))])
def test_a_session_comes_back_as_it_was(remembered: Remembered) -> None:
    sessions = Sessions(peppers())
    session = sessions.begin(remembered)

    sent = cookie_of(sessions, session).partition(";")[0]

    back = Sessions(peppers()).read(request(sent))
    assert back is not None
    assert (back.id, back.remembered) == (session.id, remembered)
    assert back.expires_at == session.expires_at.replace(microsecond=0)


def test_a_session_is_no_longer_than_its_lifetime_its_key_or_its_token() -> None:
    sessions = Sessions(peppers())
    soon = NOW + timedelta(hours=1)

    assert sessions.begin(KEY).expires_at <= datetime.now(UTC) + LIFETIME
    assert sessions.begin(RememberedKey("0123456789Ab", MADE, soon)).expires_at == soon
    assert sessions.begin(RememberedKey("0123456789Ab", MADE, NOW + timedelta(days=9))).expires_at < NOW + 2 * LIFETIME
    assert sessions.begin(TOKEN).expires_at == TOKEN.expires_at


def test_what_has_expired_is_no_session() -> None:
    sessions = Sessions(peppers())
    past = Session("id", KEY, NOW - timedelta(seconds=2))

    assert sessions.read(request(cookie_of(sessions, past).partition(";")[0])) is None


def test_what_was_signed_by_another_pepper_for_another_purpose_or_by_nobody_is_no_session() -> None:
    sessions, later = Sessions(peppers()), NOW + timedelta(hours=1)
    claims = {"sid": "x", "exp": later, "key": ["0123456789Ab", MADE.isoformat(), None]}
    unsigned = jwt.encode({**claims, "aud": "session"}, "", "none", headers={"kid": "1"})
    forged = [
        "",
        "x.y.z",
        unsigned,
        jwt.encode({**claims, "aud": "session"}, "k" * 32, "HS256", headers={"kid": "1"}),
        jwt.encode({**claims, "aud": "session"}, "k" * 32, "HS256", headers={"kid": "é"}),
        Signer(peppers(), "notice").sign(claims),
        Signer(peppers(b"another one of the same length"), "session").sign(claims),
        Signer(peppers(), "session").sign({"sid": "x", "exp": later}),
        Signer(peppers(), "session").sign({"sid": "x", "exp": later, "key": ["a"]}),
        Signer(peppers(), "session").sign({"sid": "x", "exp": later, "token": [[1, 2, 3, 4], [1, 2, 3], ["x"], []]}),
    ]

    assert [sessions.read(request(f"evenflow_session={text}")) for text in forged] == [None] * len(forged)
    assert sessions.read(request(f"evenflow_session={Signer(peppers(), 'session').sign(claims)}")) is not None


def test_a_new_pepper_leaves_the_sessions_of_the_old_one() -> None:
    old, both = b"an old pepper, long enough", b"1:an-old-pepper-long-enough\n2:a-new-pepper-long-enough\n"
    sent = cookie_of(Sessions(peppers(b"an-old-pepper-long-enough")), Session("id", KEY, NOW + LIFETIME))

    assert Sessions(peppers(both)).read(request(sent.partition(";")[0])) is not None
    assert Sessions(peppers(old)).read(request(sent.partition(";")[0])) is None


def test_with_tls_the_cookie_is_secure_and_of_this_host_only() -> None:
    sessions = Sessions(peppers())
    session = sessions.begin(KEY)

    plain, encrypted = cookie_of(sessions, session), cookie_of(sessions, session, "https")

    assert encrypted.startswith("__Host-evenflow_session=")
    assert {"Secure", "HttpOnly", "SameSite=strict", "Path=/"} <= set(encrypted.split("; "))
    assert "Domain" not in encrypted
    assert "Secure" not in plain
    # One that another host or a plain connection has set is not looked at.
    assert sessions.read(request(plain.partition(";")[0], "https")) is None


def test_a_forms_token_is_of_one_session_and_one_pepper() -> None:
    token = FormTokens(peppers()).issue("one")

    assert token == FormTokens(peppers()).issue("one")
    assert token != FormTokens(peppers()).issue("two")
    assert token != FormTokens(peppers(b"another one of the same length")).issue("one")
