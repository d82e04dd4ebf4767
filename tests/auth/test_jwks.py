"""The keys of issuers: which are taken, how often they are read, and what happens when they cannot be."""

import asyncio
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from gateway.auth import jwks
from gateway.auth.jwks import KeySetError, KeySets, fetch_key_set, parse_key_set, uri_problem
from gateway.errors_auth import CredentialInvalidError, IssuerUnavailableError
from tests.auth.issuer import EC_KEY, ED_KEY, OTHER_RSA_KEY, RSA_KEY, WEAK_RSA_KEY, PublishedKeys, jwk, key_set
from tests.silent_server import silent_server

URI = "https://login.example.test/keys"
FAILURE = KeySetError("away")


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def published() -> PublishedKeys:
    return PublishedKeys()


@pytest.fixture
def sets(published: PublishedKeys, clock: Clock) -> KeySets:
    return KeySets(published, clock)


def test_each_key_verifies_what_its_type_allows_and_nothing_else() -> None:
    rsa, ec, ed = parse_key_set(key_set(jwk(RSA_KEY), jwk(EC_KEY), jwk(ED_KEY)))

    assert rsa.algorithms == {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
    assert (ec.algorithms, ed.algorithms) == ({"ES256"}, {"EdDSA"})


def test_a_key_that_names_its_algorithm_is_for_that_one_only() -> None:
    (key,) = parse_key_set(key_set(jwk(RSA_KEY, alg="PS256")))

    assert key.algorithms == {"PS256"}


@pytest.mark.parametrize(
    "entry",
    [
        {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0", "kid": "one", "alg": "HS256"},
        jwk(RSA_KEY, use="enc"),
        jwk(RSA_KEY, alg="HS256"),
        jwk(RSA_KEY, alg="ES256"),
        jwk(RSA_KEY, alg=["RS256"]),
        jwk(RSA_KEY, kid=7),
        jwk(RSA_KEY, key_ops=["sign"]),
        jwk(RSA_KEY, key_ops="verify"),
        jwk(RSA_KEY, d="AQAB"),
        jwk(WEAK_RSA_KEY),
        {**jwk(RSA_KEY), "n": "!"},
        {**jwk(RSA_KEY), "kty": "EC"},
        {},
        None,
        "key",
    ],
)
def test_keys_that_are_private_symmetric_weak_or_for_something_else_are_passed_over(entry: object) -> None:
    kept = parse_key_set(key_set(entry, jwk(EC_KEY, "two")))

    assert [key.key_id for key in kept] == ["two"]


@pytest.mark.parametrize(
    "document", [b"", b"{}", b"[]", b"null", b'{"keys": {}}', b'{"keys": []}', b"\xff", b"[" * 5000]
)
def test_what_is_no_set_of_keys_is_refused(document: bytes) -> None:
    with pytest.raises(KeySetError):
        parse_key_set(document)


async def test_a_key_is_found_by_its_id_and_algorithm(sets: KeySets) -> None:
    found = await sets.find(URI, "one", "RS256")

    assert isinstance(found, RSAPublicKey)
    assert found.public_numbers() == RSA_KEY.public_key().public_numbers()
    with pytest.raises(CredentialInvalidError):
        await sets.find(URI, "two", "RS256")  # a key on a curve


async def test_a_token_without_a_key_id_is_for_the_only_key_of_its_algorithm(
    sets: KeySets, published: PublishedKeys, clock: Clock
) -> None:
    assert await sets.find(URI, None, "RS256")

    published.document = key_set(jwk(RSA_KEY, "one"), jwk(OTHER_RSA_KEY, "four"))
    clock.now_s += jwks.REFETCH_INTERVAL_S
    with pytest.raises(CredentialInvalidError):
        await sets.find(URI, "nine", "RS256")
    with pytest.raises(CredentialInvalidError):
        await sets.find(URI, None, "RS256")


async def test_unknown_key_ids_cost_the_issuer_one_reading_in_thirty_seconds(
    sets: KeySets, published: PublishedKeys, clock: Clock
) -> None:
    await sets.find(URI, "one", "RS256")
    clock.now_s += jwks.REFETCH_INTERVAL_S
    results = await asyncio.gather(
        *(sets.find(URI, f"invented-{index}", "RS256") for index in range(200)), return_exceptions=True
    )

    assert {type(result) for result in results} == {CredentialInvalidError}
    assert published.num_calls == 2


async def test_a_key_that_was_added_is_found_when_it_is_asked_for(
    sets: KeySets, published: PublishedKeys, clock: Clock
) -> None:
    await sets.find(URI, "one", "RS256")
    published.document = key_set(jwk(OTHER_RSA_KEY, "four"))
    clock.now_s += jwks.REFETCH_INTERVAL_S

    assert await sets.find(URI, "four", "RS256")
    with pytest.raises(CredentialInvalidError):
        await sets.find(URI, "one", "RS256")  # and the one that was withdrawn is gone


async def test_the_last_good_set_serves_while_the_issuer_is_away(
    sets: KeySets, published: PublishedKeys, clock: Clock
) -> None:
    await sets.find(URI, "one", "RS256")
    published.failure = FAILURE
    clock.now_s += 10 * jwks.MAX_AGE_S

    assert await sets.find(URI, "one", "RS256")
    # What the set lacks may be new: that it is not there is not known.
    with pytest.raises(IssuerUnavailableError):
        await sets.find(URI, "four", "RS256")


async def test_an_issuer_that_was_never_read_makes_no_credential_wrong(
    sets: KeySets, published: PublishedKeys, clock: Clock
) -> None:
    published.failure = FAILURE
    for _ in range(50):
        with pytest.raises(IssuerUnavailableError):
            await sets.find(URI, "one", "RS256")
    assert published.num_calls == 1

    published.failure = None
    clock.now_s += jwks.REFETCH_INTERVAL_S
    assert await sets.find(URI, "one", "RS256")


async def test_an_old_set_is_read_again_without_anybody_waiting(
    sets: KeySets, published: PublishedKeys, clock: Clock
) -> None:
    await sets.find(URI, "one", "RS256")
    published.document = key_set(jwk(EC_KEY, "two"))
    clock.now_s += jwks.MAX_AGE_S + 1

    assert await sets.find(URI, "one", "RS256")  # the old set answers
    assert await asyncio.wait_for(until_read(sets, published), 5) == 2
    with pytest.raises(CredentialInvalidError):
        await sets.find(URI, "one", "RS256")


async def until_read(sets: KeySets, published: PublishedKeys) -> int:
    while sets._sets[URI].reading is not None:  # noqa: ASYNC110 - the task announces nothing
        await asyncio.sleep(0)
    return published.num_calls


async def test_a_caller_that_gives_up_ends_nobody_elses_reading(clock: Clock) -> None:
    may_answer = asyncio.Event()

    async def slow(uri: str) -> bytes:
        await may_answer.wait()
        return key_set(jwk(RSA_KEY))

    sets = KeySets(slow, clock)
    first, second = (asyncio.create_task(sets.find(URI, "one", "RS256")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    may_answer.set()

    assert await second


async def test_issuers_that_are_gone_are_forgotten(sets: KeySets) -> None:
    await sets.find(URI, "one", "RS256")
    sets.keep({"https://other.example.test/keys"})

    assert sets._sets == {}


@pytest.mark.parametrize(
    "uri",
    [
        "https://login.example.test/keys",
        "https://10.0.0.1:8443/k",
        "http://127.0.0.1:8080/k",
        "http://[::1]/k",
        "http://localhost/k",
    ],
)
def test_keys_are_read_over_https_or_on_this_machine(uri: str) -> None:
    assert uri_problem(uri) is None


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "keys",
        "https://",
        "http://login.example.test/keys",
        "http://127.0.0.1.example.test/",
        "http://localhost.example.test/",
        "file:///etc/passwd",
        "ftp://127.0.0.1/",
        "https://user:secret@login.example.test/",
        "https://login.example.test:0/",
        "https://login.example.test:99999/",
        "https://login.example.test/a b",
        "https://[::1",
        "https://login.example.test/\n",
    ],
)
def test_keys_are_read_from_nowhere_else(uri: str) -> None:
    assert uri_problem(uri) is not None


class Server:
    """An HTTP server that gives one answer."""

    def __init__(self, head: bytes, body: bytes) -> None:
        self._answer = head + b"\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body
        self.requests: list[bytes] = []

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._respond, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/keys"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self._answer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()


async def test_a_set_is_read_over_http() -> None:
    document = key_set(jwk(RSA_KEY))
    async with Server(b"HTTP/1.1 200 OK", document) as uri:
        assert await fetch_key_set(uri) == document


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 500 No", b"HTTP/1.1 302 Found\r\nlocation: file:///etc/passwd", b"nonsense"]
)
async def test_errors_and_redirects_are_no_set(head: bytes) -> None:
    async with Server(head, b"{}") as uri:
        with pytest.raises(KeySetError):
            await fetch_key_set(uri)


async def test_a_set_without_an_end_is_not_read_to_it() -> None:
    async with Server(b"HTTP/1.1 200 OK", b" " * (jwks.MAX_SET_BYTES + 1)) as uri:
        with pytest.raises(KeySetError, match="more than"):
            await fetch_key_set(uri)


async def test_a_server_that_is_not_there_and_one_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwks, "FETCH_TIMEOUT_S", 0.2)
    async with Server(b"", b"") as uri:
        pass
    with pytest.raises(KeySetError):
        await fetch_key_set(uri)
    async with silent_server() as port:
        with pytest.raises(KeySetError, match="no answer"):
            await fetch_key_set(f"http://127.0.0.1:{port}/")


def test_a_set_names_no_more_keys_than_somebody_would_have() -> None:
    document = json.dumps({"keys": [jwk(EC_KEY, str(index)) for index in range(jwks.MAX_KEYS + 10)]}).encode()

    assert len(parse_key_set(document)) == jwks.MAX_KEYS
