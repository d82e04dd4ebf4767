"""The one layer in which a request gets the address and the scheme of its client, where proxies stand in between."""

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.auth.address import peer_address, peer_name
from gateway.auth.forwarding import TrustedProxies


class Forwarded:
    """`app`, for which a request comes from whom the trusted proxies say."""

    def __init__(self, app: ASGIApp, proxies: TrustedProxies) -> None:
        self._app = app
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._tell(scope)
        await self._app(scope, receive, send)

    def _tell(self, scope: Scope) -> None:
        def values(name: str) -> list[str]:
            wanted = name.encode()
            return [value.decode("latin-1") for key, value in scope["headers"] if key == wanted]

        peer = peer_name(scope["client"])
        origin = self._proxies.origin(peer, values)
        address = peer_address(origin.peer)
        if origin.peer != peer and address is not None:
            scope["client"] = (str(address), 0)
        if origin.scheme is not None:
            scope["scheme"] = origin.scheme
