"""Puts the caller's identity around the call, and asks whether it may do what the message says.

Everything but the public routes needs a credential before its message is looked at, and a route before it is served.
"""

from collections import abc
from dataclasses import dataclass, field

from google.protobuf.message import Message
from opentelemetry import trace

from gateway.auth import Authenticator, Verdict, authorize, authorize_anywhere, enter_principal
from gateway.auth.forwarding import TrustedProxies
from gateway.errors import GatewayError, UnavailableError
from gateway.errors_auth import PermissionDeniedError
from gateway.interceptors.resources import EVERYWHERE
from gateway.interceptors.routes import ROUTES
from gateway.meters import Meters
from gateway.semconv import AUTH_CACHE, AUTH_SPAN, POLICY_REVISION
from gateway.telemetry import inner_span

AUTHORIZATION = "authorization"


@dataclass(frozen=True, slots=True)
class Gatekeeper:
    """Lets callers in, whichever door they come to. `meters` counts who came; `proxies` say whom they stand for."""

    authenticator: Authenticator
    tracer: trace.Tracer
    meters: Meters = field(default_factory=Meters)
    proxies: TrustedProxies = field(default_factory=TrustedProxies)

    async def admit(self, method: str, credentials: abc.Sequence[str], peer: str) -> Verdict:
        """From here on `current_principal()` is the caller of `method`. Raises what `Authenticator` refuses.

        `credentials` are all that was sent as `authorization`, `peer` is where from, in gRPC's names.
        """
        with self.meters.stage("authenticate"), inner_span(self.tracer, AUTH_SPAN) as span:
            verdict = await self._authenticated(credentials, peer)
            span.set_attribute(AUTH_CACHE, verdict.cache)
            span.set_attribute(POLICY_REVISION, verdict.policy_revision)
            enter_principal(verdict.principal)
            if method not in ROUTES:
                raise PermissionDeniedError("nobody may call this method")
            return verdict

    async def _authenticated(self, credentials: abc.Sequence[str], peer: str) -> Verdict:
        try:
            verdict = await self.authenticator.authenticate(credentials, peer)
        except GatewayError as error:
            self.meters.authenticated("unavailable" if isinstance(error, UnavailableError) else "refused")
            raise
        self.meters.authenticated(verdict.cache)
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
