"""The closed sets of words that columns hold. Values are spelled as in the admin protocol, without its prefixes."""

from enum import StrEnum


class State(StrEnum):
    """Of an organization or a team. Requests of a suspended one are refused; nothing is deleted."""

    ACTIVE = "ACTIVE"
    SUSPENDED = "SUSPENDED"


class KeyScope(StrEnum):
    """What a key may be used for. ADMIN is for platform keys, and all that they are for."""

    INFERENCE = "inference"
    QUOTA_READ = "quota.read"
    ADMIN = "admin"


class QuotaMode(StrEnum):
    """What a limit does: refuse, only count, or let pass as best effort."""

    ENFORCE = "ENFORCE"
    SHADOW = "SHADOW"
    BORROW = "BORROW"


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


class UsageSource(StrEnum):
    """Who counted a generation's tokens: the engine, or the gateway where no terminal usage arrived."""

    ENGINE = "ENGINE"
    GATEWAY = "GATEWAY"
