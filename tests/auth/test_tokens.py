"""Tokens, verified against issuers and tenants that are written down here: what is accepted, and what is not."""

import base64
import gc
import hmac
import json
import time
import tracemalloc
from collections import abc
from dataclasses import replace
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.auth import Principal
from gateway.auth.freshness import Freshness
from gateway.auth.jwks import KeySetError, KeySets
from gateway.auth.tokens import MAX_TOKEN_BYTES, TokenVerifier
from gateway.errors_auth import (
    CredentialInvalidError,
    IssuerUnavailableError,
    NoTenantError,
    TenantSuspendedError,
    TokenExpiredError,
)
from gateway.store.enums import Role, State
from gateway.store.identity_snapshot import BindingRecord, IdentitySnapshot, IssuerRecord
from gateway.store.records import ResourcePath
from tests.auth.issuer import AUDIENCE, EC_KEY, ED_KEY, ISSUER, OTHER_RSA_KEY, RSA_KEY, PublishedKeys, claims, token
from tests.auth.tenants import ACME, GLOBEX, FixedCache, snapshot_of

URI = "https://login.example.test/keys"
LOGIN = IssuerRecord(
    id=UUID(int=9),
    slug="login",
    issuer=ISSUER,
    organization_id=None,
    audiences=(AUDIENCE, "another"),
    jwks_uri=URI,
    algorithms=frozenset({"RS256", "PS256", "ES256", "EdDSA"}),
    claim_map={"team": "team", "roles": "groups", "scopes": "scope"},
    revision=1,
)
GOOD = {"groups": ["member", "office-party"], "scope": "inference openid"}
SUBJECT = "jwtIssuers/login/subjects/alice"


class Door:
    """A verifier, what it knows, and what its issuers answer."""

    def __init__(
        self, *issuers: IssuerRecord, bindings: tuple[BindingRecord, ...] = (), suspended: bool = False
    ) -> None:
        self.published = PublishedKeys()
        identity = IdentitySnapshot(
            {issuer.issuer: issuer for issuer in issuers or (LOGIN,)},
            {binding.principal: tuple(b for b in bindings if b.principal == binding.principal) for binding in bindings},
        )
        state = State.SUSPENDED if suspended else State.ACTIVE
        self.cache = FixedCache(replace(snapshot_of(ACME, GLOBEX, state=state), identity=identity))
        self._verifier = TokenVerifier(Freshness(self.cache), KeySets(self.published))

    async def enter(self, text: str) -> Principal:
        return (await self._verifier.verify(text))[0]

    async def claiming(self, **changes: object) -> Principal:
        """Whoever comes with a good token that has these claims."""
        return await self.enter(token(good(**changes)))


def good(**changes: object) -> dict[str, object]:
    return claims(**(GOOD | changes))


@pytest.fixture
def door() -> Door:
    return Door()


@pytest.mark.parametrize(
    ("key", "algorithm", "key_id"),
    [(RSA_KEY, "RS256", "one"), (RSA_KEY, "PS256", "one"), (EC_KEY, "ES256", "two"), (ED_KEY, "EdDSA", "three")],
)
async def test_a_token_of_each_algorithm_is_accepted(door: Door, key, algorithm: str, key_id: str) -> None:
    assert (await door.enter(token(good(), key=key, algorithm=algorithm, kid=key_id))).name == SUBJECT


@pytest.mark.parametrize("headers", [{"typ": "at+jwt"}, {"typ": "application/AT+JWT"}, {"typ": None}, {"kid": None}])
async def test_types_of_access_tokens_and_tokens_without_a_key_id_are_accepted(door: Door, headers: dict) -> None:
    assert await door.enter(token(good(), **headers))


async def test_several_audiences_and_a_clock_that_is_a_little_off_are_accepted(door: Door) -> None:
    now = int(time.time())
    assert await door.claiming(aud=["other", AUDIENCE])
    assert await door.claiming(exp=now - 20)
    assert await door.claiming(iat=now + 20, nbf=now + 20)


def unsigned(payload: dict[str, object], **header: object) -> str:
    parts = ({"alg": "none", "typ": "JWT", **header}, payload)
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, ""])


def signed_with_public_key() -> str:
    """The oldest trick: the public key, which everybody has, as the secret of a symmetric algorithm."""
    text = unsigned(good(), alg="HS256", kid="one").rstrip(".")
    secret = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signature = hmac.digest(secret, text.encode(), "sha256")
    return f"{text}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def changed_after_signing() -> str:
    head, _, signature = token(good()).split(".")
    body = base64.urlsafe_b64encode(json.dumps(good(team="globex/search")).encode()).decode().rstrip("=")
    return ".".join((head, body, signature))


