"""API keys, verified against a snapshot that is written down here: secrets, ends, networks, and an absent database."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network

import pytest

from gateway import api_key
from gateway.api_key import ParsedKey
from gateway.auth import freshness
from gateway.auth.address import is_inside
from gateway.auth.authenticator import Authenticator
from gateway.auth.freshness import Freshness, UnknownNames
from gateway.auth.keys import KeyVerifier
from gateway.auth.roles import Grant
from gateway.errors_auth import (
    AddressNotAllowedError,
    AuthStoreUnavailableError,
    CredentialInvalidError,
    KeyExpiredError,
    KeyRevokedError,
    TenantSuspendedError,
)
from gateway.pepper import Peppers, PepperSource
from gateway.store.enums import KeyScope, Role, State, StoreLossAction
from gateway.store.errors import DatabaseUnavailableError
from gateway.store.identity import PLATFORM
from gateway.store.identity_snapshot import BindingRecord, IdentitySnapshot
from gateway.store.records import KeySecret, ResourcePath
from gateway.store.snapshot import EMPTY_SNAPSHOT
from tests.auth.tenants import ACME, KEY_RECORD, FixedCache, snapshot_of
from tests.auth.test_pepper import BOTH, NEW, OLD

KEY = api_key.generate()
NOW = datetime.now(UTC)
LOCAL = "ipv4:127.0.0.1:5000"


class Notes:
    """Takes the place of what is written once a minute."""

    def __init__(self) -> None:
        self.used: list[object] = []
        self.renewed: list[tuple[bytes, KeySecret]] = []

    def note(self, key_id: object) -> None:
        self.used.append(key_id)

    def renew(self, key_id: object, old_digest: bytes, renewed: KeySecret) -> None:
        self.renewed.append((old_digest, renewed))


class Door:
    """A verifier and what it knows: the key KEY, changed by `fields`."""

    def __init__(self, peppers: bytes = OLD, *, state: State = State.ACTIVE, **fields: object) -> None:
        self.notes = Notes()
        self.cache = FixedCache(snapshot_of(ACME, state=state))
        (team,) = self.cache.current.teams.values()
        stored = (KeySecret(api_key.digest(OLD, KEY.secret), 1),)
        record = replace(KEY_RECORD, **({"public_id": KEY.public_id, "secrets": stored, "team": team} | fields))
        self.cache.current = replace(self.cache.current, keys={KEY.public_id: record})
        source = PepperSource(Peppers.parse(peppers))
        self._verifier = KeyVerifier(Freshness(self.cache), source, self.notes)

    async def enter(self, key: api_key.GeneratedKey = KEY, peer: str = LOCAL):
        return (await self._verifier.verify(ParsedKey(key.public_id, key.secret), peer))[0]


async def test_two_secrets_are_live_and_each_has_its_own_end() -> None:
    fresh = api_key.GeneratedKey(KEY.public_id, api_key.generate().secret, "")
    soon, past = NOW + timedelta(hours=1), NOW - timedelta(seconds=1)
    old, new = api_key.digest(OLD, KEY.secret), api_key.digest(OLD, fresh.secret)

    during = Door(secrets=(KeySecret(old, 1, soon), KeySecret(new, 1)))
    after = Door(secrets=(KeySecret(old, 1, past), KeySecret(new, 1)))

    assert (await during.enter()).key_id == (await during.enter(fresh)).key_id
    assert await after.enter(fresh)
    with pytest.raises(KeyExpiredError):
        await after.enter()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"revoked_at": NOW}, KeyRevokedError),
        ({"revoked_at": NOW, "expires_at": NOW - timedelta(days=1)}, KeyRevokedError),
        ({"expires_at": NOW - timedelta(seconds=1)}, KeyExpiredError),
        ({"ip_cidrs": (ip_network("10.0.0.0/8"),)}, AddressNotAllowedError),
        ({"state": State.SUSPENDED}, TenantSuspendedError),
    ],
)
async def test_why_a_key_is_refused_is_told_to_whoever_has_its_secret(fields: dict, error: type[Exception]) -> None:
    door = Door(**fields)

    with pytest.raises(error):
        await door.enter()
    with pytest.raises(CredentialInvalidError):
        await door.enter(api_key.GeneratedKey(KEY.public_id, api_key.generate().secret, ""))
    assert door.notes.used == []


@pytest.mark.parametrize(
    ("peer", "network", "inside"),
    [
        ("ipv4:10.1.2.3:4711", "10.0.0.0/8", True),
        ("ipv4:11.1.2.3:4711", "10.0.0.0/8", False),
        ("ipv6:[::ffff:10.1.2.3]:4711", "10.0.0.0/8", True),
        ("ipv4:10.1.2.3:4711", "::ffff:10.0.0.0/104", True),
        ("ipv4:11.1.2.3:4711", "::ffff:10.0.0.0/104", False),
        ("ipv6:%5B2001:db8::1%5D:4711", "2001:db8::/32", True),
        ("ipv6:%5B2001:db9::1%5D:4711", "2001:db8::/32", False),
        ("ipv4:10.1.2.3:4711", "::/0", False),
        ("unix:", "0.0.0.0/0", False),
        ("unix:/run/x", "::/0", False),
        ("ipv4:nonsense:1", "0.0.0.0/0", False),
        ("", "0.0.0.0/0", False),
    ],
)
def test_a_peer_is_in_a_network_by_the_address_it_really_has(peer: str, network: str, inside: bool) -> None:
    assert is_inside(peer, (ip_network(network),)) is inside


async def test_a_hash_of_an_older_pepper_works_and_is_renewed_with_the_newest() -> None:
    door = Door(BOTH)
    await door.enter()

    ((old_digest, renewed),) = door.notes.renewed
    assert old_digest == api_key.digest(OLD, KEY.secret)
    assert (renewed.digest, renewed.pepper_version) == (api_key.digest(NEW, KEY.secret), 2)


async def test_a_hash_of_the_newest_pepper_is_left_as_it_is() -> None:
    door = Door(BOTH, secrets=(KeySecret(api_key.digest(NEW, KEY.secret), 2),))
    await door.enter()

    assert door.notes.renewed == []


async def test_a_hash_of_a_pepper_that_is_not_here_makes_no_key_wrong() -> None:
    door = Door(OLD, secrets=(KeySecret(api_key.digest(NEW, KEY.secret), 2),))

    with pytest.raises(AuthStoreUnavailableError):
        await door.enter()


async def test_an_unknown_key_is_wrong_only_if_the_database_says_so() -> None:
    door, unknown = Door(), api_key.generate()

    async def away():
        raise DatabaseUnavailableError("away")

    answers = door.cache.refresh
    door.cache.refresh = away
    with pytest.raises(AuthStoreUnavailableError):
        await door.enter(unknown)
    door.cache.refresh = answers
    with pytest.raises(CredentialInvalidError):
        await door.enter(unknown)


@pytest.mark.parametrize(
    ("action", "staleness_s", "served"),
    [
        (StoreLossAction.SERVE_STALE, 200.0, True),
        (StoreLossAction.SERVE_STALE, 301.0, False),
        (StoreLossAction.FAIL_CLOSED, 4.0, True),
        (StoreLossAction.FAIL_CLOSED, 6.0, False),
    ],
)
async def test_how_long_a_key_works_without_the_database_is_its_tenants_choice(
    action: StoreLossAction, staleness_s: float, served: bool
) -> None:
    (team,) = snapshot_of(ACME).teams.values()
    door = Door(team=replace(team, policy=replace(team.policy, on_store_loss=action)))
    door.cache.staleness_s = lambda: staleness_s

    if served:
        assert await door.enter()
    else:
        with pytest.raises(AuthStoreUnavailableError):
            await door.enter()


def test_what_is_unknown_takes_a_bounded_memory() -> None:
    unknown = UnknownNames()
    for index in range(2 * freshness.MAX_UNKNOWN):
        unknown.add(f"{index}" * 100)

    assert len(unknown) == freshness.MAX_UNKNOWN
    assert unknown.is_recent(f"{2 * freshness.MAX_UNKNOWN - 1}" * 100)
    assert not unknown.is_recent("0" * 100)


def platform_key(*scopes: KeyScope) -> Door:
    return Door(team=None, scopes=frozenset(scopes))


async def test_a_teams_key_serves_its_team_and_a_platform_key_with_all_scopes_administrates() -> None:
    of_team = await Door().enter()
    of_platform = await platform_key(KeyScope.ADMIN).enter()
    of_reader = await platform_key(KeyScope.ADMIN_READ).enter()

    assert of_team.grants == (Grant(Role.SERVICE, ResourcePath("acme", "search")),)
    assert of_platform.grants == (Grant(Role.PLATFORM_ADMIN, PLATFORM),)
    assert of_reader.grants == of_platform.grants
    assert KeyScope.ADMIN not in of_reader.scopes  # which narrow what the role allows
    assert (of_team.name, of_platform.name) == (
        f"organizations/acme/teams/search/apiKeys/{KEY.public_id}",
        f"apiKeys/{KEY.public_id}",
    )


async def test_a_bound_role_is_added_to_what_the_key_may_do_by_itself() -> None:
    door = Door()
    bound = BindingRecord(
        ACME.id, f"apiKeys/{KEY.public_id}", Role.ORG_ADMIN, ResourcePath("acme"), ACME.organization.id, None
    )
    identity = IdentitySnapshot({}, {bound.principal: (bound,)})
    door.cache.current = replace(door.cache.current, identity=identity)

    assert {grant.role for grant in (await door.enter()).grants} == {Role.SERVICE, Role.ORG_ADMIN}


@pytest.mark.parametrize(
    "credentials",
    [
        [],
        [""],
        ["Bearer"],
        ["Bearer "],
        [KEY.text],
        [f"Basic {KEY.text}"],
        [f"Bearer {KEY.text}", f"Bearer {KEY.text}"],
        ["Bearer ef_live_a.b.c"],
        ["Bearer ..."],
        ["Bearer " + "." * 9000],
    ],
)
async def test_what_is_neither_a_key_nor_a_token_is_refused_without_a_look(credentials: list[str]) -> None:
    cache = FixedCache(EMPTY_SNAPSHOT)

    with pytest.raises(CredentialInvalidError):
        await Authenticator(cache, OLD, Notes()).authenticate(credentials, LOCAL)
    assert cache.num_refreshes == 0
