"""The paths of the door, each with the method of the protocol that it stands for.

Whose permission a path needs and whether it may spend quota is therefore said once, in `gateway.interceptors.routes`.
Besides them and the public ones only the console is served, below its own root and by a list of its own.
"""

from dataclasses import dataclass

from gateway.interceptors.routes import ROUTES, Route

PUBLIC_PATHS = frozenset({"/healthz", "/readyz", "/openapi.json"})
"""Served without a credential: whether the gateway is there, and what it understands."""


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """`rpc` is the full name of the method, `path` in the router's syntax."""

    verb: str
    path: str
    rpc: str

    @property
    def template(self) -> str:
        """The path as spans and metrics name it: `/v1/models/{model}`."""
        return self.path.replace(":path}", "}")

    @property
    def access(self) -> Route:
        """Who may call it, and what it may cost."""
        return ROUTES[self.rpc]


_GENERATION = "/evenflow.inference.v1.GenerationService"
_MODELS = "/evenflow.inference.v1.ModelService"

CHAT_COMPLETIONS = HttpRoute("POST", "/v1/chat/completions", f"{_GENERATION}/Generate")
COMPLETIONS = HttpRoute("POST", "/v1/completions", f"{_GENERATION}/Generate")
RESPONSES = HttpRoute("POST", "/v1/responses", f"{_GENERATION}/Generate")
TOKENIZE = HttpRoute("POST", "/tokenize", f"{_GENERATION}/CountTokens")
LIST_MODELS = HttpRoute("GET", "/v1/models", f"{_MODELS}/ListModels")
GET_MODEL = HttpRoute("GET", "/v1/models/{model:path}", f"{_MODELS}/GetModel")

HTTP_ROUTES = (CHAT_COMPLETIONS, COMPLETIONS, RESPONSES, TOKENIZE, LIST_MODELS, GET_MODEL)


def meant_by(path: str) -> str | None:
    """The path that somebody meant whose base URL lacks its end, has it twice, or is one of a part of it."""
    for route in HTTP_ROUTES:
        literal = route.path.partition("/{")[0]
        short = literal.removeprefix("/v1")
        is_below = route is GET_MODEL and f"{short}/" in path
        if literal.startswith("/v1/") and (path.rstrip("/").endswith(short) or is_below):
            return literal
    return None
