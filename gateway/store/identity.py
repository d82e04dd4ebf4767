"""Identity as statements take and return it, and as requests are decided on: issuers of tokens, bindings of roles.

Frozen values, no SQL. A principal is named `apiKeys/<public id>` or `jwtIssuers/<slug>/subjects/<sub>`.
"""

from collections import abc
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from gateway.store.enums import Role
from gateway.store.records import ResourcePath

PLATFORM = ResourcePath(None)
"""The root of the tenant tree, above all organizations."""


@dataclass(frozen=True, slots=True)
class JwtIssuerSettings:
    """`claim_map` maps `team`, `organization`, `roles` and `scopes` to names of claims."""

    audiences: tuple[str, ...] = ()
    jwks_uri: str = ""
    algorithms: tuple[str, ...] = ()
    claim_map: abc.Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JwtIssuer:
    """`issuer` is the claim `iss`; `organization` the slug of the only one that it speaks for, None for any."""

    id: UUID
    slug: str
    issuer: str
    organization: str | None
    settings: JwtIssuerSettings
    etag: str
    created_at: datetime
    updated_at: datetime

    @property
    def name(self) -> str:
        return f"jwtIssuers/{self.slug}"


@dataclass(frozen=True, slots=True)
class RoleBinding:
    """`principal` has `role` at `path` and below."""

    id: UUID
    principal: str
    role: Role
    path: ResourcePath
    etag: str
    created_at: datetime

    @property
    def name(self) -> str:
        return "/".join(part for part in (self.path.name, f"roleBindings/{self.id}") if part)