NOW = int(time.time())
BAD_TOKENS: dict[str, abc.Callable[[], str]] = {
    "unsigned": lambda: unsigned(good()),
    "claims to be RS256, unsigned": lambda: unsigned(good(), alg="RS256"),
    "symmetric": signed_with_public_key,
    "changed": changed_after_signing,
    "another's key": lambda: token(good(), key=OTHER_RSA_KEY),
    "a key id that is not there": lambda: token(good(), kid="nine"),
    "a key id that is a number": lambda: unsigned(good(), alg="RS256", kid=1),
    "an algorithm that the key is not for": lambda: token(good(), kid="two"),
    "an algorithm that the issuer may not use": lambda: token(good(), algorithm="RS512"),
    "critical extensions": lambda: token(good(), crit=["b64"], b64=True),
    "another type": lambda: token(good(), typ="dpop+jwt"),
    "an unknown issuer": lambda: token(good(iss="https://login.example.test")),
    "an issuer in capitals": lambda: token(good(iss=ISSUER.upper())),
    "an issuer that is a list": lambda: token(good(iss=[ISSUER])),
    "another audience": lambda: token(good(aud="somebody")),
    "no audience": lambda: token(good(aud=None)),
    "no expiry": lambda: token(good(exp=None)),
    "no time of issue": lambda: token(good(iat=None)),
    "no subject": lambda: token(good(sub=None)),
    "no issuer": lambda: token(good(iss=None)),
    "an empty subject": lambda: token(good(sub="")),
    "a subject of two lines": lambda: token(good(sub="a\nb")),
    "a subject without an end": lambda: token(good(sub="a" * 300)),
    "issued tomorrow": lambda: token(good(iat=NOW + 86_400)),
    "not valid before tomorrow": lambda: token(good(nbf=NOW + 86_400)),
    "an expiry that is no number": lambda: token(good(exp="tomorrow")),
    "an expiry that is true": lambda: token(good(exp=True)),
    "an expiry in digits": lambda: token(good(exp=str(NOW + 60))),
    "an expiry after the end of time": lambda: token(good(exp=10**400)),
    "an infinite expiry": lambda: token(good(exp=float("inf"))),
    "a time of issue that is true": lambda: token(good(iat=True)),
    "a beginning that is false": lambda: token(good(nbf=False)),
    "an expiry that is not a number": lambda: token(good(exp=float("nan"))),
    "a team that cannot be": lambda: token(good(team="acme")),
    "a team that is a list": lambda: token(good(team=["acme/search"])),
    "too long": lambda: token(good(padding="x" * MAX_TOKEN_BYTES)),
    "three dots": lambda: "a.b.c.d",
    "no JSON": lambda: "e30.e30.e30",
    "nothing between the dots": lambda: "..",
}


@pytest.mark.parametrize("name", BAD_TOKENS)
async def test_every_bad_token_gets_the_answer_of_every_other(door: Door, name: str) -> None:
    with pytest.raises(CredentialInvalidError):
        await door.enter(BAD_TOKENS[name]())


async def test_a_token_that_has_expired_says_so_to_its_owner_only(door: Door) -> None:
    late = good(exp=int(time.time()) - 60)

    with pytest.raises(TokenExpiredError):
        await door.enter(token(late))
    with pytest.raises(CredentialInvalidError):
        await door.enter(token(late, key=OTHER_RSA_KEY))


async def test_an_issuer_that_does_not_answer_makes_no_token_wrong(door: Door) -> None:
    door.published.failure = KeySetError("away")

    with pytest.raises(IssuerUnavailableError):
        await door.claiming()


async def test_invented_issuers_cost_the_database_a_few_readings_and_a_bounded_memory(door: Door) -> None:
    for index in range(3):
        for _ in range(20):
            with pytest.raises(CredentialInvalidError):
                await door.claiming(iss=f"https://{index}.example.test")

    assert door.cache.num_refreshes == 3


async def test_an_issuers_keys_are_asked_for_after_the_issuer_was_found(door: Door) -> None:
    with pytest.raises(CredentialInvalidError):
        await door.claiming(iss="https://stranger.example.test")

    assert door.published.num_calls == 0


async def test_roles_come_from_the_claim_and_those_over_the_platform_never_do(door: Door) -> None:
    for groups in ([], ["office-party"], ["platform_admin", "PLATFORM_VIEWER"], None, 7):
        assert (await door.claiming(groups=groups)).grants == (), groups

    caller = await door.claiming(groups="service team-admin ORG_ADMIN")
    assert {(grant.role, grant.path.name) for grant in caller.grants} == {
        (Role.SERVICE, "organizations/acme/teams/search"),
        (Role.TEAM_ADMIN, "organizations/acme/teams/search"),
        (Role.ORG_ADMIN, "organizations/acme"),
    }


