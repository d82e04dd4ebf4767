"""Puts the caller's identity around the call. Everything but the public routes needs one that may do what it asks."""

from opentelemetry import trace

from gateway.auth import Authenticator, authorize, enter_principal
from gateway.errors import PermissionDeniedError
from gateway.interceptors.call import Call, header_values
from gateway.interceptors.routes import action_of
from gateway.telemetry import AUTH_CACHE, AUTH_SPAN, POLICY_REVISION

AUTHORIZATION = "authorization"


async def authenticate(call: Call, authenticator: Authenticator, tracer: trace.Tracer) -> None:
    """From here on `current_principal()` is the caller. Raises what `Authenticator` and `authorize` refuse."""
    with tracer.start_as_current_span(AUTH_SPAN, record_exception=False) as span:
        credentials = header_values(call.context, AUTHORIZATION)
        verdict = await authenticator.authenticate(credentials, call.context.peer())
        span.set_attribute(AUTH_CACHE, verdict.cache)
        span.set_attribute(POLICY_REVISION, verdict.policy_revision)
        action = action_of(call.method)
        if action is None:
            raise PermissionDeniedError("nobody may call this method")
        authorize(verdict.principal, action)
        enter_principal(verdict.principal)
