"""From a JSON Web Token to a Principal (RFC 7519, with the advice of RFC 8725).

The issuer is looked up first, exactly as it is spelled; only then are its keys looked at, and only with an algorithm
that the issuer may use and the key is for. Nothing of a token is believed before its signature holds, but for which
issuer and which key to ask.
"""

from datetime import UTC, datetime
from uuid import uuid5

import jwt

from gateway.auth.claims import TokenIdentity, identity_of
from gateway.auth.freshness import Freshness
from gateway.auth.grants import bound_grants, require_active, require_active_organization
from gateway.auth.jwks import ALGORITHMS, KeySets
from gateway.auth.principal import Principal
from gateway.auth.remembered import RememberedToken
from gateway.auth.roles import Grant
from gateway.errors_auth import CredentialInvalidError, NoTenantError, TokenExpiredError
from gateway.store.enums import Role
from gateway.store.identity_snapshot import IssuerRecord
from gateway.store.records import ResourcePath
from gateway.store.snapshot import OrganizationRecord, TeamRecord, TenancySnapshot

MAX_TOKEN_BYTES = 8192
LEEWAY_S = 30
REQUIRED_CLAIMS = ["exp", "iat", "iss", "aud", "sub"]
TYPES = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})  # RFC 9068, §2.1
MAX_KEY_ID_CHARS = 256
TIME_CLAIMS = frozenset({"exp", "iat", "nbf"})
MAX_TIME_S = 253_402_300_799  # the last second of the year 9999


class TokenVerifier:
    """Decides on tokens."""

    def __init__(self, freshness: Freshness, key_sets: KeySets) -> None:
        self._freshness = freshness
        self._key_sets = key_sets
        self._directory = TenantDirectory()
        self._keeps_for: object = None

    async def verify(self, token: str) -> tuple[Principal, bool]:
        """The token's subject, and whether the database had to be asked.

        Raises CredentialInvalidError, TokenExpiredError, AuthStoreUnavailableError, IssuerUnavailableError,
        TenantSuspendedError, NoTenantError.
        """
        issuer, claims, was_read = await self._proved(token)
        return self._principal(issuer, identity_of(claims, issuer.claim_map)), was_read

    async def remember(self, token: str) -> RememberedToken:
        """What `resume` takes in place of the token. Raises what `verify` raises."""
        issuer, claims, _ = await self._proved(token)
        identity = identity_of(claims, issuer.claim_map)
        self._principal(issuer, identity)
        expires_s = claims["exp"]
        assert isinstance(expires_s, int | float), "it was compared with the clock"
        return RememberedToken(
            issuer=issuer.issuer,
            issuer_id=issuer.id,
            issuer_revision=issuer.revision,
            identity=identity,
            expires_at=datetime.fromtimestamp(expires_s, UTC),
        )

    async def resume(self, remembered: RememberedToken) -> tuple[Principal, bool]:
        """As `verify`, of a token that was proved before. Raises the same: CredentialInvalidError where its issuer was
        edited or deleted since."""
        issuer, was_read = await self._find_issuer(remembered.issuer)
        if (issuer.id, issuer.revision) != (remembered.issuer_id, remembered.issuer_revision):
            raise CredentialInvalidError
        if remembered.expires_at <= datetime.now(UTC):
            raise TokenExpiredError
        return self._principal(issuer, remembered.identity), was_read

    async def _proved(self, token: str) -> tuple[IssuerRecord, dict[str, object], bool]:
        algorithm, key_id, named_issuer = read_unverified(token)
        issuer, was_read = await self._find_issuer(named_issuer)
        while True:
            if algorithm not in issuer.algorithms:
                raise CredentialInvalidError
            self._forget_other_keys()
            public_key = await self._key_sets.find(issuer.jwks_uri, key_id, algorithm)
            # Meanwhile an administrator may have edited or deleted it.
            used, (issuer, was_read_again) = issuer, await self._find_issuer(named_issuer)
            was_read = was_read or was_read_again
            if (issuer.id, issuer.revision) == (used.id, used.revision):
                break
        return issuer, _verified(token, public_key, algorithm, issuer), was_read

    async def _find_issuer(self, name: str) -> tuple[IssuerRecord, bool]:
        return await self._freshness.find(f"iss {name}", lambda snapshot: snapshot.identity.issuers.get(name))

    def _forget_other_keys(self) -> None:
        """Only the keys of issuers that exist are kept."""
        issuers = self._freshness.snapshot.identity.issuers
        if issuers is not self._keeps_for:  # a snapshot without changes to them has the same mapping
            self._keeps_for = issuers
            self._key_sets.keep({record.jwks_uri for record in issuers.values()})

    def _principal(self, issuer: IssuerRecord, identity: TokenIdentity) -> Principal:
        snapshot = self._freshness.snapshot
        organization, team = self._directory.find(identity, snapshot)
        if organization is not None and issuer.organization_id not in (None, organization.id):
            raise CredentialInvalidError
        if team is not None:
            require_active(team)
        elif organization is not None:
            require_active_organization(organization)
        self._freshness.require_fresh(team, organization.policy if organization else None)
        name = f"jwtIssuers/{issuer.slug}/subjects/{identity.subject}"
        return Principal(
            name=name,
            key_id=uuid5(issuer.id, identity.subject),
            public_id="",
            organization_id=organization.id if organization else None,
            team_id=team.id if team else None,
            organization=identity.organization,
            team=identity.team,
            scopes=identity.scopes,
            model_grants=frozenset(),
            grants=(*_claimed(identity), *_bound(name, issuer, snapshot)),
        )


