"""Refusals of credentials and of what their holders may do. A part of the tree in `errors`.

GatewayError
├── CredentialInvalidError          UNAUTHENTICATED      CREDENTIAL_INVALID (one text for all causes)
├── KeyRevokedError                 UNAUTHENTICATED      KEY_REVOKED
├── KeyExpiredError                 UNAUTHENTICATED      KEY_EXPIRED
│   └── SecretReplacedError                              KEY_EXPIRED
├── TokenExpiredError               UNAUTHENTICATED      KEY_EXPIRED
├── PermissionDeniedError           PERMISSION_DENIED    PERMISSION_DENIED
│   ├── ScopeNotGrantedError                             SCOPE_NOT_GRANTED
│   ├── RoleNotGrantedError                              ROLE_NOT_GRANTED
│   ├── ClassNotGrantedError                             PRIORITY_CLASS_NOT_GRANTED
│   ├── AddressNotAllowedError                           ADDRESS_NOT_ALLOWED
│   ├── NoTenantError                                    KEY_HAS_NO_TENANT
│   └── TenantSuspendedError                             TENANT_SUSPENDED
└── UnavailableError                UNAVAILABLE + RetryInfo
    ├── AuthStoreUnavailableError                        AUTH_STORE_UNAVAILABLE
    └── IssuerUnavailableError                           AUTH_STORE_UNAVAILABLE
"""

from collections import abc

import grpc

from gateway.errors import GatewayError, UnavailableError

MAX_PLACES = 5


class CredentialInvalidError(GatewayError):
    """No credential, a malformed one, an unknown key or a wrong secret: a caller cannot tell which."""

    code = grpc.StatusCode.UNAUTHENTICATED
    reason = "CREDENTIAL_INVALID"

    def __init__(self) -> None:
        super().__init__("send a valid API key: the metadata entry `authorization: Bearer ef_…`")


class KeyRevokedError(GatewayError):
    """The key was revoked."""

    code = grpc.StatusCode.UNAUTHENTICATED
    reason = "KEY_REVOKED"

    def __init__(self) -> None:
        super().__init__("the API key was revoked")


class KeyExpiredError(GatewayError):
    """The key has reached its end."""

    code = grpc.StatusCode.UNAUTHENTICATED
    reason = "KEY_EXPIRED"

    def __init__(self, message: str = "the API key has expired") -> None:
        super().__init__(message)


class SecretReplacedError(KeyExpiredError):
    """The secret that was sent has reached its end; the key has another one."""

    def __init__(self) -> None:
        super().__init__("this is an old secret of the API key: the key was rotated, and its grace time is over")


class PermissionDeniedError(GatewayError):
    """The caller is known and may not do this."""

    code = grpc.StatusCode.PERMISSION_DENIED
    reason = "PERMISSION_DENIED"


class ScopeNotGrantedError(PermissionDeniedError):
    """The key lacks the scope that the method needs."""

    reason = "SCOPE_NOT_GRANTED"

    def __init__(self, scope: str) -> None:
        super().__init__(f"the API key needs the scope {scope!r} for this method", metadata={"scope": scope})


class ClassNotGrantedError(PermissionDeniedError):
    """The priority class is not granted to the key or its team, or there is none of that name."""

    reason = "PRIORITY_CLASS_NOT_GRANTED"

    def __init__(self, name: str) -> None:
        super().__init__(f"priority class {name!r} is not granted to this API key", metadata={"priority_class": name})


class AddressNotAllowedError(PermissionDeniedError):
    """The key may be used from certain networks only, and the caller is in none of them."""

    reason = "ADDRESS_NOT_ALLOWED"

    def __init__(self) -> None:
        super().__init__("the API key may not be used from this address")


class NoTenantError(PermissionDeniedError):
    """Somebody who belongs to no team, or to none that exists, asked for what is accounted to a team."""

    reason = "KEY_HAS_NO_TENANT"

    def __init__(self) -> None:
        super().__init__("this credential belongs to no team and cannot be used for inference; use a team's key")


class TenantSuspendedError(PermissionDeniedError):
    """The team or its organization is suspended or deleted."""

    reason = "TENANT_SUSPENDED"

    def __init__(self, tenant: str) -> None:
        super().__init__(f"{tenant} is suspended", metadata={"tenant": tenant})


class AuthStoreUnavailableError(UnavailableError):
    """What is known of the key is nothing, or too old, and the database cannot be asked. Says nothing about the key."""

    reason = "AUTH_STORE_UNAVAILABLE"

    def __init__(self) -> None:
        super().__init__("the API key cannot be checked now")


class TokenExpiredError(GatewayError):
    """A token that is right in everything but its time."""

    code = grpc.StatusCode.UNAUTHENTICATED
    reason = "KEY_EXPIRED"

    def __init__(self) -> None:
        super().__init__("the token has expired")


class IssuerUnavailableError(UnavailableError):
    """The keys of the token's issuer cannot be read now. Says nothing about the token."""

    reason = "AUTH_STORE_UNAVAILABLE"

    def __init__(self) -> None:
        super().__init__("the token cannot be checked now: its issuer does not answer")


class RoleNotGrantedError(PermissionDeniedError):
    """No role of the caller allows this there. The same answer whether or not the resource exists."""

    reason = "ROLE_NOT_GRANTED"

    def __init__(self, places: abc.Sequence[str]) -> None:
        """`places`: where the caller's roles allow it; says nothing of what else there is."""
        named = ", ".join(places[:MAX_PLACES]) + (", …" if len(places) > MAX_PLACES else "")
        advice = f"yours allow it at {named}" if places else "ask an administrator for one"
        super().__init__(f"no role of yours allows this method on this resource: {advice}")
