"""What a token's claims say about its subject, by the claim map of its issuer. Knows no tenant and no signature.

A claim can make its subject a team's member, service or administrator, or an organization's administrator. Roles over
the whole platform are never taken from a token: they are bound.
"""

import re
from collections import abc
from dataclasses import dataclass

from gateway.errors_auth import CredentialInvalidError
from gateway.store.enums import KeyScope, Role

TEAM, ORGANIZATION, ROLES, SCOPES = "team", "organization", "roles", "scopes"
CLAIM_MAP_KEYS = frozenset({TEAM, ORGANIZATION, ROLES, SCOPES})
CLAIM_ROLES = {role.value: role for role in (Role.ORG_ADMIN, Role.TEAM_ADMIN, Role.MEMBER, Role.SERVICE)}
ALL_SCOPES = frozenset({KeyScope.INFERENCE, KeyScope.QUOTA_READ, KeyScope.ADMIN})
MAX_SUBJECT_CHARS = 255
_TEAM = re.compile(r"(?:organizations/)?([a-z][a-z0-9-]{0,62})/(?:teams/)?([a-z][a-z0-9-]{0,62})")
_ORGANIZATION = re.compile(r"(?:organizations/)?([a-z][a-z0-9-]{0,62})")
_SCOPE_BY_TEXT = {**{scope.value: scope for scope in KeyScope}, "admin.*": KeyScope.ADMIN}

Claims = abc.Mapping[str, object]


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """`team` and `organization` are slugs, None where the token names none."""

    subject: str
    organization: str | None
    team: str | None
    roles: frozenset[Role]
    scopes: frozenset[KeyScope]


def identity_of(claims: Claims, claim_map: abc.Mapping[str, str]) -> TokenIdentity:
    """Raises CredentialInvalidError for a subject, team or organization that cannot be one."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT_CHARS or not subject.isprintable():
        raise CredentialInvalidError
    organization, team = _tenant(claims, claim_map)
    return TokenIdentity(
        subject=subject,
        organization=organization,
        team=team,
        roles=_roles(claims, claim_map, has_team=team is not None),
        scopes=_scopes(claims, claim_map),
    )


def _tenant(claims: Claims, claim_map: abc.Mapping[str, str]) -> tuple[str | None, str | None]:
    named_team, named_organization = _claim(claims, claim_map.get(TEAM)), _claim(claims, claim_map.get(ORGANIZATION))
    organization, team = _matched(_ORGANIZATION, named_organization), _matched(_TEAM, named_team)
    if team is None:
        return (None if organization is None else organization[1]), None
    if organization is not None and organization[1] != team[1]:
        raise CredentialInvalidError
    return team[1], team[2]


def _matched(pattern: re.Pattern[str], value: object) -> re.Match[str] | None:
    """None where the claim is not there; one that is must say something."""
    if value is None:
        return None
    found = pattern.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise CredentialInvalidError
    return found


def _roles(claims: Claims, claim_map: abc.Mapping[str, str], *, has_team: bool) -> frozenset[Role]:
    if ROLES not in claim_map:
        return frozenset({Role.MEMBER}) if has_team else frozenset()
    names = (word.upper().replace("-", "_") for word in _words(_claim(claims, claim_map[ROLES])))
    # An identity provider's groups are for many programs: those that mean nothing here are passed over.
    return frozenset(CLAIM_ROLES[name] for name in names if name in CLAIM_ROLES)


def _scopes(claims: Claims, claim_map: abc.Mapping[str, str]) -> frozenset[KeyScope]:
    if SCOPES not in claim_map:
        return ALL_SCOPES
    words = _words(_claim(claims, claim_map[SCOPES]))
    return frozenset(_SCOPE_BY_TEXT[word] for word in words if word in _SCOPE_BY_TEXT)


def _words(value: object) -> list[str]:
    """The words of a text, or the texts in a list."""
    if isinstance(value, str):
        return value.split()
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []


def _claim(claims: Claims, name: str | None) -> object:
    """The claim of this name or, where there is none, the one that its dots lead to."""
    if name is None:
        return None
    if name in claims:
        return claims[name]
    value: object = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