class TenantDirectory:
    """Organizations and teams by name. Made anew when the snapshot has other ones."""

    def __init__(self) -> None:
        self._of: tuple[object, object] = (None, None)
        self._organizations: dict[str, OrganizationRecord] = {}
        self._teams: dict[tuple[str, str], TeamRecord] = {}

    def find(
        self, identity: TokenIdentity, snapshot: TenancySnapshot
    ) -> tuple[OrganizationRecord | None, TeamRecord | None]:
        """What the token names. Raises NoTenantError if that does not exist."""
        if identity.organization is None:
            return None, None
        if self._of[0] is not snapshot.organizations or self._of[1] is not snapshot.teams:
            self._of = (snapshot.organizations, snapshot.teams)
            # Ids grow with time, so that a name that is used again is the newer one's.
            self._organizations = {record.slug: record for _, record in sorted(snapshot.organizations.items())}
            self._teams = {
                (record.organization.slug, record.slug): record for _, record in sorted(snapshot.teams.items())
            }
        organization = self._organizations.get(identity.organization)
        team = None if identity.team is None else self._teams.get((identity.organization, identity.team))
        if organization is None or (team is None and identity.team is not None):
            raise NoTenantError
        return organization, team


def read_unverified(token: str) -> tuple[str, str | None, str]:
    """Algorithm, key id and issuer that the token names: where to look, and nothing to believe.

    Raises CredentialInvalidError for what is too long, no token, of another type, or asks for what is not understood.
    """
    if len(token) > MAX_TOKEN_BYTES:
        raise CredentialInvalidError
    try:
        header = jwt.get_unverified_header(token)
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise CredentialInvalidError from None
    algorithm, key_id, issuer = header.get("alg"), header.get("kid"), claims.get("iss")
    if "crit" in header or str(header.get("typ", "JWT")).lower() not in TYPES:
        raise CredentialInvalidError
    if not isinstance(issuer, str) or algorithm not in ALGORITHMS:
        raise CredentialInvalidError
    if not all(_is_time(claims[name]) for name in TIME_CLAIMS & claims.keys()):
        raise CredentialInvalidError
    if key_id is not None and (not isinstance(key_id, str) or len(key_id) > MAX_KEY_ID_CHARS):
        raise CredentialInvalidError
    return str(algorithm), key_id, issuer


def _is_time(value: object) -> bool:
    """Whether it is a NumericDate (RFC 7519, §2): a number, which true and a text of digits are not, nor NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -MAX_TIME_S <= value <= MAX_TIME_S


def _verified(token: str, public_key: object, algorithm: str, issuer: IssuerRecord) -> dict[str, object]:
    try:
        return jwt.decode(
            token,
            key=public_key,  # type: ignore[arg-type] # one of the types that PyJWT names, bound to the algorithm
            algorithms=[algorithm],
            audience=issuer.audiences,
            issuer=issuer.issuer,
            leeway=LEEWAY_S,
            options={"require": REQUIRED_CLAIMS},
        )
    except jwt.ExpiredSignatureError:
        raise TokenExpiredError from None
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
        raise CredentialInvalidError from None


def _claimed(identity: TokenIdentity) -> tuple[Grant, ...]:
    organization, team = ResourcePath(identity.organization), ResourcePath(identity.organization, identity.team)
    if identity.organization is None:
        return ()
    return tuple(
        Grant(role, organization if role is Role.ORG_ADMIN else team)
        for role in sorted(identity.roles)
        if role is Role.ORG_ADMIN or identity.team is not None
    )


def _bound(name: str, issuer: IssuerRecord, snapshot: TenancySnapshot) -> tuple[Grant, ...]:
    """The subject's bindings; those of an issuer for one organization hold there and nowhere else."""
    grants = bound_grants(name, snapshot)
    if issuer.organization_id is None:
        return grants
    own = snapshot.organizations.get(issuer.organization_id)
    return tuple(grant for grant in grants if own is not None and grant.path.organization == own.slug)


def looks_like_token(text: str) -> bool:
    """Whether `text` has the three parts of a signed token (RFC 7515, §3.1)."""
    return text.count(".") == 2 and not text.startswith("ef_")
