"""Puts the caller's identity around the call, and asks whether it may do what the message says.

Everything but the public routes needs a credential before its message is looked at, and a route before it is served.
"""

from google.protobuf.message import Message
from opentelemetry import trace

from gateway.auth import Authenticator, Verdict, authorize, authorize_anywhere, enter_principal
from gateway.errors_auth import PermissionDeniedError
from gateway.interceptors.call import Call
from gateway.interceptors.resources import EVERYWHERE
from gateway.interceptors.routes import ROUTES
from gateway.telemetry import AUTH_CACHE, AUTH_SPAN, POLICY_REVISION, inner_span

AUTHORIZATION = "authorization"


async def authenticate(call: Call, authenticator: Authenticator, tracer: trace.Tracer) -> Verdict:
    """From here on `current_principal()` is the caller. Raises what `Authenticator` refuses."""
    with inner_span(tracer, AUTH_SPAN) as span:
        credentials = call.header_values(AUTHORIZATION)
        verdict = await authenticator.authenticate(credentials, call.context.peer())
        span.set_attribute(AUTH_CACHE, verdict.cache)
        span.set_attribute(POLICY_REVISION, verdict.policy_revision)
        enter_principal(verdict.principal)
        if call.method not in ROUTES:
            raise PermissionDeniedError("nobody may call this method")
        return verdict


def authorize_message(method: str, message: object, verdict: Verdict) -> None:
    """The caller may do what `message` asks of `method`. Raises what `authorize` refuses."""
    route = ROUTES[method]
    assert isinstance(message, Message), "a method that is not public takes one message"
    resource = route.resource(message, verdict.principal, verdict.snapshot)
    for action in route.actions:
        if resource == EVERYWHERE:
            authorize_anywhere(verdict.principal, action)
        else:
            authorize(verdict.principal, action, resource)
