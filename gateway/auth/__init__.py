"""Who is calling and what they may do. Verifies locally, against the snapshot of tenancy. Knows no RPC, no prompt."""

from gateway.auth.authenticator import Authenticator, Verdict
from gateway.auth.last_used import LastUsed
from gateway.auth.principal import (
    Principal,
    authorize,
    authorize_anywhere,
    current_principal,
    enter_principal,
    principal_or_none,
)
from gateway.auth.remembered import Remembered
from gateway.auth.roles import Action

__all__ = [
    "Action",
    "Authenticator",
    "LastUsed",
    "Principal",
    "Remembered",
    "Verdict",
    "authorize",
    "authorize_anywhere",
    "current_principal",
    "enter_principal",
    "principal_or_none",
]
