"""The closed sets of words that columns hold, but for `Mode` and `Calendar` of `gateway.quota_terms`.

Values are spelled as in the admin protocol, without its prefixes.
"""

from enum import StrEnum


class State(StrEnum):
    """Of an organization or a team. Requests of a suspended one are refused; nothing is deleted."""

    ACTIVE = "ACTIVE"
    SUSPENDED = "SUSPENDED"


class KeyScope(StrEnum):
    """What a credential may be used for, within what its holder may do. ADMIN stands for all that begin like it."""

    INFERENCE = "inference"
    QUOTA_READ = "quota.read"
    ADMIN = "admin"
    ADMIN_READ = "admin.read"
    ADMIN_TENANCY = "admin.tenancy"
    ADMIN_KEYS = "admin.keys"
    ADMIN_QUOTA = "admin.quota"
    ADMIN_ROLES = "admin.roles"
    ADMIN_OPERATE = "admin.operate"
    ADMIN_SYSTEM = "admin.system"


class Role(StrEnum):
    """What somebody may do somewhere; `gateway.auth.roles` says what. Each is bound at one depth of the tenant tree."""

    PLATFORM_ADMIN = "PLATFORM_ADMIN"
    PLATFORM_VIEWER = "PLATFORM_VIEWER"
    ORG_ADMIN = "ORG_ADMIN"
    TEAM_ADMIN = "TEAM_ADMIN"
    MEMBER = "MEMBER"
    SERVICE = "SERVICE"


class StoreLossAction(StrEnum):
    """What becomes of a tenant's requests while Postgres is away."""

    SERVE_STALE = "SERVE_STALE"
    FAIL_CLOSED = "FAIL_CLOSED"


class Dimension(StrEnum):
    """What a limit counts."""

    REQUESTS = "REQUESTS"
    INPUT_TOKENS = "INPUT_TOKENS"
    OUTPUT_TOKENS = "OUTPUT_TOKENS"
    TOTAL_TOKENS = "TOTAL_TOKENS"
    COST_UNITS = "COST_UNITS"
    CONCURRENCY = "CONCURRENCY"


class ReservationMode(StrEnum):
    """How much a request holds back: all that it may use, or what is to be expected, extended while it runs."""

    HARD = "HARD"
    EXPECTED = "EXPECTED"


class UsageSource(StrEnum):
    """Who counted a generation's tokens: the engine, or the gateway where no terminal usage arrived."""

    ENGINE = "ENGINE"
    GATEWAY = "GATEWAY"