async def test_scopes_that_are_mapped_are_all_that_the_token_has(door: Door) -> None:
    assert (await door.claiming(scope="inference openid")).scopes == {"inference"}
    assert (await door.claiming(scope=["admin.*", "quota.read"])).scopes == {"admin", "quota.read"}
    assert (await door.claiming(scope=None)).scopes == frozenset()


async def test_without_a_map_of_roles_a_teams_subject_is_its_member() -> None:
    caller = await Door(replace(LOGIN, claim_map={"team": "team"})).claiming(groups=["org_admin"])

    assert [grant.role for grant in caller.grants] == [Role.MEMBER]


async def test_a_claim_inside_an_object_is_reached_by_its_path() -> None:
    door = Door(replace(LOGIN, claim_map={"team": "https://evenflow.test/team", "roles": "realm_access.roles"}))
    nested = {"https://evenflow.test/team": "acme/search", "realm_access": {"roles": ["team-admin", "member"]}}

    caller = await door.enter(token(claims(team=None, **nested)))

    assert {grant.role for grant in caller.grants} == {Role.TEAM_ADMIN, Role.MEMBER}


async def test_an_organizations_administrator_needs_no_team() -> None:
    door = Door(replace(LOGIN, claim_map={"organization": "org", "roles": "groups"}))

    caller = await door.claiming(org="organizations/acme", groups="org_admin member")

    assert [(grant.role, grant.path) for grant in caller.grants] == [(Role.ORG_ADMIN, ResourcePath("acme"))]
    assert (caller.organization_id, caller.team_id) == (ACME.organization.id, None)


async def test_a_suspended_tenants_tokens_are_refused() -> None:
    with pytest.raises(TenantSuspendedError):
        await Door(suspended=True).claiming()


@pytest.mark.parametrize("team", ["acme/nowhere", "nobody/search"])
async def test_a_token_for_a_team_that_is_not_there_has_no_tenant(door: Door, team: str) -> None:
    with pytest.raises(NoTenantError):
        await door.claiming(team=team)


async def test_an_issuer_for_one_organization_speaks_for_no_other() -> None:
    here = BindingRecord(UUID(int=1), SUBJECT, Role.ORG_ADMIN, ResourcePath("acme"), ACME.organization.id, None)
    there = BindingRecord(UUID(int=2), SUBJECT, Role.ORG_ADMIN, ResourcePath("globex"), GLOBEX.organization.id, None)
    above = BindingRecord(UUID(int=3), SUBJECT, Role.PLATFORM_ADMIN, ResourcePath(None), None, None)
    bindings = (here, there, above)
    bound = Door(replace(LOGIN, organization_id=ACME.organization.id), bindings=bindings)
    free = Door(LOGIN, bindings=bindings)

    with pytest.raises(CredentialInvalidError):
        await bound.claiming(team="globex/search")
    assert {grant.path.organization for grant in (await bound.claiming()).grants} == {"acme"}
    assert {grant.path.organization for grant in (await free.claiming()).grants} == {"acme", "globex", None}


async def test_a_role_in_an_organization_that_is_suspended_is_none() -> None:
    binding = BindingRecord(UUID(int=1), SUBJECT, Role.ORG_ADMIN, ResourcePath("acme"), ACME.organization.id, None)
    door = Door(replace(LOGIN, claim_map={}), bindings=(binding,), suspended=True)

    assert (await door.claiming()).grants == ()


async def test_subjects_are_told_apart_by_issuer_and_keep_their_id() -> None:
    other = replace(LOGIN, id=UUID(int=10), slug="other", issuer="https://other.example.test")
    door = Door(LOGIN, other)
    alice, again = await door.claiming(), await door.claiming(exp=int(time.time()) + 30)
    bob, stranger = await door.claiming(sub="bob"), await door.claiming(iss=other.issuer)

    assert alice.key_id == again.key_id
    assert len({alice.key_id, bob.key_id, stranger.key_id}) == 3
    assert (alice.team_id, alice.organization, alice.team) == (ACME.id, "acme", "search")


@pytest.mark.parametrize("num_subjects", [500, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_many_subjects_leave_nothing_behind(door: Door, num_subjects: int) -> None:
    async def come(first: int, last: int) -> None:
        for index in range(first, last):
            text = token(good(sub=f"user-{index}", groups="member"), key=ED_KEY, algorithm="EdDSA", kid="three")
            await door.enter(text)

    await come(0, 200)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    await come(200, 200 + num_subjects)
    gc.collect()
    growth = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()

    assert growth < 50_000
